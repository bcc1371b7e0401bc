"""Makes results/methods.md: all methods on the same clients, beside the paper's tables.

    python experiments/methods_table.py run [--datasets mnist ...] [--seeds 5] [--shard 0/4] [--out FILE]
    python experiments/methods_table.py variants [--shard 0/4]      the other readings, seed 0
    python experiments/methods_table.py table

`run` trains whatever is not in results/methods.jsonl (or --out) yet, seed by seed, and appends one line per
run. Shards share the work between processes, each with an --out of its own.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from pathlib import Path
from typing import Any

from clustering_table import HERE, RESULTS, SETTINGS, read, spread

from flameche.experiments.build import build
from flameche.experiments.config import config_hash, load_experiment
from flameche.experiments.run import summarise
from flameche.experiments.store import without_nan
from flameche.methods import METHODS
from flameche.simulation.engine import simulate
from flameche.training.device import choose_device

SETS = ["mnist", "fashion-mnist"]
KINDS = ["oracle", "fedavg", "fedgroup", "stocfl", "fesem", "ifca", "kfed", "pacfl", "flameche"]
ONE_EPOCH = ["oracle", "fedavg", "kfed", "stocfl"]  # does less local work explain the paper's accuracies?
VARIANTS = {
    "fesem different": ["method.kind=fesem", "method.start=different"],
    "fesem shared": ["method.kind=fesem", "method.start=shared"],
    "fedgroup weights": ["method.kind=fedgroup", "method.newcomers=weights"],
    "ifca one start": ["method.kind=ifca", "method.restarts=1"],
    "stocfl adam": ["method.kind=stocfl", "method.first=adam"],
    "pacfl smallest": ["method.kind=pacfl", "method.angle=smallest"],
    "pacfl sum": ["method.kind=pacfl", "method.angle=sum"],
    **{f"{kind} one epoch": [f"method.kind={kind}", "training.epochs=1"] for kind in ONE_EPOCH},
}
KEPT = (
    *("dataset", "setting", "method", "seed", "k", "ari", "ari_final", "accuracy", "bytes_up", "bytes_down"),
    *("seconds", "wall_s", "device", "config_hash", "notes"),
)
PAPER = RESULTS / "paper-methods.csv"


def jobs(what: str, datasets: list[str], seeds: int) -> list[tuple[int, str, str, str, list[str]]]:
    """List runs, the first seeds of everything first: seed, set, setting, name, overrides."""
    if what == "run":
        named = {kind: [f"method.kind={kind}"] for kind in KINDS}
    else:
        named, seeds = VARIANTS, 1
    every = itertools.product(range(seeds), datasets, SETTINGS, named)
    return [(seed, name, setting, label, named[label]) for seed, name, setting, label in every]


def play(name: str, setting: str, label: str, words: list[str], seed: int, device: str) -> dict[str, Any]:
    """Train one run; give its line."""
    experiment = describe(name, setting, words)
    setup = build(experiment, seed, device=device)
    result = simulate(setup.method, setup.world, experiment.participants)
    full = without_nan(summarise(experiment, seed, setup, result, device))
    line = {"label": label, **{key: full[key] for key in KEPT}}
    line["tuning_runs"] = full["ledger"]["tuning_runs"]
    line["oracle_knowledge"] = full["ledger"]["oracle_knowledge"]
    for key in ("accuracy_per_round", "ari_per_round"):
        line[key] = [None if value is None else round(value, 4) for value in full[key]]
    return line


def describe(name: str, setting: str, words: list[str]) -> Any:
    """Describe one run of a set's experiment."""
    return load_experiment(HERE / f"{name}.toml", [f"data.heterogeneity={setting}", *words])


def run(todo: list[tuple[int, str, str, str, list[str]]], shard: str, out: Path, device: str) -> None:
    """Play what is not done yet of this shard."""
    number, of = map(int, shard.split("/"))
    done = {(r["config_hash"], r["seed"]) for r in [*read(RESULTS / "methods.jsonl"), *read(out)]}
    for seed, name, setting, label, words in todo[number::of]:
        if (config_hash(describe(name, setting, words)), seed) in done:
            continue
        line = play(name, setting, label, words, seed, device)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name} {setting} {label} seed {seed}: ARI {line['ari']}, {line['accuracy']:.4f}", flush=True)


HEAD = """\
# All methods, beside the paper

Made by `python experiments/methods_table.py run` and `... table` from `methods.jsonl`: 100 clients in 4
groups, 100 rounds, 20% a round, LeNet-5, `holdout = 0.3`; mean ± sd (ddof = 1) over the seeds. The paper's
values, over five seeds, are from its three per-setting tables. ARI: of the assignments after the last round;
0 where one cluster is left. MB: of seed 0. Not all five seeds have been run.
"""


