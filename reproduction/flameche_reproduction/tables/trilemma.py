"""The trilemma as a triangle of measurements: what clustering computes, sends and exposes beyond FedAvg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from flameche.methods import METHODS
from flameche.report.formats import ABSENT, Cell, Column, Table, amount, human_seconds
from flameche.report.style import INK, WIDTH, method_colour, styled
from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.tables.cells import NOT_RUN
from flameche_reproduction.tables.costs import COMPARED, at_base
from flameche_reproduction.tables.document import RenderedTable

CORNERS = ("computation", "communication", "exposure")
FLOOR = (1e-3, 1.0, 1.0)  # seconds, KB, KB: less is as good
PARTICIPATIONS = 2  # of a client, in ten rounds with a fifth of the clients
MODEL_KB = 4 * 61_706 / 1000


@dataclass(frozen=True)
class MethodCosts:
    """A method's three costs, for 100 clients over ten rounds."""

    kind: str
    seconds: float  # server's and all clients'
    kilobytes: float  # up and down, a client
    exposed: float  # of one client's own, in KB, that the server must see in the clear

    @property
    def costs(self) -> tuple[float, float, float]:
        """The three, in the order of the corners."""
        return self.seconds, self.kilobytes, self.exposed


def draw_trilemma(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Three costs of every method, as a table and as triangles: the further out, the cheaper."""
    found = stored.document(entry.file)
    places, rows = [], []
    for kind in COMPARED:
        row = at_base(found, kind)
        about = METHODS[kind].about
        if row is None:
            rows.append((Cell(about.title), Cell(about.family), *[Cell(NOT_RUN)] * 4, Cell(about.uploads)))
            continue
        seconds = row["server_s"] + 100 * (row["client_ms"] + row["once_ms"]) / 1000
        place = MethodCosts(kind, seconds, row["up_kb"] + row["down_kb"], _exposed(kind, row["up_kb"]))
        places.append(place)
        texts = (human_seconds(seconds), *(_kilobytes(value) for value in place.costs[1:]))
        cells = [Cell(text, value) for text, value in zip(texts, place.costs, strict=True)]
        cells.append(Cell(f"{row['trainings']:.1f}" if row["trainings"] else ABSENT, row["trainings"]))
        rows.append((Cell(about.title), Cell(about.family), *cells, Cell(about.uploads)))
    columns = (
        Column("Method", "method"),
        Column("Family", "family"),
        Column("Computation", "seconds", numeric=True),
        Column("Communication, KB a client", "kilobytes", numeric=True),
        Column("Exposed, KB a client", "exposed_kb", numeric=True),
        Column("Further trainings a client", "trainings", numeric=True),
        Column("Clients upload", "uploads"),
    )
    lead = (
        "From the ledger, beyond FedAvg: 100 clients in 4 clusters, LeNet-5, ten rounds with 20 clients "
        "each, local training left out. Computation: the server's and all clients' seconds, without "
        "further local trainings. Communication: what a client sends and receives. Exposed: what of one "
        "client's own the server must see in the clear, its models in every round or its metadata once; "
        "nothing where sums are enough, since these can be formed under encryption. Not counted is what can "
        "be solved from opened sums, in some settings every client's metadata (SECURITY.md). Axes are "
        "logarithmic; the further out a corner, the lower that cost."
    )
    table = Table(columns, tuple(rows))
    figure = trilemma_figure(places) if places else None
    there = 0 if found is None else 1
    return RenderedTable(entry.name, entry.title, lead, [("", table)], table, figure, runs=(there, 1))


def _exposed(kind: str, sent: float) -> float:
    """KB that the server must see: nothing for sums; a client's metadata; or each model it sends."""
    about = METHODS[kind].about
    if about.needs == "sums":
        return 0.0
    return sent if about.family == "metadata" else sent + PARTICIPATIONS * MODEL_KB


def scores(places: Sequence[MethodCosts]) -> list[tuple[float, ...]]:
    """Scale costs by their logarithms, from 0 for the worst to 1 for the best; a floor bounds tiny ones."""
    columns = []
    for axis, floor in enumerate(FLOOR):
        logs = [math.log(max(place.costs[axis], floor)) for place in places]
        low, high = min(logs), max(logs)
        columns.append([1.0 if high == low else (high - value) / (high - low) for value in logs])
    return list(zip(*columns, strict=True))


@styled
def trilemma_figure(places: Sequence[MethodCosts]) -> Figure:
    """Small triangles, a method each: corners are computation, communication and privacy."""
    angles = [math.pi / 2 + turn * 2 * math.pi / 3 for turn in range(3)]
    names = ("computation", "communication", "privacy")
    across = 4
    down = -(-len(places) // across)
    figure = Figure(figsize=(WIDTH * 1.6, 1.75 * down), layout="constrained")
    for place, (method, score) in enumerate(zip(places, scores(places), strict=True)):
        axes = figure.add_subplot(down, across, place + 1)
        for ring in (0.5, 1.0):
            axes.plot(*_corners(angles, (ring,) * 3), color=INK, linewidth=0.5, alpha=0.4)
        for angle, name in zip(angles, names, strict=True):
            axes.plot([0, math.cos(angle)], [0, math.sin(angle)], color=INK, linewidth=0.4, alpha=0.4)
            axes.text(
                1.22 * math.cos(angle), 1.22 * math.sin(angle), name, ha="center", va="center", fontsize=7
            )
        colour = method_colour(method.kind)
        outline = _corners(angles, tuple(0.08 + 0.92 * value for value in score))
        axes.fill(*outline, color=colour, alpha=0.3, linewidth=0)
        axes.plot(*outline, color=colour, linewidth=1.6)
        axes.set_title(METHODS[method.kind].about.title, fontsize=9)
        axes.set_xlim(-1.55, 1.55)
        axes.set_ylim(-1.0, 1.4)
        axes.set_aspect("equal")
        axes.axis("off")
    return figure


def _corners(angles: Sequence[float], radii: Sequence[float]) -> tuple[list[float], list[float]]:
    turned = [*zip(angles, radii, strict=True), (angles[0], radii[0])]
    return [r * math.cos(a) for a, r in turned], [r * math.sin(a) for a, r in turned]


def _kilobytes(value: float) -> str:
    return ABSENT if value == 0 else amount(value)
