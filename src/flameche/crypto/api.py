"""What every scheme offers: clients seal and open, the server adds, and only bytes pass between.

The server is handed an `Adder`. It has no method that opens and holds nothing that could: a server that
only adds, by type. `Scheme.opened_by` says who may read a sum: the server itself (in the clear, secure
aggregation) or only clients (homomorphic encryption).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class KeyInfo:
    """What anybody may know of a key; both parts of one key have the same fingerprint."""

    scheme: str
    secret: bool  # the clients' part, or the server's
    clients: int  # the most terms in a sum
    bound: float  # the largest magnitude of a value
    parameters: str
    fingerprint: str
    bits: int | None = None  # of Paillier's modulus


class Sealed(Protocol):
    """A vector, or a sum of them, as the server holds it: to be added and sent on, not to be read."""

    @property
    def terms(self) -> int:
        """Count the vectors that are summed in it."""
        ...

    def to_bytes(self) -> bytes:
        """Write it as it crosses the wire and lies on the server's disk."""
        ...


class Adder(Protocol):
    """The server's half of a scheme."""

    def load(self, data: bytes) -> Sealed:
        """Take in what a client sealed; SealError if it is damaged or of another scheme or key."""
        ...

    def add(self, parts: Iterable[Sealed]) -> Sealed:
        """Add vectors of one length; at least one. Cancelled if that would leave nothing sealed."""
        ...

    def subtract(self, total: Sealed, parts: Iterable[Sealed]) -> Sealed:
        """Take vectors that are summed in a total out of it again. Cancelled if nothing would be sealed."""
        ...


class ClientKey(Protocol):
    """A client's half of a scheme."""

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """Close a vector [S] so that it can be added; OverflowBudget if a value is out of range."""
        ...

    def open(self, data: bytes) -> NDArray[np.float64]:
        """Read a sum [S]; SealError if it was sealed under another key, or altered."""
        ...


class Scheme(Protocol):
    """A matching pair of halves."""

    name: str
    opened_by: Literal["server", "clients"]

    def adder(self) -> Adder:
        """Deal the server's half."""
        ...

    def client_key(self) -> ClientKey:
        """Deal a client's half."""
        ...