READING = """\
## Where ours differs from the paper by more than its spread

- **FLAMECHE's ARI** is higher: `init` and `empty` are read so that reclustering works, see
  [clustering.md](clustering.md).
- **StoCFL** needs first updates by SGD, as published; with the Adam of all methods groups merge on four
  of six cells (below). In one of four seeds on MNIST the searched threshold still merges two groups
  (.71), which the paper's does not.
- **FeSEM** needs centres that begin near each other: with K different models, or K copies and a random
  first centre, it stays at chance (below). Under fds it falls below the paper in round 2, when
  newcomers, trained once from the initial model, join the centre that has moved least from it; under csf
  on Fashion-MNIST it is lower too (.04 against .20 ± .13).
- **IFCA's ARI** is lower except under csf on MNIST: in some seeds the start with the best held-back
  accuracy has two groups in one cluster (.71). Five starts are the paper's.
- **FedGroup** under csf on Fashion-MNIST is higher (.47 against .19 ± .26).
- **PACFL's ARI** under fds is higher. Other angles (below) do not give the paper's values either; open.
- **Accuracy.** Oracle is 0.1 to 2 points above the paper, and FedGroup, FLAMECHE and (where its ARI is)
  FeSEM with it. K-Fed, PACFL, IFCA, StoCFL, and FedAvg under fds and csf, are up to 18 points higher
  than printed, also where the ARI is the paper's 1.00. A method that has the true groups from round 18
  to 39 on, as K-Fed here, must come close to Oracle with the same local training, and ours does. The
  printed values lie between ours with one and with five local epochs, or below (K-Fed): these methods
  seem to have had less local work than the others. That is a guess.
"""


def cell(values: list[float | None]) -> str:
    """Write mean and spread, one value as it is, none as a dash."""
    known = [value for value in values if value is not None]
    return f"{known[0]:.2f}" if len(known) == 1 else spread(known)


def table(source: Path) -> str:
    """Write the page."""
    records, lines = read(source), [HEAD]
    with PAPER.open() as file:
        paper = {(r["dataset"], r["setting"], r["method"]): r for r in csv.DictReader(file)}
    for name, setting in itertools.product(SETS, SETTINGS):
        lines += [
            f"## {name}, {setting}",
            "",
            "| method | seeds | ARI | paper | accuracy % | paper | MB up | MB down |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for kind in KINDS:
            rows = [r for r in records if (r["dataset"], r["setting"], r["label"]) == (name, setting, kind)]
            if not rows:
                lines.append(f"| {METHODS[kind].about.title} | not run | | | | | | |")
                continue
            own = paper[name, setting, kind]
            columns = [METHODS[kind].about.title, str(len(rows)), cell([r["ari"] for r in rows])]
            columns.append(published(own, "ari"))
            columns += [cell([100 * r["accuracy"] for r in rows]), published(own, "accuracy")]
            columns += [f"{rows[0][key] / 1e6:,.0f}" for key in ("bytes_up", "bytes_down")]
            lines.append("| " + " | ".join(columns) + " |")
        lines.append("")
    return "\n".join([*lines, READING, *variants(records), ""])


def overview(records: list[dict]) -> list[str]:
    """Write README's table: ARI and accuracy of every method in every cell, means over the seeds."""
    cells = list(itertools.product(SETS, SETTINGS))
    lines = [
        "| | "
        + " | ".join(f"{name.replace('-mnist', '').upper()} {setting}" for name, setting in cells)
        + " |",
        "|---" * (len(cells) + 1) + "|",
    ]
    for kind in KINDS:
        columns = [METHODS[kind].about.title]
        for name, setting in cells:
            rows = [r for r in records if (r["dataset"], r["setting"], r["label"]) == (name, setting, kind)]
            known = [r["ari"] for r in rows if r["ari"] is not None]
            if not rows:
                columns.append("not run")
                continue
            accuracy = sum(100 * r["accuracy"] for r in rows) / len(rows)
            columns.append(
                f"{sum(known) / len(known):.2f} · {accuracy:.1f}" if known else f"– · {accuracy:.1f}"
            )
        lines.append("| " + " | ".join(columns) + " |")
    return lines


def published(own: dict[str, str], key: str) -> str:
    """Write the paper's mean and spread."""
    return f"{float(own[key]):.2f} ± {float(own[f'{key}_sd']):.2f}" if own[key] else "–"


def variants(records: list[dict]) -> list[str]:
    """List the other readings: ARI and accuracy in every cell, seed 0, below the default's."""
    cells = list(itertools.product(SETS, SETTINGS))
    lines = [
        "## Other readings, seed 0: ARI, accuracy %",
        "",
        "| | " + " | ".join(f"{name} {setting}" for name, setting in cells) + " |",
        "|---" * (len(cells) + 1) + "|",
    ]
    for label in sorted([*KINDS, *VARIANTS], key=lambda label: (KINDS.index(label.split()[0]), label)):
        columns = [METHODS[label].about.title if label in METHODS else f"*{label}*"]
        for name, setting in cells:
            wanted = (name, setting, label, 0)
            found = [r for r in records if (r["dataset"], r["setting"], r["label"], r["seed"]) == wanted]
            columns.append(
                f"{cell([found[0]['ari']])}, {100 * found[0]['accuracy']:.1f}" if found else "not run"
            )
        lines.append("| " + " | ".join(columns) + " |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "variants", "table"])
    parser.add_argument("--datasets", nargs="+", default=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "methods.jsonl")
    options = parser.parse_args()
    if options.what == "table":
        (RESULTS / "methods.md").write_text(table(options.out))
        print(RESULTS / "methods.md", *overview(read(options.out)), sep="\n")
    else:
        todo = jobs(options.what, options.datasets, options.seeds)
        run(todo, options.shard, options.out, choose_device(options.device))
