"""The ledger: bytes each client sent and received, seconds on both sides, sums held back, help used.

It is what makes the trade between computation, communication and privacy a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flameche.privacy.audit import Opening

Side = Literal["client", "server"]
Ints = NDArray[np.int64]
FIRST = 0  # the version of a client's metadata before they change
MOST_NAMED = 200_000  # clients in all openings that are noted


class Ledger:
    """Counts, over all clients of a run."""

    def __init__(self, clients: int, timer: Callable[[], float] = time.perf_counter) -> None:
        self.clients, self.timer = clients, timer
        self.up: dict[str, Ints] = {}
        self.down: dict[str, Ints] = {}
        self.seconds: dict[str, float] = {}
        self.asked: dict[str, int] = {}  # sums
        self.held_back: dict[str, int] = {}
        self.round = 0  # the round under way
        self.cancelled: list[int] = []  # the round of each sum whose ciphertexts cancelled each other
        self.tuning_runs = 0
        self.oracle_knowledge: list[str] = []
        self.openings: list[Opening] = []  # what an audit looks at
        self.releases = np.zeros(clients, np.int64)  # of each client's metadata with noise
        self.unnoted = 0  # openings beyond `MOST_NAMED`
        self._noted: set[tuple[object, ...]] = set()
        self._named = 0
        self._running = False
        self._muted = False

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Count nothing inside: what only a simulator measures is no cost of the protocol."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def sent(self, what: str, clients: Ints, nbytes: int | Ints) -> None:
        """Note that each of these clients uploaded nbytes: the same for all, or [n]."""
        self._count(self.up, what, clients, nbytes)

    def received(self, what: str, clients: Ints, nbytes: int | Ints) -> None:
        """Note that each of these clients downloaded nbytes: the same for all, or [n]."""
        self._count(self.down, what, clients, nbytes)

    def _count(self, parts: dict[str, Ints], what: str, clients: Ints, nbytes: int | Ints) -> None:
        column = parts.setdefault(what, np.zeros(self.clients, np.int64))
        if not self._muted:
            np.add.at(column, clients, nbytes)  # a client may be named twice

    @contextmanager
    def clock(self, side: Side, what: str) -> Iterator[None]:
        """Add the time spent inside to `what` on that side; of nested clocks the outermost counts."""
        if self._running:
            yield
            return
        self._running = True
        start = self.timer()
        try:
            yield
        finally:
            self._running = False
            self.add(side, what, self.timer() - start)

    def add(self, side: Side, what: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        key = f"{side}/{what}"
        self.seconds[key] = self.seconds.get(key, 0.0) + (0.0 if self._muted else seconds)

    def summed(self, what: str, wanted: NDArray[np.bool_], opened: NDArray[np.bool_]) -> None:
        """Count the sums that were wanted [K], and those of them that were not opened [K]."""
        if not self._muted:
            self.asked[what] = self.asked.get(what, 0) + int(wanted.sum())
            self.held_back[what] = self.held_back.get(what, 0) + int((wanted & ~opened).sum())

    def opened(
        self,
        what: str,
        clients: Ints,
        numbers: int,
        version: NDArray[np.integer],
        kind: str = "sum",
        share: NDArray[np.float64] | None = None,
    ) -> None:
        """Note that a sum over clients [n] was opened, also where nothing else is counted: it is known now.

        version [n]: which of their terms is in it, by numbers that grow from `FIRST`; share [n]: how much of
        it, all where not given. The same sum is noted once; of very many, none is noted any more.
        """
        later = np.flatnonzero(version > FIRST)
        changed = tuple(zip(clients[later].tolist(), (version[later] - FIRST).tolist(), strict=True))
        parts = () if share is None or (share == 1).all() else tuple(share.tolist())
        self.note(Opening(self.round, what, kind, tuple(clients.tolist()), numbers, changed, parts))

    def note(self, opening: Opening) -> None:
        """Note a sum that was opened, here or on the nodes of a network."""
        if self._named >= MOST_NAMED:
            self.unnoted += 1
            return
        if (key := _key(opening)) not in self._noted:
            self._noted.add(key)
            self._named += len(opening.clients)
            self.openings.append(opening)

    def released(self, clients: Ints) -> None:
        """Note that each of these clients has added noise to its metadata, as they are now."""
        self.releases[clients] += 1

    def sum_cancelled(self) -> None:
        """Note that a sum of this round could not be formed, since its ciphertexts cancelled each other."""
        self.cancelled.append(self.round)

    def per_client(self, way: Literal["up", "down"]) -> Ints:
        """Sum the bytes of each client [C], one way."""
        parts = self.up if way == "up" else self.down
        return np.sum(list(parts.values()), axis=0) if parts else np.zeros(self.clients, np.int64)

    def seconds_by_part(self) -> dict[str, float]:
        """Sum the seconds of both sides by what they were spent on."""
        parts: dict[str, float] = {}
        for key, value in self.seconds.items():
            part = key.split("/")[1]
            parts[part] = parts.get(part, 0.0) + value
        return parts

    def summary(self) -> dict[str, Any]:
        """Give totals by kind, ready for JSON."""

        def side(name: str) -> dict[str, float]:
            return {k.split("/")[1]: v for k, v in self.seconds.items() if k.startswith(f"{name}/")}

        return {
            "up": {what: int(parts.sum()) for what, parts in self.up.items()},
            "down": {what: int(parts.sum()) for what, parts in self.down.items()},
            "client_seconds": side("client"),
            "server_seconds": side("server"),
            "tuning_runs": self.tuning_runs,
            "oracle_knowledge": list(self.oracle_knowledge),
            "releases": int(self.releases.max(initial=0)),
        }

    def state(self) -> dict[str, Any]:
        """Give everything, ready for JSON, for a checkpoint."""
        return {
            "up": {what: parts.tolist() for what, parts in self.up.items()},
            "down": {what: parts.tolist() for what, parts in self.down.items()},
            "seconds": self.seconds,
            "asked": self.asked,
            "held_back": self.held_back,
            "cancelled": self.cancelled,
            "tuning_runs": self.tuning_runs,
            "oracle_knowledge": self.oracle_knowledge,
            "openings": [asdict(opening) for opening in self.openings],
            "unnoted": self.unnoted,
            "releases": self.releases.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.up = {what: np.array(parts, np.int64) for what, parts in state["up"].items()}
        self.down = {what: np.array(parts, np.int64) for what, parts in state["down"].items()}
        self.seconds = dict(state["seconds"])
        self.asked, self.held_back = dict(state.get("asked", {})), dict(state.get("held_back", {}))
        self.cancelled = list(state.get("cancelled", []))
        self.tuning_runs = state["tuning_runs"]
        self.oracle_knowledge = list(state["oracle_knowledge"])
        self.openings = [read_opening(opening) for opening in state.get("openings", [])]
        self.unnoted = state.get("unnoted", 0)
        self._noted = {_key(each) for each in self.openings}
        self.releases = np.array(state.get("releases", [0] * self.clients), np.int64)
        self._named = sum(len(each.clients) for each in self.openings)


def read_opening(told: dict[str, Any]) -> Opening:
    """Read what `asdict` and JSON made of an opening."""
    changed = tuple((int(i), int(v)) for i, v in told["changed"])
    share = tuple(told.get("share", ()))  # earlier logs have none
    return Opening(**{**told, "clients": tuple(told["clients"]), "changed": changed, "share": share})


def _key(opening: Opening) -> tuple[object, ...]:
    return opening.what, opening.kind, opening.clients, opening.changed, opening.share


def sizes_of(messages: Sequence[bytes]) -> Ints:
    """Count the bytes of each message [n]."""
    return np.array([len(message) for message in messages], np.int64)
