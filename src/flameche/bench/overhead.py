"""What clustering costs beyond FedAvg, for growing numbers of clients and clusters, and how fast it grows.

Every method plays the same rounds on planted clients; a fifth takes part in each, in turn, so that all have
been seen after five. Training is left out (`stand_in.py`): what remains is the method's own work and bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flameche.bench.machine import machine, packages
from flameche.bench.stand_in import CLASSES, SHAPE, StandInTrainer, planted_federation
from flameche.crypto.plain import Plain
from flameche.errors import BadInput
from flameche.metadata.extractors import ClientSamples, Metadata, class_means
from flameche.methods import METHODS
from flameche.methods.base import Ints, Method, World
from flameche.models.build import build_model
from flameche.models.features import FeatureExtractor
from flameche.protocol.ledger import Ledger
from flameche.training.device import prepare_torch

SERVER = ("clustering", "tuning", "encryption")  # parts of the ledger
SHARE = 5  # a fifth of the clients takes part in a round
OPTIONS: dict[str, dict[str, Any]] = {"ifca": {"restarts": 1}}  # its five are five times this
FIGURES = ("server_s", "client_ms", "once_ms", "trainings", "up_kb", "down_kb")
PATIENCE, REPEATS = 2.0, 3  # seconds after which a play is not repeated; the fastest counts

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True)
class Grid:
    """Sizes to measure: clients at `middle` clusters, clusters at `base` clients."""

    clients: tuple[int, ...] = (100, 200, 400, 800, 1600)
    clusters: tuple[int, ...] = (2, 4, 8, 16)
    base: int = 100
    middle: int = 4
    rounds: int = 10

    def points(self) -> list[tuple[int, int]]:
        """List the pairs (clients, clusters), each once."""
        pairs = [(n, self.middle) for n in self.clients] + [(self.base, k) for k in self.clusters]
        return list(dict.fromkeys(pairs))


def measure(methods: Sequence[str], grid: Grid, progress: Progress | None = None) -> dict[str, Any]:
    """Measure methods over a grid; give rows and growth exponents, ready for JSON."""
    prepare_torch("cpu", 1)
    kinds = [kind for kind in methods if kind != "fedavg"]
    if not kinds:
        raise BadInput("overhead is measured beyond FedAvg's; name another method")
    jobs = [(n, k, kind) for n, k in grid.points() for kind in kinds]
    for kind in kinds:
        _play(kind, 4 * SHARE, 2, SHARE)  # what is slow only the first time
    rows: list[dict[str, Any]] = []
    fedavg: dict[tuple[int, int], dict[str, float]] = {}
    for done, (n, k, kind) in enumerate(jobs):
        if progress:
            progress(f"{kind}, {n} clients, {k} clusters", done, len(jobs))
        if (n, k) not in fedavg:
            fedavg[n, k] = _fastest("fedavg", n, k, grid.rounds)
        rows.append(
            {
                "method": kind,
                "clients": n,
                "clusters": k,
                **_beyond(_fastest(kind, n, k, grid.rounds), fedavg[n, k]),
            }
        )
    growth = {
        kind: {
            "clients": _exponents(
                [r for r in rows if r["method"] == kind and r["clusters"] == grid.middle], "clients"
            ),
            "clusters": _exponents(
                [r for r in rows if r["method"] == kind and r["clients"] == grid.base], "clusters"
            ),
        }
        for kind in kinds
    }
    return {
        "machine": machine(),
        "versions": packages(),
        "rounds": grid.rounds,
        "rows": rows,
        "growth": growth,
    }


def _fastest(kind: str, clients: int, clusters: int, rounds: int) -> dict[str, float]:
    """Play a method up to three times, while that is quick; give the least of each cost."""
    start, found = time.perf_counter(), [_play(kind, clients, clusters, rounds)]
    while len(found) < REPEATS and time.perf_counter() - start < PATIENCE:
        found.append(_play(kind, clients, clusters, rounds))
    return {key: min(one[key] for one in found) for key in FIGURES}


def _play(kind: str, clients: int, clusters: int, rounds: int) -> dict[str, float]:
    """Play a method; give the costs of clustering: of the server, and of a client on average."""
    federation = planted_federation(clients, clusters)
    trainer = StandInTrainer(federation)
    samples = ClientSamples(
        federation.train.x, federation.train.y, federation.train.offsets, federation.classes
    )

    def extract() -> Metadata:
        model = build_model("lenet5", SHAPE, CLASSES, 0)
        return class_means(samples, FeatureExtractor(model, SHAPE, seed=0))

    world = World(
        clients=clients,
        rounds=rounds,
        seed=0,
        trainer=trainer,
        ledger=Ledger(clients, time.process_time),  # whoever else is on the machine
        scheme=Plain(),
        extract=extract,
        samples=lambda: samples,
        group=federation.group,
    )
    options = OPTIONS.get(kind, {}) | ({} if kind in ("fedavg", "oracle") else {"clusters": clusters})
    method: Method = METHODS[kind](world, **options)
    for r in range(1, rounds + 1):
        method.round(r, turn(clients, r))
    return _costs(world, trainer)


def turn(clients: int, r: int) -> Ints:
    """List the clients of round r: every fifth, from another one each time."""
    return np.arange(r % SHARE, clients, SHARE)


def _costs(world: World, trainer: StandInTrainer) -> dict[str, float]:
    parts = world.ledger.summary()

    each = {part: 1e3 * v / world.clients for part, v in parts["client_seconds"].items()}
    return {
        "server_s": float(sum(v for part, v in parts["server_seconds"].items() if part in SERVER)),
        "client_ms": each.get("clustering", 0.0),
        "once_ms": each.get("extraction", 0.0),
        "trainings": trainer.trainings / world.clients,
        "up_kb": float(world.ledger.per_client("up").mean()) / 1e3,
        "down_kb": float(world.ledger.per_client("down").mean()) / 1e3,
    }


def _beyond(cost: dict[str, float], base: dict[str, float]) -> dict[str, float]:
    return {key: cost[key] - base[key] for key in FIGURES}


def _exponents(rows: list[dict[str, Any]], by: str) -> dict[str, float | None]:
    return {key: growth([r[by] for r in rows], [r[key] for r in rows]) for key in FIGURES}


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """Fit cost = c size^a by least squares of logarithms; None where there is no cost, or one size."""
    if len(set(sizes)) < 2 or min(costs) <= 1e-9:
        return None
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
