"""A large federation of `bench cluster`: runs rounds on planted metadata, prints times and memory as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from flameche.crypto.plain import Plain
from flameche.metadata.extractors import ClientSamples, Metadata
from flameche.methods import METHODS, make_method
from flameche.methods.base import UNSEEN, Method, World
from flameche.protocol.ledger import Ledger
from flameche.rng import stream
from flameche.simulation.schedule import draw_participants
from flameche.training.trainer import NoTrainer
from flameche_benchmarks.machine import memory_used

BLOCKS, STEP = 10, 10_000  # clients whose metadata are drawn at once
SHARE = 100  # one in a hundred takes part


def planted_metadata(clients: int, groups: int, features: int) -> tuple[Metadata, np.ndarray[Any, Any]]:
    """Draw metadata of groups in a narrow cone."""
    rng = stream(0, "bench", "large")
    group = np.arange(clients) % groups
    centres = 1.0 + 0.5 * rng.random((groups, BLOCKS, features))
    phi = np.empty((clients, BLOCKS, features))
    for a in range(0, clients, STEP):
        phi[a : a + STEP] = centres[group[a : a + STEP]]
        phi[a : a + STEP] += 0.2 * rng.random((len(phi[a : a + STEP]), BLOCKS, features))
    return Metadata(phi, np.full((clients, BLOCKS), 50)), group


def _no_samples() -> ClientSamples:
    raise AssertionError("metadata are given")


def run_rounds(case: dict[str, Any]) -> dict[str, Any]:
    """Run the rounds; return seconds and memory of each, and the ARI of the clusters."""
    clients, here = case["clients"], [os.getpid()]
    metadata, group = planted_metadata(clients, case["clusters"], case["features"])
    before = memory_used(here)
    start = time.perf_counter()
    world = World(
        clients=clients,
        rounds=10 * case["rounds"],  # so that no round is the last, which is another
        seed=0,
        trainer=NoTrainer(np.full(clients, 10)),
        ledger=Ledger(clients),
        scheme=Plain(),
        extract=lambda: metadata,
        samples=_no_samples,
        group=group,
        min_cluster=case["least"],
        known_metadata=metadata,
    )
    options = {"clusters": case["clusters"], "mode": case.get("mode", "sketch")}
    method: Method = make_method(METHODS["flameche"].Options(kind="flameche", **options), world)
    setup = time.perf_counter() - start
    seconds: list[float] = []
    held: list[float] = []
    for r in range(1, case["rounds"] + 1):
        chosen = draw_participants(0, r, clients, max(1, clients // SHARE))
        start = time.perf_counter()
        method.round(r, chosen)
        seconds.append(time.perf_counter() - start)
        held.append(memory_used(here) / 1e6)
    seen = method.assignment != UNSEEN
    return {
        "setup_s": setup,
        "seconds": seconds,
        "metadata_mb": before / 1e6,
        "memory_mb": held,
        "seen": int(seen.sum()),
        "ari": float(adjusted_rand_score(group[seen], method.assignment[seen])) if seen.any() else None,
    }


if __name__ == "__main__":
    print(json.dumps(run_rounds(json.loads(sys.argv[1]))))
