"""Who the events of an experiment are about: numbers of clients are drawn from the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flameche.errors import ConfigError
from flameche.experiments.events import EventConfig
from flameche.rng import stream
from flameche.simulation.events import Event, Timeline

Ints = NDArray[np.int64]


def scheduled(events: Sequence[EventConfig], group: Ints, seed: int) -> list[Event]:
    """Say who each event is about, in the order of rounds; numbers of clients are drawn from the seed.

    Who joins late is drawn first, among clients that no event names; who leaves or drifts, among those there.
    """
    ordered = sorted(enumerate(events), key=lambda pair: pair[1].round)
    free = np.ones(len(group), bool)
    for event in events:
        if isinstance(event.clients, tuple):
            free[list(event.clients)] = False
    drawn = {}
    for n, event in ordered:
        if event.kind == "join" and isinstance(event.clients, int):
            drawn[n] = _draw(seed, n, np.flatnonzero(free), event)
            free[drawn[n]] = False
    named = {n: np.array(e.clients, np.int64) for n, e in ordered if isinstance(e.clients, tuple)}
    joins = [Event(e.round, e.kind, {**drawn, **named}[n]) for n, e in ordered if n in drawn or n in named]
    there = np.zeros(len(group), bool)
    there[Timeline(len(group), joins).present(0)] = True
    return list(_played(ordered, {**drawn, **named}, there, group.copy(), seed))


def _played(
    ordered: Sequence[tuple[int, EventConfig]],
    known: dict[int, Ints],
    there: NDArray[np.bool_],
    group: Ints,
    seed: int,
) -> Iterator[Event]:
    """Go through the rounds; draw who leaves or drifts, and refuse what cannot be."""
    named = {i for _, event in ordered if isinstance(event.clients, tuple) for i in event.clients}
    busy: dict[int, set[int]] = {}  # who has an event in a round already
    for n, event in ordered:
        able = there & (group != event.to) if event.kind == "drift" else there
        taken = busy.setdefault(event.round, set())
        # Who is named anywhere is not drawn: it could be gone when its own event comes.
        others = np.setdiff1d(np.flatnonzero(able), [*taken, *named])
        who = known[n] if n in known else _draw(seed, n, others, event)
        if both := taken.intersection(who.tolist()):
            raise ConfigError(f"events: client {min(both)} has two in round {event.round}; give one")
        wrong = who[there[who] == (event.kind == "join")]
        if len(wrong):
            state = "is there already" if event.kind == "join" else "is not there"
            raise ConfigError(
                f"events: client {wrong[0]} {state} when it {event.kind}s in round {event.round}"
            )
        taken.update(who.tolist())
        if event.kind == "drift":
            group[who] = event.to or 0
        else:
            there[who] = event.kind == "join"
        if not there.any():
            raise ConfigError(f"events: nobody is left in round {event.round}")
        yield Event(event.round, event.kind, np.sort(who), -1 if event.to is None else event.to)


def _draw(seed: int, number: int, among: Ints, event: EventConfig) -> Ints:
    assert isinstance(event.clients, int)
    if event.clients > len(among):
        raise ConfigError(
            f"events: {event.clients} clients are to {event.kind} in round {event.round}, "
            f"but only {len(among)} could"
        )
    return stream(seed, "events", number).permutation(among)[: event.clients]
