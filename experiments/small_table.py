"""Makes results/small.md: few clients, groups of any size, robust mode beside paper mode.

    python experiments/small_table.py

Handwritten digits (built in) with swapped labels; data, extractor and schedule all come from the seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flameche.experiments.build import build_method
from flameche.experiments.config import load_experiment
from flameche.experiments.metadata_store import metadata_of, world_of
from flameche.simulation.engine import simulate

HERE = Path(__file__).parent
OUT = HERE.parent / "results" / "small.md"
GROUPS = [
    [2, 1],
    [2, 2],
    [2, 2, 1],
    [3, 1, 1],
    [3, 2, 1],
    [4, 3, 2, 1],
    [6, 1],
    [4, 4, 1],
    [5, 5, 1],
    [8, 8, 1, 1],
]
SHARES = {1.0: 10, 0.4: 40}  # participation, and rounds
MODES = ["robust", "paper"]
SEEDS = 15
HEAD = """\
# Few clients

Made by `python experiments/small_table.py`: digits, swapped labels, K as it is, nothing guarded
(`min_cluster = 1`), seeds 0 to 14. ARI after the last E-step: mean, in brackets the runs at 1.00.

| clients in each group | """


def main() -> None:
    """Cluster them all and write the page."""
    columns = [(share, mode) for share in SHARES for mode in MODES]
    heads = [f"{mode}, {share:.0%} a round, {SHARES[share]} rounds" for share, mode in columns]
    lines = [HEAD + " | ".join(heads) + " |", "|---" * (1 + len(columns)) + "|"]
    totals = np.zeros(len(columns), int)
    for groups in GROUPS:
        found = [[one(groups, share, mode, seed) for seed in range(SEEDS)] for share, mode in columns]
        totals += [sum(ari == 1 for ari in some) for some in found]
        cells = [f"{np.mean(some):.2f} ({sum(ari == 1 for ari in some)})" for some in found]
        lines.append(f"| {', '.join(map(str, groups))} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    lines.append(f"| **of {SEEDS * len(GROUPS)} at 1.00** | " + " | ".join(map(str, totals)) + " |")
    OUT.write_text("\n".join(lines) + "\n")
    print(OUT)


def one(groups: list[int], share: float, mode: str, seed: int) -> float:
    """Cluster one federation."""
    changes = [f"data.clients={sum(groups)}", f"data.groups={groups}", "data.per_label=5"]
    changes += ["data.heterogeneity=csl", f"participation={share}", f"rounds={SHARES[share]}"]
    changes += [f"method.clusters={len(groups)}", f"method.mode={mode}", "scheme.kind=plain"]
    experiment = load_experiment(HERE / "digits.toml", changes)
    metadata, group = metadata_of(experiment, seed, "cpu", None)
    world = world_of(experiment, seed, metadata, group)
    method, _ = build_method(experiment, world)
    return simulate(method, world, experiment.participants).ari_final


if __name__ == "__main__":
    main()
