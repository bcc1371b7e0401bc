"""What clustering costs: bytes, numbers opened, seconds and memory, without training.

python reproduction/studies/session_cost.py play [--mode sketch] [--cases demo mnist ...] [--seeds 0 1 2]
python reproduction/studies/session_cost.py table  # results/session-cost.md

Appends a line for each case, mode and seed to results/session-cost.jsonl; what is there already is not
played again. A mode that the code has no more keeps the lines that an earlier commit made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from flameche.experiments.build import build, build_method, build_world, extract_metadata, load_federation
from flameche.experiments.config import parse_experiment
from flameche.experiments.demo import DESCRIPTION
from flameche.experiments.leakage import audited
from flameche.experiments.provenance import provenance
from flameche.privacy.audit import Opening
from flameche.protocol.ledger import Ledger
from flameche.simulation.engine import simulate
from flameche_benchmarks.large_federation import run_rounds as run_large
from flameche_reproduction.results_index import ResultsFile

LINES, TABLE = ResultsFile(Path("results/session-cost.jsonl")), Path("results/session-cost.md")
MNIST = {"dataset": "mnist", "clients": 100, "groups": 4, "per_label": 50, "holdout": 0.3}
LARGE = {"clients": 100_000, "clusters": 16, "features": 84, "rounds": 60, "least": 3}
ROUNDS = 100
SAME_TERMS = ("metadata", "means")  # names of sums whose terms do not change


def experiment(case: str, mode: str) -> Any:
    """Describe one federation."""
    method = {"clusters": 4, "mode": mode}
    if case.startswith("demo"):
        scheme = {"kind": "bfv", "min_cluster": 1 if "no guard" in case else 3}
        return parse_experiment({**DESCRIPTION, "method": method, "scheme": scheme})
    digits, name = case.startswith("digits"), case.rpartition(" ")[2]
    scheme = {"clear": "plain", "secagg": "secagg"}.get(name, "bfv")
    data = {"dataset": "digits", "clients": 20, "groups": 2, "per_label": 5} if digits else MNIST
    return parse_experiment(
        {
            "name": "session-cost",
            "rounds": ROUNDS,
            "participation": 0.5 if digits else 0.2,
            "data": data,
            "method": {**method, "clusters": "auto" if "auto" in case else 2 if digits else 4},
            "scheme": {"kind": scheme, "min_cluster": 3},
        }
    )


def played(case: str, mode: str, seed: int) -> dict[str, Any]:
    """Cluster one federation, and count."""
    own = experiment(case, mode)
    _, world = build_world(own, seed, device="cpu", training=False)
    ledger, clients = world.ledger, world.clients
    log = listen(ledger)
    result = simulate(build_method(own, world), world, own.participants)  # may choose K first
    summary = ledger.summary()
    found = audited(own, ledger.openings, clients)
    return {
        "ari": round(result.ari_final, 4),
        **{way: {k: v for k, v in summary[way].items() if v and k != "model"} for way in ("up", "down")},
        "sums": len(log),
        "numbers": opened_of_one(log, clients + 1),
        "over_fewer": opened_of_one(log, clients),
        "over_fewer_than_largest": opened_of_one(log, max(len(each.clients) for each in log)),
        "solved": {party: leak.solved for party, leak in found.items()},
        "held_back": sum(ledger.held_back.values()),
    }


def listen(ledger: Ledger) -> list[Opening]:
    """Log every sum that is opened from now on; one of the same terms of the same clients once.

    The ledger notes all sums of one name over the same clients once; but a phase's sums, say of second
    moments along another direction, are other numbers each time.
    """
    log: list[Opening] = []
    seen: set[Any] = set()
    note = ledger.opened

    def heard(what: str, clients: Any, numbers: int, version: Any, kind: str = "sum", *more: Any) -> None:
        note(what, clients, numbers, version, kind, *more)
        key = (what, tuple(clients.tolist()), tuple(version.tolist()))
        if what not in SAME_TERMS or key not in seen:
            seen.add(key)
            log.append(Opening(ledger.round, what, kind, key[1], numbers))

    ledger.opened = heard  # type: ignore[method-assign]
    return log


def opened_of_one(openings: Sequence[Opening], below: int) -> int:
    """Count the numbers of one client opened in sums over fewer than so many, of whom there are most."""
    count: Counter[int] = Counter()
    for each in openings:
        if len(each.clients) < below:
            count.update(dict.fromkeys(each.clients, each.numbers))
    return max(count.values(), default=0)


def timed(case: str, mode: str, seed: int) -> dict[str, Any]:
    """Cluster 100 clients for 100 rounds in the clear; CPU seconds without extraction, median of 5."""
    own = experiment(case, mode)
    metadata = extract_metadata(own, load_federation(own, seed)[0], seed, "cpu")
    seconds = []
    for _ in range(5):
        setup = build(own, seed, device="cpu", training=False, metadata=metadata)
        start = time.process_time()
        result = simulate(setup.method, setup.world, own.participants)
        seconds.append(time.process_time() - start)
    return {"ari": round(result.ari_final, 4), "seconds": round(median(seconds), 3)}


def large(case: str, mode: str, seed: int) -> dict[str, Any]:
    """Play rounds of 1,000 of 100,000 clients with made metadata; seconds and memory, round by round."""
    found = run_large({**LARGE, "mode": mode})
    seconds, held = found["seconds"], found["memory_mb"]
    return {
        "ari": round(found["ari"], 4),
        "setup_s": round(found["setup_s"], 2),
        "first_s": round(seconds[0], 3),
        "median_s": round(median(seconds[1:]), 4),
        "slowest_s": round(max(seconds[1:]), 4),
        "metadata_mb": round(found["metadata_mb"]),
        "memory_mb": [round(held[r]) for r in (0, 1, 9, 29, len(held) - 1)],
    }


CASES: dict[str, Callable[[str, str, int], dict[str, Any]]] = {
    "demo": played,
    "demo, no guard": played,
    "digits 20": played,
    "digits 20, secagg": played,
    "digits 20, auto, secagg": played,
    "digits 20, auto, bfv": played,
    "mnist": played,
    "mnist, secagg": played,
    "mnist in the clear": timed,
    "100,000 clients": large,
}


def play(cases: Sequence[str], mode: str, seeds: Sequence[int]) -> None:
    """Play what is not stored yet; each case in a process of its own, whose memory is nobody else's."""
    known = {(line["case"], line["mode"], line["seed"]) for line in LINES.read()}
    for case in cases:
        for seed in seeds:
            if (case, mode, seed) in known:
                continue
            subprocess.run(
                [sys.executable, __file__, "one", "--mode", mode, "--cases", case, "--seeds", str(seed)],
                check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip


def one(case: str, mode: str, seed: int) -> None:
    """Play one case and store its line."""
    found = CASES[case](case, mode, seed)
    LINES.add({"case": case, "mode": mode, "seed": seed, **found, **provenance("cpu")})
    print(case, mode, seed, found, flush=True)


INTRODUCTION = """\
# What clustering costs

Digits and MNIST without training; made metadata where it says so. `robust` is the default mode of the earlier
version, measured before it was deleted, at the commits that the lines name. Under `bfv` and in the clear
with `scheme.min_cluster = 3` unless it says "no guard" (as the demo ran in the earlier version).
Medians over seeds.

Made by `python reproduction/studies/session_cost.py play`, then `table`.
"""


def table() -> str:
    """Write the tables of what is stored."""
    by: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in LINES.read():
        by[line["case"], line["mode"]].append(line)
    text = [INTRODUCTION, "## Bytes and opened numbers\n"]
    text += [
        "MB: of all clients together, up and down. Numbers: of one client, the one of whom most were opened; "
        "in all sums, in those over fewer than all clients, and in those over fewer than the largest sum of "
        "the run (of more than 60 clients only some hold a session).\n",
        "| case | mode | seeds | ARI | MB up | MB down | MB | sums | numbers | over fewer than all | "
        "fewer than largest |",
        "|" + " --- |" * 11,
    ]
    for (case, mode), lines in sorted(by.items()):
        if "up" in lines[0]:
            up, down = (median(sum(line[way].values()) for line in lines) / 1e6 for way in ("up", "down"))
            counts = ("sums", "numbers", "over_fewer", "over_fewer_than_largest")
            some = [f"{round(median(line[name] for line in lines)):,}" for name in counts]
            cells = [case, mode, len(lines), aris(lines), f"{up:.1f}", f"{down:.1f}", f"{up + down:.1f}"]
            text.append("| " + " | ".join(map(str, [*cells, *some])) + " |")
    text += [
        "\n## 100 clients, 100 rounds, in the clear\n",
        "CPU seconds without data and extraction, one thread.\n",
    ]
    text += ["| mode | seeds | ARI | CPU s |", "|" + " --- |" * 4]
    for (case, mode), lines in sorted(by.items()):
        if case == "mnist in the clear":
            seconds = median(line["seconds"] for line in lines)
            text.append(f"| {mode} | {len(lines)} | {aris(lines)} | {seconds:.2f} |")
    text += ["\n## 100,000 clients, 16 groups, 1% a round, made metadata, in the clear\n"]
    text += ["| mode | ARI | first round, s | a round after, s | slowest | MB of metadata | "
             "MB in rounds 1, 2, 10, 30, 60 |", "|" + " --- |" * 7]  # fmt: skip
    for (case, mode), lines in sorted(by.items()):
        if case == "100,000 clients":
            line = lines[0]
            held = ", ".join(f"{mb:,}" for mb in line["memory_mb"])
            cells = [mode, line["ari"], line["first_s"], line["median_s"], line["slowest_s"]]
            text.append("| " + " | ".join(map(str, [*cells, f"{line['metadata_mb']:,}", held])) + " |")
    return "\n".join(text) + "\n"


def aris(lines: Sequence[dict[str, Any]]) -> str:
    """Tell the lowest ARI of some runs."""
    return f"{np.min([line['ari'] for line in lines]):.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["play", "one", "table"])
    parser.add_argument("--mode", default="sketch")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    if given.what == "play":
        play(given.cases, given.mode, given.seeds)
    elif given.what == "one":
        one(given.cases[0], given.mode, given.seeds[0])
    else:
        TABLE.write_text(table())
        print(TABLE)
