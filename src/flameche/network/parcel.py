"""What travels between server and nodes, and who carries it."""

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
DAMAGED = (  # what reading a damaged archive ends with
    ValueError, OSError, EOFError, KeyError, BadZipFile, RuntimeError, MemoryError, OverflowError,
    SyntaxError, TypeError, struct.error, zlib.error, tokenize.TokenError,
)  # fmt: skip


class Refused(FlamecheError):
    """A node or the server will not go on with what it was sent."""


@dataclass(frozen=True)
class Parcel:
    """A message: what it says, as JSON, and the numbers and sealed bytes that go with it."""

    head: dict[str, Any]
    arrays: Arrays = field(default_factory=dict, repr=False)

    def part(self, prefix: str) -> Arrays:
        """Take the arrays whose names begin with `prefix/`, without it."""
        return {k.removeprefix(f"{prefix}/"): v for k, v in self.arrays.items() if k.startswith(f"{prefix}/")}

    def to_bytes(self) -> bytes:
        """Write it, for a disk."""
        head = from_bytes(json.dumps(self.head).encode())
        return npz_bytes({"head": head, **prefixed("body", self.arrays)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Parcel:
        """Read what `to_bytes` wrote."""
        arrays = npz_arrays(data)
        try:
            head: dict[str, Any] = json.loads(arrays.pop("head").tobytes())
            assert isinstance(head, dict)
        except (KeyError, ValueError, AssertionError) as problem:
            raise Refused("a message on disk is damaged") from problem
        return cls(head, Parcel({}, arrays).part("body"))


@dataclass(frozen=True)
class Lost:
    """No answer, or none that can be used, and why."""

    why: str
    site: int | None = None  # the number of a site that has to correct something: waiting does not help


class Transport(Protocol):
    """Carries parcels to nodes and back; Flower does so between machines."""

    def nodes(self) -> list[int]:
        """List the addresses of the nodes that are there now."""
        ...

    def exchange(self, parcels: Mapping[int, Parcel], timeout: float) -> dict[int, Parcel | Lost]:
        """Send each address its parcel and wait, so many seconds at most, for all answers."""
        ...


def from_bytes(data: bytes | None) -> NDArray[np.uint8]:
    """Put bytes into an array, to travel."""
    return np.frombuffer(data or b"", np.uint8)


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Put a prefix before the arrays' names."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write arrays as one piece."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npz_arrays(data: bytes) -> Arrays:
    """Read what `npz_bytes` wrote; nothing in it can run."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return dict(file)
    except DAMAGED as problem:
        raise Refused(f"a piece of state is damaged: {type(problem).__name__}") from problem
