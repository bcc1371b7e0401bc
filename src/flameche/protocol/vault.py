"""The server's half of the sums: terms kept sealed, added by cluster, released where the guard permits.

The simulator's `StoredSums` calls it directly; on a network its clients are elsewhere, and it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Adder
from flameche.em.spherical import Ints
from flameche.privacy.guard import Guard
from flameche.protocol.ledger import Ledger
from flameche.protocol.server import AdditiveServer

Arrays = dict[str, np.ndarray]


class Vault:
    """Holds sealed terms of `clients` clients for `clusters` sums; none over fewer than `least` comes out."""

    def __init__(self, adder: Adder, clients: int, clusters: int, least: int, ledger: Ledger) -> None:
        self._server = AdditiveServer(adder, ledger, clusters)
        self.guard = Guard(clients, least)

    @property
    def cancelled(self) -> set[int]:
        """List the clusters whose sum cannot be formed: their ciphertexts cancel each other."""
        return self._server.cancelled

    def holds(self, clients: Ints) -> NDArray[np.bool_]:
        """Tell which of these clients have a term here."""
        return self._server.holds(clients)

    def store(self, clients: Ints, terms: Sequence[bytes]) -> None:
        """Keep these clients' terms, in place of earlier ones."""
        self._server.store(clients, terms)

    def drop(self, clients: Ints) -> None:
        """Forget these clients' terms, and take them out of the sums."""
        self._server.drop(clients)

    def totals(self, members: Ints, assignment: Ints) -> list[bytes | None]:
        """Add the stored terms of members [n] by cluster [n]; None for nobody's sum, or one held back.

        A sum in `cancelled` is not there to be released, so the guard does not hear of it.
        """
        sums = self._server.sums_of_stored(members, assignment)
        return [
            None if total is None or not self.guard.admit(members[assignment == k]) else total
            for k, total in enumerate(sums)
        ]

    def once(self, terms: Sequence[bytes], assignment: Ints) -> list[bytes | None]:
        """Add terms [n] that are not kept, by cluster [n]; sums of too few stay here."""
        sums = self._server.sums(terms, assignment)
        size = np.bincount(assignment, minlength=len(sums))
        return [t if count >= self.guard.least else None for t, count in zip(sums, size, strict=True)]

    def state(self) -> Arrays:
        """Give the sealed terms and the guard's memory, for a checkpoint."""
        return {**self._server.state(), **self.guard.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._server.restore(arrays)
        self.guard.restore(arrays)
