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
VARIANTS = {
    "fesem different": ["method.kind=fesem", "method.start=different"],
    "fesem shared": ["method.kind=fesem", "method.start=shared"],
    "fedgroup weights": ["method.kind=fedgroup", "method.newcomers=weights"],
    "ifca one start": ["method.kind=ifca", "method.restarts=1"],
    "pacfl smallest": ["method.kind=pacfl", "method.angle=smallest"],
    "pacfl sum": ["method.kind=pacfl", "method.angle=sum"],
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
values, over five seeds, are from its three per-setting tables. ARI: of the assignments after the last round.
"""


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
        for label in [*KINDS, *VARIANTS]:
            wanted = (name, setting, label)
            rows = [r for r in records if (r["dataset"], r["setting"], r["label"]) == wanted]
            if not rows:
                continue
            own = paper.get(wanted)
            has = own is not None and own["ari"] != ""
            lines.append(
                "| " + " | ".join([
                    METHODS[label].about.title if label in METHODS else f"*{label}*",
                    str(len(rows)),
                    "–" if rows[0]["ari"] is None else spread([r["ari"] for r in rows]),
                    f"{float(own['ari']):.2f} ± {float(own['ari_sd']):.2f}" if own and has else "–",
                    spread([100 * r["accuracy"] for r in rows]),
                    f"{float(own['accuracy']):.2f} ± {float(own['accuracy_sd']):.2f}" if own else "–",
                    f"{rows[0]['bytes_up'] / 1e6:,.0f}",
                    f"{rows[0]['bytes_down'] / 1e6:,.0f}",
                ]) + " |"
            )  # fmt: skip
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "variants", "table"])
    parser.add_argument("--datasets", nargs="+", default=SETS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "methods.jsonl")
    options = parser.parse_args()
    if options.what == "table":
        (RESULTS / "methods.md").write_text(table(options.out))
        print(RESULTS / "methods.md")
    else:
        todo = jobs(options.what, options.datasets, options.seeds)
        run(todo, options.shard, options.out, choose_device(options.device))
