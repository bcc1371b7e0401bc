"""What server and clients agree on before they begin; its hash is bound into every key and message."""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from flameche.crypto.codec import FixedPoint
from flameche.crypto.secagg import graph
from flameche.errors import BadInput, FlamecheError, SealError

HEAD = struct.Struct("<4sIQIIB16sH")
MAGIC = b"FSP1"


class Abort(FlamecheError):
    """A session ends without a sum: too many dropped out, or a client refuses to open more than a sum."""


@dataclass(frozen=True)
class Session:
    """One sum: clients 0..clients-1, vectors [length], words mod 2^word_bits, all of it public.

    `Session.open` fills in neighbours and threshold. `nonce` is the server's random session id.
    """

    clients: int
    length: int
    neighbours: int
    threshold: int
    word_bits: int = 64
    label: str = ""
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def __post_init__(self) -> None:
        if not 2 <= self.clients < 2**31 or not 0 <= self.length < 2**40:
            raise BadInput(
                f"{self.clients} clients with vectors of {self.length}; a secure sum needs at least 2 clients"
            )
        full = self.neighbours == self.clients - 1
        if not full and not (2 <= self.neighbours < self.clients and self.neighbours % 2 == 0):
            raise BadInput(
                f"{self.neighbours} neighbours among {self.clients} clients; "
                f"take an even number from 2, or all the others"
            )
        if not self.holding < 2 * self.threshold <= 2 * self.holding:
            raise BadInput(
                f"a threshold of {self.threshold} with {self.holding} holders of a client's shares; "
                f"take more than half of them, or leave it out for {graph.quorum(self.holding)}"
            )
        if self.word_bits not in (32, 64) or len(self.nonce) != 16 or len(self.label.encode()) > 1024:
            raise BadInput("words have 32 or 64 bits, a session id 16 bytes, a label at most 1024")

    @classmethod
    def open(
        cls,
        clients: int,
        length: int,
        *,
        neighbours: int | None = None,
        threshold: int | None = None,
        word_bits: int = 64,
        label: str = "",
    ) -> Session:
        """Begin a session on the server, with a fresh id."""
        k = graph.degree(clients) if neighbours is None else neighbours
        return cls(
            clients, length, k, graph.quorum(k + 1) if threshold is None else threshold, word_bits, label
        )

    @classmethod
    def fitting(
        cls,
        codec: FixedPoint,
        clients: int,
        length: int,
        *,
        neighbours: int | None = None,
        threshold: int | None = None,
        label: str = "",
    ) -> Session:
        """Begin a session for a codec's integers: 32-bit words if its sums fit, else 64."""
        codec.check_terms(clients)
        bits = 32 if codec.slot_bits <= 32 else 64
        return cls.open(
            clients, length, neighbours=neighbours, threshold=threshold, word_bits=bits, label=label
        )

    @property
    def holding(self) -> int:
        """Count the holders of a client's shares: its neighbours and itself."""
        return self.neighbours + 1

    @property
    def words(self) -> int:
        """Count the words that are masked: the vector and the slot that counts terms."""
        return self.length + 1

    @property
    def largest(self) -> int:
        """Bound the magnitude of a value: that of a sum over all clients must fit into a signed word."""
        return int(2 ** (self.word_bits - 1) - 1) // self.clients

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Name the words as they are masked and sent."""
        return np.dtype("<u4" if self.word_bits == 32 else "<u8")

    @cached_property
    def context(self) -> bytes:
        """Hash everything agreed on [32 bytes]."""
        return hashlib.sha256(self.to_bytes()).digest()

    @cached_property
    def holders(self) -> list[list[int]]:
        """List who holds each client's shares."""
        return graph.holders(self.clients, self.neighbours, self.nonce)

    def to_bytes(self) -> bytes:
        """Write the invitation that goes to every client."""
        label = self.label.encode()
        numbers = (self.clients, self.length, self.neighbours, self.threshold, self.word_bits)
        return HEAD.pack(MAGIC, *numbers, self.nonce, len(label)) + label

    @classmethod
    def from_bytes(cls, data: bytes) -> Session:
        """Read an invitation; SealError if it is damaged, BadInput if a client should not accept it."""
        if len(data) < HEAD.size or data[:4] != MAGIC:
            raise SealError(
                "these bytes are not an invitation to a secure aggregation of a version known here"
            )
        _, clients, length, neighbours, threshold, bits, nonce, size = HEAD.unpack_from(data)
        if len(data) != HEAD.size + size:
            raise SealError(f"an invitation is damaged: {len(data)} bytes, expected {HEAD.size + size}")
        try:
            label = data[HEAD.size :].decode()
        except UnicodeDecodeError:
            raise SealError("an invitation is damaged: its label is not text") from None
        return cls(clients, length, neighbours, threshold, bits, label, nonce)
