"""Few sites under encryption: are the clusters right, and what was opened for it?

python reproduction/studies/few_sites.py play [--schemes bfv secagg paillier] [--seeds 10]  # without training
python reproduction/studies/few_sites.py table  # results/few-sites.md

Appends a line for each clustering to results/few-sites.jsonl; what is there already is not played again.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flameche.experiments.config import parse_experiment
from flameche.experiments.provenance import provenance
from flameche.experiments.run import cluster_experiment
from flameche_reproduction.results_index import ResultsFile

LINES, TABLE = ResultsFile(Path("results/few-sites.jsonl")), Path("results/few-sites.md")
SIZES = [
    *([3, 3], [4, 4], [5, 3], [6, 6], [9, 3], [8, 8], [7, 9], [4, 12], [10, 10], [17, 3], [12, 12], [20, 4]),
    *([4, 4, 4], [6, 3, 3], [6, 5, 5], [9, 4, 3], [7, 7, 6], [12, 5, 3], [8, 8, 8], [14, 7, 3]),
    *([3, 3, 3, 3], [4, 4, 4, 4], [7, 3, 3, 3], [5, 5, 5, 5], [8, 6, 3, 3], [6, 6, 6, 6], [9, 7, 5, 3]),
    *([2, 2, 2], [4, 2, 2], [10, 6, 3, 2]),  # with groups that no sum may be opened over
]
IMAGES = 125  # of each class that digits has for all clients together
FEW = 5  # images of a class at each client, the harder case
SETTINGS = ("csl", "csf")
SHARES = (1.0, 0.5)  # of the clients that take part in each round
INTRODUCTION = """\
# Few sites, many schemes

All of digits, dealt evenly (20 images a class at each of 6 clients, 5 at each of 24); the default mode and
guard (`scheme.min_cluster = 3`); three rounds without training, with all clients or half of them in each
round. Each cell: in how many runs every client is in the right cluster at the end (ARI 1.00), over seeds
and both shares. *5 images*: the same with 5 images a class, however few the clients. Groups of two cannot
be found with that guard: of the last three rows no run can be right, and `noted` counts the runs whose
notes say that fewer clusters were told apart than asked for. `sums`: the most sums opened in any run;
`solved`: the clients whose metadata the audit could solve, in the worst case over parties and runs.

Made by `python reproduction/studies/few_sites.py play`, then `table`.
"""
WRONG = """
The wrong runs with all of digits are four federations, each under both shares and under BFV and secure
aggregation. In all four a cut goes through a group: a histogram of few clients has few bins. What would mend
it, an M-step over the few clients that move, the guard does not open, for it would show these alone.

- 20, 4 csl, seed 6: the first cut puts one of the twenty with the four, and a leaf of five is not cut again.
  This client leaves in the next assignment; another of the twenty is drawn to the mean that still holds it,
  and stays there, since new sums would differ by two clients.
- 12, 5, 3 csl, seed 8: the first cut parts the three, two of them with one of the twelve, one with the five,
  whose next cut parts these too. Two of the three find the third, and the five stay in two clusters.
- 7, 3, 3, 3 csf, seed 8: a leaf of two groups of three is cut into three and three, two of one and one of the
  other to each side. One client moves, and that is all.
- 8, 6, 3, 3 csf, seed 7: a leaf of eight and three is cut into four and seven with clients of both on both
  sides. Three of the four move; the one that is left keeps the cluster.
"""
LEAST = 3  # clients in a group that can be found


def experiment(
    sizes: Sequence[int], setting: str, scheme: str, choose: bool, share: float, images: int = FEW
) -> Any:
    """Describe one federation; each client has so many images of a class."""
    return parse_experiment(
        {
            "name": "few-sites",
            "rounds": 3,
            "participation": share,
            "data": {
                "dataset": "digits", "clients": sum(sizes), "groups": list(sizes), "per_label": images,
                "heterogeneity": setting,
            },
            "method": {"clusters": "auto" if choose else len(sizes)},
            "scheme": {"kind": scheme, "min_cluster": LEAST, "key_bits": 2048},
        }
    )  # fmt: skip


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """Name a clustering."""
    return (
        tuple(line["sizes"]),
        *(line[name] for name in ("setting", "scheme", "choose", "share", "images", "seed")),
    )


def play(schemes: Sequence[str], seeds: Sequence[int], choose: bool, few: bool) -> None:
    """Play what is not stored yet."""
    known = {key(line) for line in LINES.read()}
    made_by = provenance("cpu")
    for scheme, seed, setting, share in itertools.product(schemes, seeds, SETTINGS, SHARES):
        for sizes in SIZES:
            about = {"sizes": sizes, "setting": setting, "scheme": scheme, "choose": choose, "share": share}
            about["images"] = FEW if few else min(20, IMAGES // sum(sizes))
            if key({**about, "few": few, "seed": seed}) in known:
                continue
            found = cluster_experiment(experiment(**about), seed)
            leak = found["leakage"]
            LINES.add(
                {
                    **about,
                    "few": few,
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
            )
        print(scheme, "seed", seed, setting, share, "done", flush=True)


def table() -> str:
    """Write the table of what is stored."""
    rows: dict[tuple[int, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in LINES.read():
        if not line["choose"]:
            rows[tuple(line["sizes"])].append(line)
    columns = sorted(
        {(line["few"], line["scheme"], line["setting"]) for each in rows.values() for line in each}
    )
    names = [f"{scheme} {setting}{', 5 images' if few else ''}" for few, scheme, setting in columns]
    head = ["clients", "groups", *names, "noted", "sums", "solved"]
    text = [INTRODUCTION, "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    possible: dict[bool, list[bool]] = {False: [], True: []}
    for sizes in SIZES:
        if not (found := rows.get(tuple(sizes))):
            continue
        cells = []
        for few, *column in columns:
            some = [
                line["ari"] == 1.0
                for line in found
                if line["few"] == few and [line["scheme"], line["setting"]] == column
            ]
            cells.append(f"{sum(some)} of {len(some)}" if some else "–")
            possible[few] += some if min(sizes) >= LEAST else []
        noted = f"{sum(line['noted'] for line in found)} of {len(found)}"
        worst = [str(max(line[name] for line in found)) for name in ("sums", "solved")]
        text.append("| " + " | ".join([str(sum(sizes)), str(sizes)[1:-1], *cells, noted, *worst]) + " |")
    for few, right in possible.items():
        how = "with 5 images a class" if few else "with all of digits"
        text.append(
            f"\nRight where every group has three clients or more, {how}: {sum(right)} of {len(right)}."
        )
    text.append(WRONG.rstrip())
    chosen = [line for line in LINES.read() if line["choose"] and min(line["sizes"]) >= LEAST]
    if chosen:
        right = sum(line["k"] == len(line["sizes"]) for line in chosen)
        few = sum(line["k"] < len(line["sizes"]) for line in chosen)
        text.append(
            f'\nWith `clusters = "auto"` K was right in {right} of {len(chosen)}, too small in {few}, '
            f"too large in {len(chosen) - right - few}."
        )
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["play", "table"])
    parser.add_argument("--schemes", nargs="+", default=["bfv", "secagg", "paillier"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--auto", action="store_true", help="let the session choose K")
    parser.add_argument("--few", action="store_true", help="5 images a class, however few the clients")
    given = parser.parse_args()
    if given.what == "play":
        play(given.schemes, given.seeds, given.auto, given.few)
    else:
        TABLE.write_text(table())
        print(TABLE)
