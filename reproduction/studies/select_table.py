"""Makes results/select-k.md: the number of clusters that `flameche select-k` finds, beside other criteria.

    python reproduction/studies/select_table.py run [--cache FOLDER]
    python reproduction/studies/select_table.py table

`run` appends one line per selection to results/select-k.jsonl and skips those that are there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flameche.experiments.config import load_experiment
from flameche.experiments.protection import packages
from flameche.experiments.provenance import provenance
from flameche.experiments.select import described
from flameche.methods.selection import select_clusters
from flameche.training.device import choose_device
from flameche_reproduction.metadata_cache import cached_metadata, clustering_world
from flameche_reproduction.results_index import ResultsFile, describe_provenance, of_one_device

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SETS = ["mnist", "fashion-mnist", "cifar10", "pathmnist", "mednist28"]
SETTINGS = ["csl", "fds", "csf"]
MOST = 8
SESSION, EARLIER = "session", "held-out merging"  # the rule of now, and the one before: its lines are stored
TURNS = ["none", "rotate:90", "rotate:180", "rotate:270"]
SWAPPED = [f"{turn}+swap:1,7".removeprefix("none+") for turn in TURNS]
GROUPS = {  # rotations x swaps on MNIST
    2: TURNS[:2],
    3: [*TURNS[:2], SWAPPED[0]],
    6: [*TURNS, *SWAPPED[:2]],
    8: [*TURNS, *SWAPPED],
}
UNEVEN = {2: [33, 67], 3: [16, 33, 51], 6: [4, 9, 14, 19, 23, 31], 8: [4, 5, 8, 11, 13, 16, 19, 24]}


def cases() -> Iterator[tuple[str, str, list[str], int, int]]:
    """List the cases: part of the page, name, what is changed, the truth, how many seeds."""
    for name in SETS:
        for setting in SETTINGS:
            yield "sets", f"{name} {setting}", [f"{name}.toml", f"data.heterogeneity={setting}"], 4, 10
    for k, transforms in GROUPS.items():
        told = json.dumps(transforms)
        for kind, sizes in (("even", k), ("uneven", UNEVEN[k])):
            change = ["mnist.toml", f"data.groups={json.dumps(sizes)}", f"data.transforms={told}"]
            yield f"{kind} groups", f"mnist, {k} groups", change, k, 10
    for name in SETS:
        yield "no groups", f"{name}, none", [f"{name}.toml", "data.heterogeneity=none"], 1, 3
        skewed = [f"{name}.toml", "data.heterogeneity=none", "data.label_skew=true"]
        yield "no groups", f"{name}, label skew alone", skewed, 1, 1


def run(schemes: list[str], device: str, out: Path, cache: Path | None) -> None:
    """Choose K in every case that is not in `out` yet."""
    done = {(r["case"], r["part"], r["scheme"], r["seed"]) for r in read(out) if rule_of(r) == SESSION}
    for scheme in schemes:
        for part, case, (file, *changes), truth, seeds in cases():
            for seed in range(seeds if scheme == "plain" else min(seeds, 1)):
                if (case, part, scheme, seed) in done:
                    continue
                experiment = load_experiment(
                    ROOT / "experiments" / file, [*changes, f"scheme.kind={scheme}", "scheme.min_cluster=1"]
                )
                metadata, group = cached_metadata(experiment, seed, device, cache)
                world = clustering_world(experiment, seed, metadata, group)
                start = time.perf_counter()
                found = described(select_clusters(world, MOST))
                line = {"part": part, "case": case, "scheme": scheme, "seed": seed, "truth": truth, **found}
                line |= {"seconds": round(time.perf_counter() - start, 2)}
                line["bytes_up"] = int(world.ledger.per_client("up").sum())
                ResultsFile(out).add({**line, **provenance(device, packages(experiment))})
                print(case, part, scheme, seed, truth, line["k"], line["clear"], flush=True)


def read(file: Path) -> list[dict]:
    """Read the lines that are there."""
    return ResultsFile(file).read()


def rule_of(line: dict) -> str:
    """Tell by which rule K was chosen."""
    return line.get("rule", EARLIER)


HEAD = f"""\
# How many clusters?

