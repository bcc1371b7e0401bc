"""Messages between the server and its nodes, and the interface of whatever transports them.

`head["what"]` says what a message is. The server sends `hello`, `round`, `step` (of secure aggregation) and
`evaluate`. A node replies to a round with

paused      its method asks a question of all nodes (`said`); the server answers in its next message
done        its method has finished the round (`said`: model names, assignment, notes)
need        it lacks the models in `names`
lack        it has lost earlier messages of this round and needs them again
unreadable  it cannot decrypt the clients' state

`gives` lists uploads that need no answer: encrypted metadata, trained models. Their arrays are named
`give/NUMBER/…`, those that belong to `said` are named `ask/…`.
"""

from __future__ import annotations

import io
import json
import struct
import tokenize
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from flameche.errors import FlamecheError

Arrays = dict[str, NDArray[Any]]
READ_ERRORS = (  # raised when a damaged npz archive is read
    ValueError, OSError, EOFError, KeyError, BadZipFile, RuntimeError, MemoryError, OverflowError,
    SyntaxError, TypeError, struct.error, zlib.error, tokenize.TokenError,
)  # fmt: skip


class RejectedMessage(FlamecheError):
    """A node or the server received something that it cannot use."""


@dataclass(frozen=True)
class Message:
    """A JSON object, and the arrays (numbers, ciphertexts) that belong to it."""

    head: dict[str, Any]
    arrays: Arrays = field(default_factory=dict, repr=False)

    def section(self, prefix: str) -> Arrays:
        """Select the arrays whose names start with `prefix/`, and strip that prefix."""
        return {k.removeprefix(f"{prefix}/"): v for k, v in self.arrays.items() if k.startswith(f"{prefix}/")}

    def to_bytes(self) -> bytes:
        """Serialise the message, to store it on disk."""
        head = bytes_array(json.dumps(self.head).encode())
        return npz_bytes({"head": head, **with_prefix("body", self.arrays)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Deserialise what `to_bytes` wrote; RejectedMessage if it is damaged."""
        arrays = npz_arrays(data)
        try:
            head: dict[str, Any] = json.loads(arrays.pop("head").tobytes())
            assert isinstance(head, dict)
        except (KeyError, ValueError, AssertionError) as problem:
            raise RejectedMessage("a message on disk is damaged") from problem
        return cls(head, Message({}, arrays).section("body"))


@dataclass(frozen=True)
class NoReply:
    """A node sent no reply, or none that can be used."""

    reason: str
    site: int | None = None  # the number of a site that has to correct something; waiting does not help


class Transport(Protocol):
    """Sends messages to nodes and collects their replies; Flower does so between machines."""

    def nodes(self) -> list[int]:
        """List the addresses of the nodes that are online."""
        ...

    def exchange(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | NoReply]:
        """Send each address its message, and wait at most `timeout` seconds for all replies."""
        ...


def bytes_array(data: bytes | None) -> NDArray[np.uint8]:
    """Wrap bytes in an array, so that a message can hold them."""
    return np.frombuffer(data or b"", np.uint8)


def with_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Rename arrays to `prefix/name`."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Serialise arrays."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npz_arrays(data: bytes) -> Arrays:
    """Deserialise arrays; pickled objects are refused, so nothing in them is executed."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return dict(file)
    except READ_ERRORS as problem:
        raise RejectedMessage(f"stored arrays are damaged: {type(problem).__name__}") from problem
