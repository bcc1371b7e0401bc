"""The `[[events]]` of an experiment file: who joins late, leaves or drifts, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from flameche.errors import ConfigError
from flameche.tables import Count, Natural, Table


def _form(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return "number"
    return "list" if isinstance(value, list | tuple) else None


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # TOML has lists; frozen models need tuples


Clients = Annotated[
    Annotated[Count, Tag("number")]
    | Annotated[tuple[Natural, ...], BeforeValidator(_tuple), Field(min_length=1), Tag("list")],
    Discriminator(
        _form,
        custom_error_type="clients",
        custom_error_message="must be a number of clients or the list of them",
    ),
]


class EventConfig(Table):
    """What happens at the start of a round; `clients` are named, or so many drawn at random."""

    round: Count
    kind: Literal["join", "leave", "drift"]
    clients: Clients
    to: Natural | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.kind == "drift") != (self.to is not None):
            need = "needs `to`, the group whose data they have then" if self.to is None else "has no `to`"
            raise ConfigError(f'an event of kind = "{self.kind}" {need}')
        if isinstance(self.clients, tuple) and len(set(self.clients)) < len(self.clients):
            raise ConfigError(f"an event names client {_twice(self.clients)} twice")
        return self


Events = Annotated[tuple[EventConfig, ...], BeforeValidator(_tuple)]


def check_events(events: Sequence[EventConfig], clients: int, groups: int, rounds: int) -> None:
    """Refuse events that could not happen: beyond the last round, with clients or groups there are not."""
    for event in events:
        if event.round > rounds:
            raise ConfigError(f"an event in round {event.round}, but rounds = {rounds}")
        most = event.clients if isinstance(event.clients, int) else max(event.clients) + 1
        if most > clients:
            what = f"{most} clients" if isinstance(event.clients, int) else f"client {most - 1}"
            raise ConfigError(f"an event of {what}, but data.clients = {clients}: 0 to {clients - 1}")
        if event.to is not None and event.to >= groups:
            raise ConfigError(
                f"an event drifts to group {event.to}, but there are {groups}: 0 to {groups - 1}"
            )


def _twice(clients: Sequence[int]) -> int:
    return next(i for i in clients if clients.count(i) > 1)
