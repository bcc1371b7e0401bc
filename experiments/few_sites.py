"""Few sites under encryption: are the clusters right, and what was opened for it?

    python experiments/few_sites.py play [--schemes bfv secagg] [--seeds 10]    # clusterings, without training
    python experiments/few_sites.py table                                       # results/few-sites.md

Appends a line for each clustering to results/few-sites.jsonl; what is there already is not played again.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flameche.experiments.config import parse_experiment
from flameche.experiments.provenance import provenance
from flameche.experiments.run import cluster_experiment

STORED, TABLE = Path("results/few-sites.jsonl"), Path("results/few-sites.md")
SIZES = [
    *([3, 3], [4, 4], [6, 6], [7, 9], [4, 12], [8, 8], [10, 10], [12, 12]),
    *([3, 3, 3], [4, 4, 4], [10, 6, 4], [6, 6, 6], [3, 3, 3, 3], [4, 4, 4, 4], [5, 5, 5, 5], [6, 6, 6, 6]),
    [10, 6, 3, 2],
]
SETTINGS = ("csl", "csf")
INTRODUCTION = """Few sites: digits (5 images a class and client), the default mode, the default guard
(`scheme.min_cluster = 3`), every scheme's clusters before any training. Each cell: in how many of the seeds all clients
are in the right cluster (ARI 1.00). Groups of two clients cannot be found with that guard, which the run's notes say;
that row is below the line. `sums`: opened sums, most of any run; `solved`: clients whose metadata the audit could solve,
in the worst case over parties and runs. Made by `python experiments/few_sites.py play`, then `table`.
"""


def experiment(sizes: Sequence[int], setting: str, scheme: str, choose: bool) -> Any:
    """Describe one federation."""
    return parse_experiment(
        {
            "name": "few-sites",
            "rounds": 1,
            "participation": 0.5,
            "data": {
                "dataset": "digits", "clients": sum(sizes), "groups": list(sizes), "per_label": 5,
                "heterogeneity": setting,
            },
            "method": {"clusters": "auto" if choose else len(sizes)},
            "scheme": {"kind": scheme, "key_bits": 2048},
        }
    )  # fmt: skip


def lines() -> list[dict[str, Any]]:
    """Read what is stored."""
    return [json.loads(line) for line in STORED.read_text().splitlines()] if STORED.exists() else []


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """Name a clustering."""
    return (tuple(line["sizes"]), line["setting"], line["scheme"], line["choose"], line["seed"])


def play(schemes: Sequence[str], seeds: int, choose: bool) -> None:
    """Play what is not stored yet."""
    known = {key(line) for line in lines()}
    made_by = provenance("cpu")
    for scheme in schemes:
        for setting in SETTINGS:
            for sizes in SIZES:
                for seed in range(seeds):
                    about = {"sizes": sizes, "setting": setting, "scheme": scheme, "choose": choose}
                    if key({**about, "seed": seed}) in known:
                        continue
                    found = cluster_experiment(experiment(sizes, setting, scheme, choose), seed)
                    leak = found["leakage"]
                    line = {
                        **about,
                        "seed": seed,
                        "k": found["k"],
                        "ari": round(found["ari_final"], 4),
                        "sums": leak["client"]["sums"],
                        "numbers": leak["client"]["numbers_per_client"],
                        "over_fewer": leak["client"]["numbers_over_fewer"],
                        "leverage": round(leak["client"]["leverage"], 4),
                        "solved": max(party["solved"] for party in leak.values()),
                        "noted": any("told apart" in note for note in found["notes"]),
                        **made_by,
                    }
                    with STORED.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            print(scheme, setting, "done", flush=True)


def table() -> str:
    """Write the table of what is stored."""
    rows: dict[tuple[int, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines():
        if not line["choose"]:
            rows[tuple(line["sizes"])].append(line)
    columns = sorted({(line["scheme"], line["setting"]) for each in rows.values() for line in each})
    head = ["clients", "groups", *(f"{scheme} {setting}" for scheme, setting in columns), "sums", "solved"]
    text = [INTRODUCTION, "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    total = [0, 0]
    for sizes in SIZES:
        if not (found := rows.get(tuple(sizes))):
            continue
        cells = []
        for column in columns:
            some = [line for line in found if (line["scheme"], line["setting"]) == column]
            right = sum(line["ari"] == 1.0 for line in some)
            cells.append(f"{right} of {len(some)}" if some else "–")
            if min(sizes) >= 3:
                total[0], total[1] = total[0] + right, total[1] + len(some)
        worst = [str(max(line[name] for line in found)) for name in ("sums", "solved")]
        text.append("| " + " | ".join([str(sum(sizes)), str(sizes)[1:-1], *cells, *worst]) + " |")
    text.append(f"\nRight where every group has three clients or more: {total[0]} of {total[1]}.")
    chosen = [line for line in lines() if line["choose"] and min(line["sizes"]) >= 3]
    if chosen:
        right = sum(line["k"] == len(line["sizes"]) for line in chosen)
        few = sum(line["k"] < len(line["sizes"]) for line in chosen)
        text.append(
            f'\nWith `clusters = "auto"` K was right in {right} of {len(chosen)}, too small in {few}, too large '
            f"in {len(chosen) - right - few}."
        )
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["play", "table"])
    parser.add_argument("--schemes", nargs="+", default=["bfv", "secagg"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--auto", action="store_true", help="let the session choose K")
    given = parser.parse_args()
    if given.what == "play":
        play(given.schemes, given.seeds, given.auto)
    else:
        TABLE.write_text(table())
        print(TABLE)
