"""Makes results/dropouts.md: secure aggregation among 100 clients of whom some drop out, at random.

    python reproduction/studies/dropouts.py [--schedules 1500] [--seed 0]

A schedule says how many clients vanish (up to half of them), who, and before which step each; in every fourth
one they all vanish before the same step. Each is played with real keys, masks and shares, on the full graph
and on the sparse one. It must end in the exact sum of those whose masked vectors arrived, or in an abort; on
the full graph which of the two is known beforehand.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import numpy as np
from clustering_table import RESULTS

from flameche.crypto.secagg import Abort, aggregate
from flameche.crypto.secagg.driver import STEPS
from flameche.rng import stream

CLIENTS, LENGTH = 100, 3
STAYS = len(STEPS)
FULL = "full graph"
SHARES = {"up to 10": 10, "11 to 33": CLIENTS // 3, "34 to 50": CLIENTS}
GRAPHS = {FULL: CLIENTS - 1, "SecAgg+ graph": None}  # neighbours; None: as many as the library takes


def fates(rng: np.random.Generator) -> np.ndarray:
    """Draw the step before which each client vanishes [C]; STAYS for those who do not."""
    fate = np.full(CLIENTS, STAYS)
    who = rng.choice(CLIENTS, size=rng.integers(0, CLIENTS // 2, endpoint=True), replace=False)
    together = rng.random() < 0.25
    fate[who] = rng.integers(STAYS) if together else rng.integers(0, STAYS, len(who))
    return fate


def play(graph: str, fate: np.ndarray, rng: np.random.Generator) -> str:
    """Play one schedule; tell how it ended."""
    vectors = rng.integers(-(10**9), 10**9, (CLIENTS, LENGTH))
    gone = {step: np.flatnonzero(fate == s).tolist() for s, step in enumerate(STEPS)}
    threshold = 2 * CLIENTS // 3 + 1
    enough = (fate == STAYS).sum() >= threshold
    try:
        total, survivors, _ = aggregate(vectors, neighbours=GRAPHS[graph], dropouts=gone)
    except Abort:
        return "WRONG: aborted with enough clients" if graph == FULL and enough else "abort"
    arrived = np.flatnonzero(fate >= STEPS.index("unmask"))
    if survivors != arrived.tolist() or not np.array_equal(total, vectors[arrived].sum(axis=0)):
        return "WRONG: not the sum of the survivors"
    return "WRONG: a sum below the threshold" if graph == FULL and not enough else "exact sum"


def main() -> int:
    """Play the schedules and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=1500, help="on each graph")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = [
        "# Dropouts in secure aggregation",
        "",
        f"Made by `python reproduction/studies/dropouts.py --schedules {options.schedules} "
        f"--seed {options.seed}`: {CLIENTS} clients,",
        "up to half of them vanish, each before a random step or all before the same one.",
        "The SecAgg+ graph is laid out for a tenth that vanish.",
        "",
        "| graph | vanish | schedules | exact sum | abort | wrong | CPU s each |",
        "|---|---|---|---|---|---|---|",
    ]
    wrong = 0
    for graph in GRAPHS:
        start, ends = time.process_time(), {share: Counter[str]() for share in SHARES}
        for number in range(options.schedules):
            rng = stream(options.seed, "dropouts", graph, number)
            fate = fates(rng)
            share = next(name for name, most in SHARES.items() if (fate < STAYS).sum() <= most)
            end = play(graph, fate, rng)
            ends[share]["wrong" if end.startswith("WRONG") else end] += 1
            if end.startswith("WRONG"):
                print(graph, number, end, file=sys.stderr)
            if number % 50 == 49:
                print(graph, number + 1, {s: dict(count) for s, count in ends.items()}, flush=True)
        each = (time.process_time() - start) / options.schedules
        for share, count in ends.items():
            cells = [count.total(), count["exact sum"], count["abort"], count["wrong"], f"{each:.2f}"]
            lines.append(f"| {graph} | {share} | " + " | ".join(map(str, cells)) + " |")
            wrong += count["wrong"]
    (RESULTS / "dropouts.md").write_text("\n".join([*lines, ""]))
    print(RESULTS / "dropouts.md")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
