"""Attacks on what is opened: solving sums, second moments, cluster means, membership of an image.

python -m experiments.attacks_table play [sums moments means membership] [--seeds 5]
python -m experiments.attacks_table table                                   # results/attacks.md

Appends a line for each run to results/attacks.jsonl; what is there already is not played again. The attacks
themselves are in tests/attacks.py, and small ones of each kind are played by the tests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flameche.em.spherical import statistics
from flameche.experiments.build import build
from flameche.experiments.config import parse_experiment
from flameche.experiments.leakage import audited
from flameche.experiments.provenance import provenance
from flameche.experiments.stored import Lines
from flameche.simulation.engine import simulate
from tests.attacks import Values

LINES, TABLE = Lines(Path("results/attacks.jsonl")), Path("results/attacks.md")
WITHIN = 1e-3  # by which a solved number may miss: a sum's rounding, a few times
LIVES: dict[str, tuple[list[int], int]] = {"8": ([4, 4], 1), "20": ([8, 7, 5], 5), "100": ([40, 40, 20], 20)}
CONTROLS = ("three, no guard", "8, no guard", "20, paper")


def life(case: str, scheme: str) -> Any:
    """Describe a federation that chooses K, of whom some join late, one drifts and one leaves."""
    sizes, late = LIVES[case]
    clients = sum(sizes)
    last = list(range(clients - late, clients))  # of the last group: whole where it has 5 or more
    events = [
        {"round": 4, "kind": "join", "clients": last},
        {"round": 8, "kind": "drift", "clients": [0], "to": 1},
        {"round": 8, "kind": "drift", "clients": [clients - 1], "to": 0},
        {"round": 10, "kind": "leave", "clients": [1]},
    ]
    data = {"dataset": "digits", "clients": clients, "groups": sizes, "heterogeneity": "csf"}
    return parse_experiment(
        {
            "name": "attacks", "rounds": 14, "participation": 1.0 if clients == 8 else 0.5,
            "data": {**data, "per_label": 1 if clients > 20 else 5, "label_skew": False},
            "method": {"clusters": "auto"}, "scheme": {"kind": scheme}, "events": events,
        }
    )  # fmt: skip


def control(case: str, scheme: str) -> Any:
    """Describe a federation in which the attack must succeed."""
    paper = case.endswith("paper")
    clients = {"three": 3, "8": 8, "20": 20}[case.partition(",")[0]]
    options = {"mode": "paper", "m_step": "participants"} if paper else {}
    return parse_experiment(
        {
            "name": "attacks", "rounds": 60 if paper else 3, "participation": 0.5 if paper else 1.0,
            "data": {"dataset": "digits", "clients": clients, "groups": 2, "per_label": 5},
            "method": {"clusters": 2, **options},
            "scheme": {"kind": scheme, "min_cluster": 3 if paper else 1},
        }
    )  # fmt: skip


def sums(case: str, scheme: str, seed: int) -> dict[str, Any]:
    """Play a federation's life, and solve what was opened for single clients."""
    own = life(case, scheme) if case in LIVES else control(case, scheme)
    setup = build(own, seed, device="cpu", training=False)
    log, method = Values(), setup.method
    if case.endswith("paper"):
        phi, counts = setup.world.metadata.phi, setup.world.metadata.presence
        log.listen_to_means(method.sums, statistics(phi, counts))
    else:
        log.listen(method)
    result = simulate(method, setup.world, own.participants, timeline=setup.timeline)
    members = [len(who) for _, who, _ in log.sums]
    everybody = sorted({i for _, who, _ in log.sums for i, _ in who})
    return {
        "clients": setup.world.clients,
        "k": method.clusters,
        "ari": round(result.ari, 4),
        "sessions": log.sessions,
        "sums": len(log.sums),
        "smallest": min(members, default=0),
        "solved": len(log.right(log.solve(), WITHIN)),
        "by_a_key_holder": log.pairs(WITHIN, everybody),
        "audit": {party: found.solved for party, found in audited(own, setup.world.ledger.openings,
                                                                  setup.world.clients).items()},
    }  # fmt: skip


PARTS: dict[str, tuple[Callable[[str, str, int], dict[str, Any]], list[tuple[str, str]]]] = {
    "sums": (sums, [(case, scheme) for case in (*LIVES, *CONTROLS) for scheme in ("bfv", "secagg")]),
}


def play(parts: Sequence[str], seeds: Sequence[int]) -> None:
    """Play what is not stored yet."""
    known = {(line["part"], line["case"], line["how"], line["seed"]) for line in LINES.read()}
    for part in parts:
        attack, cases = PARTS[part]
        for case, how in cases:
            for seed in seeds:
                if (part, case, how, seed) not in known:
                    found = attack(case, how, seed)
                    LINES.add(
                        {"part": part, "case": case, "how": how, "seed": seed, **found, **provenance("cpu")}
                    )
                    print(part, case, how, seed, found, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["play", "table"])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    play(given.parts, range(given.seeds))
