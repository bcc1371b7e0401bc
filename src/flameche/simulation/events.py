"""A federation that lives: clients that come late, leave, come back, or whose data drift, round by round.

Events take place at the start of their round. Who is not there is never drawn. A method that can hear is
told; one that cannot plays on with whoever is drawn, on the data that they then have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from flameche.metadata.extractors import Metadata
from flameche.methods.base import Ints, Method, World

Drift = Callable[[World, Ints, Ints], None]  # changes the data of clients [n] to those of groups [n]


@dataclass(frozen=True)
class Event:
    """What happens to some clients at the start of a round; `to` is the group whose data a drift brings."""

    round: int
    kind: Literal["join", "leave", "drift"]
    clients: Ints
    to: int = -1


@runtime_checkable
class Hearing(Protocol):
    """A method that can be told of clients that come, go and change."""

    def join(self, clients: Ints) -> None:
        """Let clients take part that left, or were not there from the start."""
        ...

    def leave(self, clients: Ints) -> None:
        """Count these clients no more."""
        ...

    def drift(self, clients: Ints, metadata: Metadata) -> None:
        """Take these clients' new metadata."""
        ...


class Timeline:
    """All events of a run, in the order of their rounds."""

    def __init__(self, clients: int, events: Sequence[Event] = (), drift: Drift | None = None) -> None:
        self.clients = clients
        self.events = sorted(events, key=lambda event: event.round)
        self._drift = drift

    def present(self, r: int) -> Ints:
        """List who is there in round r; who joins and never left before is absent from the start."""
        there, known = np.ones(self.clients, bool), np.zeros(self.clients, bool)
        for event in self.events:
            if event.kind == "drift":
                continue
            if event.kind == "join":
                there[event.clients[~known[event.clients]]] = False
            known[event.clients] = True
        for event in self.events:
            if event.round <= r and event.kind != "drift":
                there[event.clients] = event.kind == "join"
        return np.flatnonzero(there)

    def begin(self, method: Method) -> None:
        """Tell a method who is not there at first."""
        late = np.setdiff1d(np.arange(self.clients), self.present(0))
        if len(late) and isinstance(method, Hearing):
            method.leave(late)

    def play(self, r: int, method: Method, world: World) -> None:
        """Let the events of round r happen, and tell the method."""
        for event in self.events:
            if event.round == r and event.kind != "drift" and isinstance(method, Hearing):
                (method.join if event.kind == "join" else method.leave)(event.clients)
        if len(who := self._drifting(r, world)) and isinstance(method, Hearing):
            method.drift(who, world.metadata.of(who))

    def replay(self, until: int, world: World) -> None:
        """Bring the world to where it was after a round; a method takes its own part from its checkpoint."""
        for r in sorted({event.round for event in self.events if event.round <= until}):
            self._drifting(r, world)

    def _drifting(self, r: int, world: World) -> Ints:
        """Change the data of those who drift in round r, all at once; give who they are."""
        drifts = [event for event in self.events if event.round == r and event.kind == "drift"]
        if not drifts:
            return np.empty(0, np.int64)
        assert self._drift is not None  # whoever schedules a drift says how
        who = np.concatenate([event.clients for event in drifts])
        to = np.concatenate([np.full(len(event.clients), event.to) for event in drifts])
        order = np.argsort(who)
        self._drift(world, who[order], to[order])
        return who[order]
