"""What clustering costs beyond FedAvg, for growing numbers of clients and clusters, and how fast it grows.

Every method runs the same rounds on planted clients; a fifth takes part in each, in turn, so that all have
been seen after five. Training is left out (`stand_in_training.py`): what remains is the method's own work and
bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flameche.crypto.plain import Plain
from flameche.errors import BadInput
from flameche.metadata.extractors import ClientSamples, Metadata, class_means
from flameche.methods import METHODS
from flameche.methods.base import Ints, Method, World
from flameche.models.build import build_model
from flameche.models.features import FeatureExtractor
from flameche.protocol.ledger import Ledger
from flameche.training.device import prepare_torch
from flameche_benchmarks.crypto_tables import TextTable, markdown_table
from flameche_benchmarks.machine import describe_machine, package_versions
from flameche_benchmarks.stand_in_training import CLASSES, SHAPE, StandInTrainer, planted_federation

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
    """Measure methods over a grid; return rows and growth exponents, ready for JSON."""
    prepare_torch("cpu", 1)
    kinds = [kind for kind in methods if kind != "fedavg"]
    if not kinds:
        raise BadInput("overhead is measured beyond FedAvg's; name another method")
    jobs = [(n, k, kind) for n, k in grid.points() for kind in kinds]
    for kind in kinds:
        _run(kind, 4 * SHARE, 2, SHARE)  # what is slow only the first time
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
    growth_exponent = {
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
        "machine": describe_machine(),
        "versions": package_versions(),
        "rounds": grid.rounds,
        "rows": rows,
        "growth": growth_exponent,
    }


def _fastest(kind: str, clients: int, clusters: int, rounds: int) -> dict[str, float]:
    """Run a method up to three times, while that is quick; return the lowest value of each cost."""
    start, found = time.perf_counter(), [_run(kind, clients, clusters, rounds)]
    while len(found) < REPEATS and time.perf_counter() - start < PATIENCE:
        found.append(_run(kind, clients, clusters, rounds))
    return {key: min(one[key] for one in found) for key in FIGURES}


def _run(kind: str, clients: int, clusters: int, rounds: int) -> dict[str, float]:
    """Run a method; return the costs of clustering: of the server, and of an average client."""
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
        method.round(r, participants_of(clients, r))
    return _costs(world, trainer)


def participants_of(clients: int, r: int) -> Ints:
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
    return {key: growth_exponent([r[by] for r in rows], [r[key] for r in rows]) for key in FIGURES}


def growth_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """Fit cost = c size^a by least squares of logarithms; None where there is no cost, or one size."""
    if len(set(sizes)) < 2 or min(costs) <= 1e-9:
        return None
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


# The paper's complexity table as exponents of (N, K), per family; n is a fixed share of N, and what it gives
# per client is meant per client. None: no cost beyond FedAvg's.
Power = tuple[int, int] | None
PAPER: dict[str, dict[str, Power]] = {
    "server-side": {"server_s": (2, 0), "client_ms": None, "up_kb": None, "down_kb": None},
    "client-side": {"server_s": None, "client_ms": (0, 1), "up_kb": None, "down_kb": (0, 1)},
    "metadata": {"server_s": (2, 0), "client_ms": None, "up_kb": (0, 0), "down_kb": None},
    "flameche": {"server_s": (1, 1), "client_ms": (0, 1), "up_kb": (0, 0), "down_kb": (0, 1)},
    "flameche-soft": dict.fromkeys(("server_s", "client_ms", "up_kb", "down_kb")),  # not in the paper
}
TITLES = {
    "server_s": "Server, seconds",
    "client_ms": "A client, milliseconds",
    "once_ms": "A client, once, milliseconds",
    "up_kb": "A client sends, KB",
    "down_kb": "A client receives, KB",
}


def overhead_tables(found: dict[str, Any]) -> list[TextTable]:
    """Make a table per cost, and one of further local trainings."""
    most = max(row["clients"] for row in found["rows"])
    tables = []
    for key, title in TITLES.items():
        rows = []
        for kind, growth_exponent in found["growth"].items():
            about = METHODS[kind].about
            paper = PAPER.get(kind) or PAPER.get(about.family, {})
            rows.append(
                {
                    "method": about.title,
                    "family": about.family,
                    f"N = {most}": _cost(_largest(found, kind, most)[key]),
                    "grows as N^": _power(growth_exponent["clients"][key]),
                    "paper: N^": _expected(paper.get(key), 0),
                    "grows as K^": _power(growth_exponent["clusters"][key]),
                    "paper: K^": _expected(paper.get(key), 1),
                }
            )
        tables.append(TextTable(f"{title}, beyond FedAvg", rows))
    trainings = [
        {
            "method": METHODS[kind].about.title,
            "trainings": f"{_largest(found, kind, most)['trainings']:.1f}",
        }
        for kind in found["growth"]
    ]
    note = (
        f"A client's local trainings in {found['rounds']} rounds beyond FedAvg's {found['rounds'] / 5:.0f}."
    )
    return [*tables, TextTable("Further local trainings", trainings, note)]


def overhead_markdown(found: dict[str, Any]) -> str:
    """Write all tables as one page."""
    lines = [
        "# What clustering costs beyond FedAvg",
        "",
        f"Made by `flameche overhead --out results` from `overhead.json`, on {found['machine']['cpu']},",
        f"one thread. LeNet-5 (61,706 numbers), metadata of 840, {found['rounds']} rounds, a fifth of N",
        "clients in each; local training is left out. Growth is fitted by least squares on logarithms, over",
        "N at K = 4 and over K at N = 100. A dash: nothing beyond FedAvg. Of IFCA one start (it gets K - 1",
        "models beyond FedAvg's one, hence an exponent above 1), of StoCFL with the search for its",
        "threshold. The paper counts pairs of clients for server-side and metadata methods; FeSEM and K-Fed",
        "compare with K centres.",
    ]
    for table in overhead_tables(found):
        lines += ["", f"## {table.title}", "", *markdown_table(table.rows)]
        if table.note:
            lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _largest(found: dict[str, Any], kind: str, most: int) -> dict[str, Any]:
    rows = [row for row in found["rows"] if row["method"] == kind and row["clients"] == most]
    return next((row for row in rows if row["clusters"] == 4), rows[0])  # one, unless the base is the largest


def _cost(value: float) -> str:
    return "–" if value <= 1e-9 else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _expected(power: Power, which: int) -> str:
    return "–" if power is None else str(power[which])
