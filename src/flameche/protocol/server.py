"""The server: keeps sealed terms, adds those it is asked to add, and can do no more.

It holds an `Adder`, which cannot open anything. What it knows besides is what clients tell it in the
clear: which terms belong together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Adder, Sealed
from flameche.protocol.ledger import Ledger

Ints = NDArray[np.int64]


class AdditiveServer:
    """Stores each client's latest sealed term and adds them by group."""

    def __init__(self, adder: Adder, ledger: Ledger) -> None:
        self._adder = adder
        self._ledger = ledger
        self._terms: dict[int, Sealed] = {}

    def store(self, clients: Ints, terms: Sequence[Sealed]) -> None:
        """Keep these clients' terms, in place of earlier ones."""
        self._terms.update(zip(clients.tolist(), terms, strict=True))

    def holds(self, clients: Ints) -> NDArray[np.bool_]:
        """Tell which of these clients have a term here."""
        return np.array([i in self._terms for i in clients.tolist()], bool)

    def sums_of_stored(self, clients: Ints, group: Ints, groups: int) -> list[Sealed | None]:
        """Add the stored terms of clients [n] by group [n]; None for a group of nobody."""
        return self.sums([self._terms[i] for i in clients.tolist()], group, groups)

    def sums(self, terms: Sequence[Sealed], group: Ints, groups: int) -> list[Sealed | None]:
        """Add terms [n] by group [n]; None for a group of nobody."""
        with self._ledger.clock("server", "clustering"):
            totals: list[Sealed | None] = []
            for k in range(groups):
                members = np.flatnonzero(group == k).tolist()
                totals.append(self._adder.add(terms[j] for j in members) if members else None)
            return totals

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Give the stored terms as bytes, for a checkpoint."""
        return {f"term/{i}": np.frombuffer(s.to_bytes(), np.uint8) for i, s in self._terms.items()}

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self._terms = {
            int(key.removeprefix("term/")): self._adder.load(value.tobytes())
            for key, value in arrays.items()
            if key.startswith("term/")
        }
