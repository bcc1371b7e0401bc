"""Makes results/default-mode.md: the default mode on every set, setting and seed.

    python reproduction/studies/default_mode.py run [--datasets mnist ...] [--rules NAME ...] [--cache FOLDER]
    python reproduction/studies/default_mode.py table

`run` appends a line per clustering to results/default-mode.jsonl and skips what is there already. Data,
extractor and schedule all come from the seed. With --cache, metadata are kept in a folder and used again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
from select_table import GROUPS, UNEVEN
from sklearn.metrics import adjusted_rand_score

from flameche.experiments.build import build_method
from flameche.experiments.config import load_experiment
from flameche.experiments.provenance import provenance
from flameche.simulation.engine import simulate
from flameche.training.device import choose_device
from flameche_reproduction.metadata_cache import cached_metadata, clustering_world
from flameche_reproduction.results_index import ResultsFile, describe_provenance

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SETS = ["mnist", "fashion-mnist", "cifar10", "pathmnist", "mednist28"]
SETTINGS = ["csl", "fds", "csf"]
LONG = ("mnist", "fashion-mnist")  # 20 seeds, where the rule has 10 elsewhere
RULES: dict[str, tuple[list[str], int]] = {  # what is changed, and how many seeds
    "20% a round": ([], 10),
    "10% a round": (["participation=0.1"], 10),
    "5% a round": (["participation=0.05"], 10),
    "BFV, guard 3": (["scheme.kind=bfv"], 3),
    "secure aggregation, guard 3": (["scheme.kind=secagg"], 3),
}
SIX = [
    f"data.groups={json.dumps(UNEVEN[6])}",
    f"data.transforms={json.dumps(GROUPS[6])}",
    "method.clusters=6",
]
SIX_GROUPS: dict[str, list[str]] = {  # on MNIST alone: rotations and swapped labels, six seeds
    "six uneven groups": SIX,
    "six uneven groups, guard 3": [*SIX, "scheme.min_cluster=3"],
}
RULES |= {rule: (changes, 6) for rule, changes in SIX_GROUPS.items()}
ROUNDS = 20  # nothing is opened later, and all clients have taken part by then or take an E-step at the end
PLAIN = ["scheme.kind=plain", "method.mode=sketch", f"rounds={ROUNDS}"]


def run(datasets: list[str], rules: list[str], device: str, out: Path, cache: Path | None) -> None:
    """Cluster everything that is not in `out` yet."""
    done = {(r["rule"], r["dataset"], r["setting"], r["seed"]) for r in read(out)}
    for name, seed, setting in itertools.product(datasets, range(20), SETTINGS):
        for rule in rules:
            changes, seeds = RULES[rule]
            if seed >= seeds * (2 if seeds == 10 and name in LONG else 1):
                continue
            if rule in SIX_GROUPS and (name, setting) != ("mnist", "csl"):
                continue
            if (rule, name, setting, seed) in done:
                continue
            line = one(name, setting, seed, rule, changes, device, cache)
            ResultsFile(out).add({**line, **provenance(device)})
            print(json.dumps(line), flush=True)


def one(
    name: str, setting: str, seed: int, rule: str, changes: list[str], device: str, cache: Path | None
) -> dict:
    """Play one clustering and note when it became right."""
    experiment = load_experiment(
        ROOT / "experiments" / f"{name}.toml", [f"data.heterogeneity={setting}", *PLAIN, *changes]
    )
    metadata, group = cached_metadata(experiment, seed, device, cache)
    world = clustering_world(experiment, seed, metadata, group)
    method = build_method(experiment, world)
    right: list[bool] = []

    def look(record: dict) -> None:
        with world.ledger.muted():
            right.append(adjusted_rand_score(group, method.serving()) == 1.0)

    start = time.perf_counter()
    result = simulate(method, world, experiment.participants, on_round=look)
    wrong = [r for r, good in enumerate(right, 1) if not good]
    return {
        "rule": rule,
        "dataset": name,
        "setting": setting,
        "seed": seed,
        "ari": round(result.ari_final, 4),
        "right_from": (wrong[-1] if wrong else 0) + 1 if right[-1] else None,
        "bytes_up": int(world.ledger.per_client("up").sum()),
        "bytes_down": int(world.ledger.per_client("down").sum()),
        "up": {key: int(column.sum()) for key, column in world.ledger.up.items()},
        "sums": len(world.ledger.openings),
        "seconds": round(time.perf_counter() - start, 3),
    }


def read(file: Path) -> list[dict]:
    """Read the lines that are there."""
    return ResultsFile(file).read()


HEAD = f"""\
# The default mode: the right clusters on every seed

