"""The scheme without secrets: the same steps as under encryption, in the clear.

Vectors travel as float32, which is what the networks compute in; sums are kept in float64. It protects
nothing: the server can read every term.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Sealed
from flameche.crypto.envelope import Envelope, fingerprint, pack, unpack
from flameche.errors import SealError

NAME = "plain"
MARK = fingerprint(NAME, version=1)


@dataclass(frozen=True)
class PlainVector:
    """A vector in the clear, in a sealed vector's clothes."""

    values: NDArray[np.float64]
    terms: int = 1

    def to_bytes(self) -> bytes:
        """Write single terms as float32, which loses nothing, and sums as float64."""
        kind = "<f4" if self.terms == 1 else "<f8"
        return pack(NAME, MARK, Envelope(self.terms, len(self.values), self.values.astype(kind).tobytes()))


class PlainAdder:
    """Adds vectors in float64, in the order given."""

    def load(self, data: bytes) -> PlainVector:
        """Read what `PlainVector.to_bytes` wrote."""
        envelope = unpack(data, NAME, MARK)
        kind = "<f4" if envelope.terms == 1 else "<f8"
        if len(envelope.body) != envelope.numbers * np.dtype(kind).itemsize:
            raise SealError(
                f"a plain vector is damaged: {len(envelope.body)} bytes for {envelope.numbers} numbers"
            )
        values = np.frombuffer(envelope.body, kind).astype(np.float64)
        if not np.isfinite(values).all():
            raise SealError("a plain vector holds NaN or infinite values")
        return PlainVector(values, envelope.terms)

    def add(self, parts: Iterable[Sealed]) -> PlainVector:
        """Add vectors of one length; at least one."""
        vectors = [cast(PlainVector, part) for part in parts]
        if not vectors:
            raise SealError("nothing to add: a sum needs at least one sealed vector")
        lengths = {len(vector.values) for vector in vectors}
        if len(lengths) > 1:
            raise SealError(f"vectors of different lengths cannot be added: {sorted(lengths)}")
        total = np.stack([vector.values for vector in vectors]).sum(axis=0)
        return PlainVector(total, sum(vector.terms for vector in vectors))

    def subtract(self, total: Sealed, parts: Iterable[Sealed]) -> PlainVector:
        """Take vectors out of a total again."""
        whole, out = cast(PlainVector, total), self.add(parts)
        if len(whole.values) != len(out.values):
            raise SealError(f"vectors of different lengths: {len(whole.values)} and {len(out.values)}")
        return PlainVector(whole.values - out.values, whole.terms - out.terms)


class PlainKey:
    """Seals by rounding to float32, opens by looking."""

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """Round a vector [S] to what crosses the wire; NaN and infinity are refused."""
        if not (np.abs(vector) < np.finfo(np.float32).max).all():
            raise SealError("a vector with NaN or infinite values cannot be sealed; check the client's data")
        return PlainVector(vector).to_bytes()

    def open(self, data: bytes) -> NDArray[np.float64]:
        """Read a sum [S]."""
        return PlainAdder().load(data).values


class Plain:
    """No protection; the oracle for the schemes that have some."""

    name = NAME
    opened_by: Literal["server", "clients"] = "server"

    def adder(self) -> PlainAdder:
        """Deal the server's half."""
        return PlainAdder()

    def client_key(self) -> PlainKey:
        """Deal a client's half."""
        return PlainKey()