Made by `python reproduction/studies/select_table.py run` and `... table` from `select-k.jsonl`: 100
clients, K from 1 to {MOST}, from metadata alone, before any training; everything comes from the seed.
Rules: *session*, as now; *held-out merging*, as it was before, by clients that had no part in the
clustering. *found*: runs in which the rule chose the true K; beside it the same for the paper's criterion
(Davies-Bouldin) and for Calinski-Harabasz, which cannot say K = 1; the session's are of its sketch.
*clear*: runs that called their choice clear; in brackets those of them that were wrong. Under "uneven"
the smallest groups have 4 of 100 clients.
"""


def table(records: list[dict]) -> str:
    """Write the page."""
    lines = [HEAD]
    for part in dict.fromkeys(r["part"] for r in records):
        lines += ["", f"## {part[0].upper()}{part[1:]}", ""]
        lines += ["| rule | case | true K | runs | found | clear | DBI | CH | chosen otherwise |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        here = [r for r in records if r["part"] == part and r["scheme"] == "plain"]
        for rule in (SESSION, EARLIER):
            plain = [r for r in here if rule_of(r) == rule]
            for case in dict.fromkeys(r["case"] for r in plain):
                lines.append(row(rule, case, [r for r in plain if r["case"] == case]))
            if plain:
                lines.append(row(rule, "**all**", plain))
    sealed = [r for r in records if r["scheme"] != "plain"]
    if sealed:
        lines += [
            "",
            "## Under encryption",
            "",
            "Seed 0 of each case that was run: is it the choice in the clear?",
            "",
        ]
        lines += [
            "| rule | scheme | cases | same K | seconds: median | MB up: median |",
            "|---|---|---|---|---|---|",
        ]
        plain = [r for r in records if r["scheme"] == "plain"]
        clear = {(rule_of(r), r["part"], r["case"], r["seed"]): r["k"] for r in plain}
        for rule, scheme in dict.fromkeys((rule_of(r), r["scheme"]) for r in sealed):
            mine = [r for r in sealed if (rule_of(r), r["scheme"]) == (rule, scheme)]
            same = sum(clear.get((rule, r["part"], r["case"], r["seed"])) == r["k"] for r in mine)
            _, timed = of_one_device(mine)
            seconds = np.median([r["seconds"] for r in timed])
            lines.append(
                f"| {rule} | {scheme} | {len(mine)} | {same} | {seconds:.0f} "
                f"| {np.median([r['bytes_up'] for r in mine]) / 1e6:.1f} |"
            )
    return "\n".join([*lines, "", describe_provenance(records)]) + "\n"


def row(rule: str, case: str, some: list[dict]) -> str:
    """Write one row."""
    truth = {r["truth"] for r in some}
    good = sum(r["k"] == r["truth"] for r in some)
    clear = [r for r in some if r["clear"] != "close"]
    wrong = sum(r["k"] != r["truth"] for r in clear)
    others = [sum(r["preferred"][key] == r["truth"] for r in some) for key in ("dbi", "ch")]
    odd = ", ".join(f"seed {r['seed']}: {r['k']}" for r in some if r["k"] != r["truth"] and case != "**all**")
    cells = [rule, case, str(truth.pop()) if len(truth) == 1 else "", str(len(some)), str(good)]
    cells += [f"{len(clear)} ({wrong})", *map(str, others), odd]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--schemes", nargs="+", default=["plain", "bfv", "secagg"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS / "select-k.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        run(options.schemes, choose_device(options.device), options.out, options.cache)
    else:
        (RESULTS / "select-k.md").write_text(table(read(options.out)))
        print(RESULTS / "select-k.md")
