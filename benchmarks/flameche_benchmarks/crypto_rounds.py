"""Measures what a scheme adds to a round of the protocol: the simulator's rounds, sealed and in the clear.

Clients hold synthetic metadata of LeNet-5's shape and train nothing, so clustering is all there is, in paper
mode: K sums are opened in every round. Each run is made in the clear and sealed, with the same schedule;
the difference is what the scheme adds.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from flameche.crypto.api import Scheme
from flameche.crypto.registry import make_scheme
from flameche.errors import ConfigError, SealError
from flameche.experiments.build import build
from flameche.experiments.config import Experiment, parse_experiment
from flameche.metadata.extractors import Metadata
from flameche.registry import SCHEMES
from flameche.rng import stream
from flameche.simulation.engine import simulate
from flameche_benchmarks.crypto_plan import BOUND, Plan, Row
from flameche_benchmarks.timing import time_call

BLOCKS, FEATURES = 10, 84  # LeNet-5 with ten classes: d = 840
GROUPS = 4
ROUNDS = 8  # the first with everybody's upload, the others without

NOTE = (
    "CPU time of server and participants together, one after another. The simulator opens each sum once for "
    "all; 'all open' counts it once for every participant. A real client seals and opens beside the others."
)


def round_row(kind: str, plan: Plan) -> Row:
    """Run federations in which all take part; return the CPU seconds that the scheme adds to a round."""
    n = plan.round_clients
    row: Row = {"scheme": kind, "d": BLOCKS * FEATURES, "participants": n, "clusters": GROUPS}
    try:
        scheme = make_scheme(kind, clients=n, bound=BOUND)
    except ConfigError as error:
        if isinstance(error.__cause__, ImportError):
            return {**row, "skipped": f"needs {SCHEMES[kind].needs}"}
        raise
    plain = make_scheme("plain", clients=n)
    experiment = _experiment(n)
    clear, sealed = [], []
    for seed in range(plan.round_runs):
        clear.append(_run(experiment, seed, plain))
        sealed.append(_run(experiment, seed, scheme))
        if clear[-1]["assignment"] != sealed[-1]["assignment"]:
            raise SealError(f"{kind}: clusters differ from those in the clear (seed {seed})")

    def added(clock: str, which: slice) -> float:
        """Return the median over runs and rounds of what sealing adds."""
        differences: list[float] = [
            s - c
            for one, other in zip(sealed, clear, strict=True)
            for s, c in zip(one[clock][which], other[clock][which], strict=True)
        ]
        return median(differences)

    first, steady = slice(0, 1), slice(1, None)
    again = (n - 1) * GROUPS * _opening(scheme) / 1e3
    return {
        **row,
        "skipped": None,
        "note": NOTE,
        "runs": plan.round_runs,
        "rounds": ROUNDS,
        "clear_s": {
            "first": median(c["cpu"][0] for c in clear),
            "steady": median(s for c in clear for s in c["cpu"][1:]),
        },
        "added_s": {"first": added("cpu", first), "steady": added("cpu", steady)},
        "added_wall_s": {"first": added("wall", first), "steady": added("wall", steady)},
        "added_each_s": {"first": added("cpu", first) + again, "steady": added("cpu", steady) + again},
    }


def _experiment(clients: int) -> Experiment:
    """Describe the runs; the data only name the clients and their groups, metadata are given."""
    data = {"dataset": "digits", "clients": clients, "groups": GROUPS, "per_label": 2}
    alike = {**data, "heterogeneity": "csf", "label_skew": False}
    return parse_experiment(
        {"name": "bench", "rounds": ROUNDS, "participation": 1.0, "data": alike, "method": {"mode": "paper"}},
        source="bench",
    )


def _metadata(clients: int, seed: int) -> Metadata:
    rng = stream(seed, "bench", "metadata")
    centres = 1.0 + 0.5 * rng.random((GROUPS, BLOCKS, FEATURES))
    noise = 0.05 * rng.random((clients, BLOCKS, FEATURES))
    return Metadata(centres[np.arange(clients) % GROUPS] + noise, np.full((clients, BLOCKS), 2))


def _run(experiment: Experiment, seed: int, scheme: Scheme) -> dict[str, Any]:
    """Run a federation; return CPU and wall seconds of each round, and the clusters."""
    clients = experiment.data.clients
    metadata = _metadata(clients, seed)
    setup = build(experiment, seed, device="cpu", training=False, metadata=metadata, scheme=scheme)
    cpu, wall = [time.process_time()], [time.perf_counter()]

    def on_round(record: dict[str, Any]) -> None:
        cpu.append(time.process_time())
        wall.append(time.perf_counter())

    simulate(setup.method, setup.world, clients, on_round=on_round)
    return {
        "cpu": np.diff(cpu).tolist(),
        "wall": np.diff(wall).tolist(),
        "assignment": setup.method.assignment.tolist(),
    }


def _opening(scheme: Scheme) -> float:
    """Time the opening of one cluster's sum, in milliseconds."""
    key = scheme.client_key()
    data = key.seal(np.ones(BLOCKS * FEATURES + BLOCKS + 1))
    return time_call(lambda: key.open(data), most=9, budget=1.0)[1]["cpu"]
