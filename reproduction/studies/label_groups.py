"""One model for each label distribution of csf: what a method has that takes label skew for the groups.

    python reproduction/studies/label_groups.py pathmnist [--rounds 40]   # on two cores a minute a round
    python reproduction/studies/label_groups.py table                     # results/label-groups.md

Appends a line to results/label-groups.jsonl at every tenth round.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from play_or_table import play_or_table

from flameche.data.heterogeneity import skew_variants
from flameche.experiments.build import build
from flameche.experiments.provenance import provenance
from flameche.methods.base import About, World
from flameche.methods.partitioned import Partitioned
from flameche.simulation.engine import simulate
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.results_index import ResultsFile, describe_provenance

STORED = Path("results/label-groups.jsonl")
EVERY = 10
INTRODUCTION = """Accuracy in % where clients of csf train in one cluster for each of the five label
distributions instead of one for each of the four groups: 100 clients, 20 a round, as in the tables of
results/paper (`reproduction/studies/label_groups.py`; seed 0). What it is worth:
[docs/reproducing.md](../docs/reproducing.md)."""


class ByLabels(Partitioned):
    """One part for each label distribution."""

    about: ClassVar[About] = About("by label distribution", "–", "sums", "model")

    def __init__(self, world: World) -> None:
        names = [name for size in np.bincount(world.group) for name in skew_variants(int(size))]
        super().__init__(world, np.unique(names, return_inverse=True)[1])


def play(dataset: str, rounds: int, seed: int = 0, out: Path = STORED, more: Sequence[str] = ()) -> None:
    """Train, and keep a line at every tenth round."""
    words = ("data.heterogeneity=csf", "method.kind=fedavg", f"rounds={rounds}", *more)
    experiment = PlannedRun(dataset, "csf", "by-labels", seed, words).experiment
    setup = build(experiment, seed, device="cpu")

    def keep(record: dict[str, Any]) -> None:
        if not np.isnan(record["accuracy"]):
            line = {"dataset": dataset, "seed": seed, "round": record["round"]}
            line |= {key: round(record[key], 4) for key in ("accuracy", "ari")}
            ResultsFile(out).add({**line, **provenance("cpu")})
            print(json.dumps(line), flush=True)

    try:
        simulate(
            ByLabels(setup.world),
            setup.world,
            experiment.participants,
            evaluate_every=EVERY,
            on_round=keep,
        )
    finally:
        setup.world.trainer.close()


def table() -> None:
    """Write results/label-groups.md."""
    lines = ResultsFile(STORED).read()
    rows = [
        f"| {line['dataset']} | {line['round']} | {line['ari']:.2f} | {100 * line['accuracy']:.1f} |"
        for line in lines
    ]
    head = ["| set | round | ARI | accuracy % |", "|---|--:|--:|--:|"]
    text = "\n".join(
        [f"# Models by label distribution\n\n{INTRODUCTION}\n", *head, *rows, "", describe_provenance(lines)]
    )
    STORED.with_suffix(".md").write_text(text + "\n")


if __name__ == "__main__":
    play_or_table(__doc__, ["mnist", "fashion-mnist", "cifar10", "pathmnist"], play, table)
