"""Model updates on their way to the average: in the clear, masked, or sealed.

An average is a sum and a division, so updates fit the same schemes as metadata. Under "secagg" participants
of a cluster hold a session and the server learns their sum; under "ckks" they seal and the clients of the
cluster open the sum. A cluster with fewer participants than a sum may have keeps its model: one alone would
show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np

from flameche.crypto.codec import FixedPoint
from flameche.crypto.registry import make_scheme
from flameche.em.spherical import Floats, Ints
from flameche.errors import OutOfRange, OverflowBudget
from flameche.protocol.exchange import sealed_sum
from flameche.protocol.ledger import Ledger

BOUND = 1024.0  # of a weight or a running variance
Protection = Literal["clear", "secagg", "ckks"]


class UpdateSums(Protocol):
    """Sums of model updates that nobody sees singly."""

    model_bytes: int  # of a model on its way down, where it is a sealed sum; 0 where it goes in the clear

    def total(self, vectors: Floats, clients: Ints) -> Floats | None:
        """Sum the updates [n P] of clients [n] of one cluster; None where they are too few."""
        ...


class MaskedUpdates:
    """Secure aggregation of updates, a session per round and cluster."""

    def __init__(self, clients: int, least: int, ledger: Ledger) -> None:
        self._codec = FixedPoint.fitting(BOUND, clients, 63)
        self.model_bytes = 0
        self._least, self._ledger = max(2, least), ledger

    def total(self, vectors: Floats, clients: Ints) -> Floats | None:
        """Mask, add, unmask."""
        from flameche.protocol.masked import masked_sum  # needs cryptography, which only this does

        if len(clients) < self._least:
            return None
        with _advice():
            encoded = np.stack([self._codec.encode(vector) for vector in vectors])
        return self._codec.decode(masked_sum(encoded, clients, "model", "model", self._ledger))


class SealedUpdates:
    """CKKS: the server adds ciphertexts, clients open the sum."""

    def __init__(self, clients: int, least: int, ledger: Ledger) -> None:
        scheme = make_scheme("ckks", clients=clients, bound=BOUND)
        self._key, self._adder = scheme.client_key(), scheme.adder()
        self.model_bytes = 0  # the first model is nobody's secret
        self._least, self._ledger = max(2, least), ledger

    def total(self, vectors: Floats, clients: Ints) -> Floats | None:
        """Seal, add, open."""
        if len(clients) < self._least:
            return None
        with _advice():
            total, size = sealed_sum(vectors, clients, "model", self._key, self._adder, self._ledger)
        self.model_bytes = size or self.model_bytes
        return total


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except OutOfRange as problem:
        raise OverflowBudget(
            f"a model's update cannot be sealed: {problem}; lower training.lr if training diverges"
        ) from problem


def protect_updates(kind: Protection, clients: int, least: int, ledger: Ledger) -> UpdateSums | None:
    """Make the protection of updates that a config names; None in the clear."""
    if kind == "secagg":
        return MaskedUpdates(clients, least, ledger)
    return SealedUpdates(clients, least, ledger) if kind == "ckks" else None
