"""The scheme without secrets: the same steps as under encryption, in the clear.

Vectors travel as float32, which is what the networks compute in; sums are kept in float64. It protects
nothing: the server can read every term.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Sealed
from flameche.errors import SealError

HEADER = struct.Struct("<4sBxxxII")  # magic, bytes per value, terms, length
MAGIC = b"FLp1"


@dataclass(frozen=True)
class PlainVector:
    """A vector in the clear, in a sealed vector's clothes."""

    values: NDArray[np.float32] | NDArray[np.float64]
    terms: int = 1

    def to_bytes(self) -> bytes:
        """Write a 16-byte header and the values, little-endian."""
        item = self.values.dtype.itemsize
        head = HEADER.pack(MAGIC, item, self.terms, len(self.values))
        return head + self.values.astype(f"<f{item}", copy=False).tobytes()


class PlainAdder:
    """Adds vectors in float64, in the order given."""

    def add(self, parts: Iterable[Sealed]) -> PlainVector:
        """Add vectors of one length; at least one."""
        vectors = [cast(PlainVector, part) for part in parts]
        if not vectors:
            raise SealError("nothing to add: a sum needs at least one sealed vector")
        lengths = {len(vector.values) for vector in vectors}
        if len(lengths) > 1:
            raise SealError(f"vectors of different lengths cannot be added: {sorted(lengths)}")
        total = np.stack([vector.values for vector in vectors]).sum(axis=0, dtype=np.float64)
        return PlainVector(total, sum(vector.terms for vector in vectors))

    def load(self, data: bytes) -> PlainVector:
        """Read what `PlainVector.to_bytes` wrote."""
        if len(data) < HEADER.size or data[:4] != MAGIC:
            raise SealError("these bytes are not a vector of the scheme 'plain'")
        _, item, terms, length = HEADER.unpack_from(data)
        if item not in (4, 8) or len(data) != HEADER.size + item * length:
            raise SealError(f"a plain vector is damaged: {len(data)} bytes do not hold {length} values")
        return PlainVector(np.frombuffer(data, f"<f{item}", offset=HEADER.size), terms)


class PlainKey:
    """Seals by rounding to float32, opens by looking."""

    def seal(self, vector: NDArray[np.float64]) -> PlainVector:
        """Round a vector [S] to what crosses the wire; NaN and infinity are refused."""
        if not np.isfinite(vector).all():
            raise SealError("a vector with NaN or infinite values cannot be sealed; check the client's data")
        return PlainVector(vector.astype(np.float32))

    def open(self, total: Sealed) -> NDArray[np.float64]:
        """Read a sum [S]."""
        return cast(PlainVector, total).values.astype(np.float64)


class Plain:
    """No protection; the oracle for the schemes that have some."""

    name = "plain"
    opened_by: Literal["server", "clients"] = "server"

    def adder(self) -> PlainAdder:
        """Deal the server's half."""
        return PlainAdder()

    def client_key(self) -> PlainKey:
        """Deal a client's half."""
        return PlainKey()
