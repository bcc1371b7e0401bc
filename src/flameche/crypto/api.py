"""What every scheme offers: clients seal and open, the server adds, and nothing else passes between.

The server is handed an `Adder`. It has no method that opens and holds nothing that could: a server that
only adds, by type. `Scheme.opened_by` says who may read a sum: the server itself (in the clear, secure
aggregation) or only clients (homomorphic encryption).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray


class Sealed(Protocol):
    """A vector, or a sum of them, that can be added and sent; reading it takes a key."""

    @property
    def terms(self) -> int:
        """Count the vectors that were added into this one."""
        ...

    def to_bytes(self) -> bytes:
        """Write it as it crosses the wire and lies on the server's disk."""
        ...


class Adder(Protocol):
    """The server's half of a scheme."""

    def add(self, parts: Iterable[Sealed]) -> Sealed:
        """Add sealed vectors of one length; at least one."""
        ...

    def load(self, data: bytes) -> Sealed:
        """Read what `Sealed.to_bytes` wrote; SealError if it is damaged or of another scheme."""
        ...


class ClientKey(Protocol):
    """A client's half of a scheme."""

    def seal(self, vector: NDArray[np.float64]) -> Sealed:
        """Close a vector [S] so that it can be added."""
        ...

    def open(self, total: Sealed) -> NDArray[np.float64]:
        """Read a sum [S]."""
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
