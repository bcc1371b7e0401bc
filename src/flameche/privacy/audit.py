"""What each party of a run could work out from the sums that were opened, by linear algebra on a log of them.

Every opened sum is an equation in its clients' terms. Sums of the same terms (say, of all clients'
metadata) are one system of equations; a client is solved if its own term follows from them. The audit looks
at the log alone, and shares no code with the guard that decided what may be opened.

It counts what linear algebra gives away. It does not count what a sum over few clients tells of its members
by being close to them, nor model updates (SECURITY.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LINEAR = {"sketches": "metadata", "means": "metadata"}  # linear in the same: equations of one system
SURE = 1e-8  # by how much a solved client may miss, by rounding


@dataclass(frozen=True)
class Opening:
    """A sum that was opened: when, what of, over which clients, how many numbers of each.

    kind: "sum" of terms that are each client's own, "histogram" or second "moments". changed: how often the
    metadata of some of the clients had changed before, for those of whom they had. share: how much of each
    client's term is in it; empty where all of everybody's.
    """

    round: int
    what: str
    kind: str
    clients: tuple[int, ...]
    numbers: int
    changed: tuple[tuple[int, int], ...] = ()
    share: tuple[float, ...] = ()


@dataclass(frozen=True)
class Leakage:
    """What one party has seen, and what follows from it.

    solved: clients whose terms follow from the sums alone, or, for a party that is a client, from these and
    its own term, in the worst case over clients. leverage: the largest, from 0 to 1; 1 is a client that is
    solved.
    """

    sums: int
    numbers_per_client: int
    numbers_over_fewer: int  # of them in sums over fewer clients than all who had come by then
    smallest_set: int
    rank: int
    solved: int
    leverage: float


NOTHING = Leakage(0, 0, 0, 0, 0, 0, 0.0)


def audit(openings: Iterable[Opening], clients: int, server_opens: bool, clear: bool) -> dict[str, Leakage]:
    """Tell what the server and a curious client could solve.

    server_opens: the server reads the sums too; clear: it holds every client's term in the clear.
    """
    log = list(openings)
    seen = leakage(log, own=False)
    server = seen if server_opens else NOTHING
    if clear:
        server = Leakage(**{**asdict(server), "solved": clients, "leverage": 1.0})
    return {"server": server, "client": leakage(log, own=True)}


def leakage(log: list[Opening], own: bool) -> Leakage:
    """Look at all that one party has seen; own: it is a client, and knows its own terms too."""
    if not log:
        return NOTHING
    every, fewer = Counter[int](), Counter[int]()
    come = set[int]()
    for _, of_round in groupby(log, key=lambda opening: opening.round):
        openings = list(of_round)
        come.update(*(opening.clients for opening in openings))
        for opening in openings:
            every.update(dict.fromkeys(opening.clients, opening.numbers))
            if len(set(opening.clients)) < len(come):
                fewer.update(dict.fromkeys(opening.clients, opening.numbers))
    kinds = {opening.what: LINEAR.get(opening.what, opening.what) for opening in log}
    systems = [
        solve([each for each in log if kinds[each.what] == kind], own)
        for kind in dict.fromkeys(kinds.values())
    ]
    return Leakage(
        sums=len(log),
        numbers_per_client=max(every.values()),
        numbers_over_fewer=max(fewer.values(), default=0),
        smallest_set=min(len(opening.clients) for opening in log),
        rank=max(system.rank for system in systems),
        solved=max(system.solved for system in systems),
        leverage=max(system.leverage for system in systems),
    )


@dataclass(frozen=True)
class System:
    """What the sums of one kind of term give away."""

    rank: int
    solved: int
    leverage: float


def solve(log: list[Opening], own: bool) -> System:
    """Solve the sums of equal terms for single clients' terms."""
    rows, owner = equations(log)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    large = values > SURE * max(1.0, values[-1])
    basis = (vectors[:, large] / np.sqrt(values[large])).T @ rows  # orthonormal, of the same span
    known = (basis**2).sum(axis=0)
    alone = {int(i) for i in owner[known > 1 - SURE]}
    worst = len(alone)
    if own:
        left = np.eye(len(owner)) - basis.T @ basis  # what the sums leave unknown
        for i in np.unique(owner).tolist():
            mine, others = owner == i, owner != i
            part = left[np.ix_(others, mine)]
            rest = np.diagonal(left)[others] - np.einsum(
                "om,mk,ok->o",
                part,
                np.linalg.pinv(left[np.ix_(mine, mine)], hermitian=True, rcond=SURE),
                part,
            )
            worst = max(worst, len({int(j) for j in owner[others][rest < SURE]}))
    return System(int(large.sum()), worst, float(np.minimum(known, 1.0).max()))


def equations(log: list[Opening]) -> tuple[Floats, NDArray[np.int64]]:
    """Write sums as rows of shares, mostly ones, a column for each client's term; and whose each is."""
    column: dict[tuple[int, int], int] = {}
    terms = []
    for opening in log:
        changed = dict(opening.changed)
        terms.append([column.setdefault((i, changed.get(i, 0)), len(column)) for i in opening.clients])
    rows = np.zeros((len(log), len(column)))
    for row, some, opening in zip(rows, terms, log, strict=True):
        row[some] = opening.share or 1.0
    return rows, np.array([i for i, _ in column], np.int64)


def described(found: Mapping[str, Leakage]) -> dict[str, dict[str, Any]]:
    """Put it into one record."""
    return {party: asdict(leak) for party, leak in found.items()}
