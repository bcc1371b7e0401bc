"""How one node plays a method that speaks of all clients: by replay.

A method is written as if all clients were there. On a node there is one; where the method needs what others
know, the node *asks*. The answer comes with a later message, so the method stops there (`Paused`), and the
next message plays the round again from its start, now with one answer more in the log. Every draw comes from
a named stream, so that each replay goes the same way, on every node. What a node *gives* without waiting,
such as its sealed metadata, goes along with its next question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.network.parcel import Arrays, Parcel, Refused

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Part = Callable[[], Arrays]


def digest(question: dict[str, Any]) -> str:
    """Name a question, so that an answer can say to which it belongs."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]


class Paused(Exception):
    """The method waits for an answer: what was asked, the same on every node, and this node's part in it."""

    def __init__(self, question: dict[str, Any], part: Arrays) -> None:
        super().__init__(question["kind"])
        self.question, self.part = question, part


class Link:
    """The answers of a round so far, and what this node has to say beyond them."""

    def __init__(self, me: int, log: Sequence[Parcel] = ()) -> None:
        self.me, self._log, self._at = me, list(log), 0
        self.gives: list[tuple[dict[str, Any], Arrays]] = []

    def ask(self, kind: str, about: dict[str, Any], part: Part | None = None) -> Parcel:
        """Give the answer, or pause."""
        if self._at < len(self._log):
            answer = self._log[self._at]
            self._at += 1
            if answer.head.get("asked") != digest({"kind": kind, **about}):
                raise Refused(
                    f"the server answers '{answer.head.get('kind')}' to another question than this node's "
                    f"'{kind}': they run different versions or configurations"
                )
            return answer
        raise Paused({"kind": kind, **about}, part() if part else {})

    def give(self, kind: str, about: dict[str, Any], part: Part | None = None) -> None:
        """Send something that needs no answer; once, not in every replay."""
        if self._at == len(self._log):
            self.gives.append(({"kind": kind, **about}, part() if part else {}))

    def tell(
        self, clients: Ints, value: Callable[[], Floats], *, width: int, below: int | None = None
    ) -> Floats:
        """Let clients [n] tell `width` numbers each, and hear everybody's [n width]; NaN of who is lost.

        below: the first number is a whole one from 0 up to, but not including, it.
        """
        if len(clients) == 0:
            return np.zeros((0, width))
        about = {"clients": clients.tolist(), "width": width, "below": below}
        mine = bool((clients == self.me).any())
        answer = self.ask("tell", about, (lambda: {"value": value()}) if mine else None)
        values: Floats = answer.arrays["values"].astype(np.float64)
        return values


class Alone(Link):
    """Nobody else is there: a node that asks only about itself hears nothing of others."""

    def tell(
        self, clients: Ints, value: Callable[[], Floats], *, width: int, below: int | None = None
    ) -> Floats:
        """Give this node's own numbers, NaN for everybody else."""
        values = np.full((len(clients), width), np.nan)
        if (clients == self.me).any():
            values[clients == self.me] = value()
        return values
