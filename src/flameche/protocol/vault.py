"""The server's half of the sums: terms kept sealed, added by cluster, released where the guard permits.

The simulator's `StoredSums` calls it directly; on a network its clients are elsewhere, and it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flameche.crypto.api import Adder
from flameche.em.spherical import Ints
from flameche.privacy.guard import Guard
from flameche.protocol.ledger import Ledger
from flameche.protocol.server import AdditiveServer

Arrays = dict[str, np.ndarray]


class Vault(AdditiveServer):
    """Holds sealed terms of `clients` clients for `clusters` sums; none over fewer than `least` comes out."""

    def __init__(self, adder: Adder, clients: int, clusters: int, least: int, ledger: Ledger) -> None:
        super().__init__(adder, ledger, clusters)
        self.guard = Guard(clients, least)

    def totals(self, members: Ints, assignment: Ints) -> list[bytes | None]:
        """Add the stored terms of members [n] by cluster [n]; None for nobody's sum, or one held back.

        A sum in `cancelled` is not there to be released, so the guard does not hear of it.
        """
        sums = self.sums_of_stored(members, assignment)
        return [
            None if total is None or not self.guard.admit(members[assignment == k]) else total
            for k, total in enumerate(sums)
        ]

    def once(self, terms: Sequence[bytes], assignment: Ints) -> list[bytes | None]:
        """Add terms [n] that are not kept, by cluster [n]; sums of too few stay here."""
        sums = self.sums(terms, assignment)
        size = np.bincount(assignment, minlength=len(sums))
        return [t if count >= self.guard.least else None for t, count in zip(sums, size, strict=True)]

    def state(self) -> Arrays:
        """Give the sealed terms and the guard's memory, for a checkpoint."""
        return {**super().state(), **self.guard.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        super().restore(arrays)
        self.guard.restore(arrays)