Made by `python reproduction/studies/default_mode.py run` and `... table` from `default-mode.jsonl`: 100
clients, 4 groups, {ROUNDS} rounds, participation 20% unless said otherwise, no training; data, extractor
and schedule all come from the seed. LeNet-5's features on MNIST and Fashion-MNIST, ResNet-18's elsewhere.
ARI after the last E-step over all clients. *Right from*: the round from which on every one of the 100
clients would be served its own group's model, over the runs that get there: median and worst. Before the
first round 60 of the clients hold the clustering session, whatever share takes part in a round. BFV and
secure aggregation have three seeds and `scheme.min_cluster = 3`. *Six uneven groups*: MNIST,
{UNEVEN[6][0]} to {UNEVEN[6][-1]} clients in a group, which differ by rotations and swapped labels; K is
given. With a guard of three the smallest is missed where a single one of its clients is in the session,
beside another group's.

Before this mode there was another default, which opened sums in every round: ARI 1.00 in 210 of 210 runs at
20% (right from round 16 by the median, 39 at worst), 210 of 210 at 10% (33), 75 of 75 at 5% (55), and under
BFV and secure aggregation with the same guard 45 of 45 each (22).
"""


def table(records: list[dict]) -> str:
    """Write the page."""
    lines = [HEAD]
    names = [rule for rule in RULES if any(r["rule"] == rule for r in records)]
    lines += [
        "## All sets and settings",
        "",
        "| rule | runs | at 1.00 | share | mean ARI | worst | right from: median | worst |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for rule in names:
        lines.append(f"| {rule} | {' | '.join(summary([r for r in records if r['rule'] == rule]))} |")
    for rule in names:
        lines += [
            "",
            f"## {rule}",
            "",
            "| data | setting | runs | at 1.00 | share | mean ARI | worst | right from: median | worst |",
        ]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for name, setting in itertools.product(SETS, SETTINGS):
            some = [r for r in records if (r["rule"], r["dataset"], r["setting"]) == (rule, name, setting)]
            if some:
                lines.append(f"| {name} | {setting} | {' | '.join(summary(some))} |")
        failed = [r for r in records if r["rule"] == rule and r["ari"] < 1]
        if failed:
            told = (f"{r['dataset']} {r['setting']} seed {r['seed']}: {r['ari']:.3f}" for r in failed)
            lines += ["", "Below 1.00: " + "; ".join(told) + "."]
    return "\n".join([*lines, "", describe_provenance(records)]) + "\n"


def summary(some: list[dict]) -> list[str]:
    """Write the cells of a row."""
    perfect = [r for r in some if r["ari"] == 1.0]
    since = [r["right_from"] for r in some if r["right_from"] is not None]
    return [
        str(len(some)),
        str(len(perfect)),
        f"{100 * len(perfect) / len(some):.1f}%",
        f"{np.mean([r['ari'] for r in some]):.3f}",
        f"{min(r['ari'] for r in some):.2f}",
        f"{np.median(since):.0f}" if since else "–",
        str(max(since)) if since else "–",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--datasets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS / "default-mode.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        run(options.datasets, options.rules, choose_device(options.device), options.out, options.cache)
    else:
        (RESULTS / "default-mode.md").write_text(table(read(options.out)))
        print(RESULTS / "default-mode.md")
