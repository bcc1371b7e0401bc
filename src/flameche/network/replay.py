"""How one node runs a method that is written for all clients: by replaying the round.

A method is written as if all clients were in one process. A node has one client; where the method needs
something of the others, the node asks the server (`Replay.ask`). The answer arrives with a later message, so
the method stops there (`Paused`), and the next message runs the round again from its start, with one more
answer in the log. Every random draw comes from a named stream, so each replay takes the same path, on every
node. Uploads that need no answer, such as encrypted metadata, are sent along with the next question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.network.message import Arrays, Message, RejectedMessage

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MakeArrays = Callable[[], Arrays]


def question_id(question: dict[str, Any]) -> str:
    """Hash a question; its answer carries the hash, so that a node can check which question it answers."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]


class Paused(Exception):
    """The method waits for an answer. The question is the same on every node; each adds arrays of its own."""

    def __init__(self, question: dict[str, Any], arrays: Arrays) -> None:
        super().__init__(question["kind"])
        self.question, self.arrays = question, arrays


class Replay:
    """The answers of a round so far, and what this node uploads beyond them."""

    def __init__(self, client: int, log: Sequence[Message] = ()) -> None:
        self.client, self._log, self._position = client, list(log), 0
        self.uploads: list[tuple[dict[str, Any], Arrays]] = []

    def ask(self, kind: str, fields: dict[str, Any], arrays: MakeArrays | None = None) -> Message:
        """Return the answer from the log; raise Paused if it has not come yet."""
        if self._position < len(self._log):
            answer = self._log[self._position]
            self._position += 1
            if answer.head.get("asked") != question_id({"kind": kind, **fields}):
                raise RejectedMessage(
                    f"the server answers another question ('{answer.head.get('kind')}') than this node asked "
                    f"('{kind}'): they run different versions or configurations"
                )
            return answer
        raise Paused({"kind": kind, **fields}, arrays() if arrays else {})

    def upload(self, kind: str, fields: dict[str, Any], arrays: MakeArrays | None = None) -> None:
        """Send something that needs no answer; only once, not again in each replay."""
        if self._position == len(self._log):
            self.uploads.append(({"kind": kind, **fields}, arrays() if arrays else {}))

    def gather(
        self, clients: Ints, value: Callable[[], Floats], *, width: int, below: int | None = None
    ) -> Floats:
        """Report this client's `width` numbers, and return those of all clients [n width]; NaN for lost ones.

        below: the first number is an integer from 0 up to, but not including, this limit.
        """
        if len(clients) == 0:
            return np.zeros((0, width))
        fields = {"clients": clients.tolist(), "width": width, "below": below}
        asked = bool((clients == self.client).any())
        answer = self.ask("tell", fields, (lambda: {"value": value()}) if asked else None)
        values: Floats = answer.arrays["values"].astype(np.float64)
        return values


class SoloReplay(Replay):
    """A replay without other nodes, for questions that concern this client alone."""

    def gather(
        self, clients: Ints, value: Callable[[], Floats], *, width: int, below: int | None = None
    ) -> Floats:
        """Return this client's own numbers, and NaN for all others."""
        values = np.full((len(clients), width), np.nan)
        if (clients == self.client).any():
            values[clients == self.client] = value()
        return values
