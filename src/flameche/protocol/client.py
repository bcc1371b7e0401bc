"""The clients: they hold the metadata and the keys, take the E-step, and open sums.

A cohort carries C clients along a leading axis. The simulator has all of them in one cohort; a node of a
real network is a cohort of one. Both run these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from flameche.crypto.api import Scheme, Sealed
from flameche.em import spherical
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.metadata.extractors import Metadata
from flameche.protocol.ledger import Ledger
from flameche.protocol.phases import Phase, Result

Missing = Literal["counts", "impute", "zero"]


class Cohort:
    """C clients' metadata, their key, and what they compute.

    missing: how a class without samples is treated. "counts": its block stays out of sums and cosines
    (default); "impute": filled from the client's own centroid, as the paper does, which changes every
    round; "zero": taken for zeros.
    """

    def __init__(
        self,
        metadata: Metadata,
        scheme: Scheme,
        ledger: Ledger,
        *,
        unit_norm: bool = False,
        missing: Missing = "counts",
    ) -> None:
        self.phi: Floats = spherical.unit_norm(metadata.phi) if unit_norm else metadata.phi
        present = metadata.presence
        self.weight: Floats = np.ones_like(present) if missing == "zero" else present
        self.imputes = missing == "impute" and bool((present == 0).any())
        self._key = scheme.client_key()
        self._ledger = ledger

    def __len__(self) -> int:
        return len(self.phi)

    @property
    def blocks(self) -> tuple[int, int]:
        """Give the metadata's shape (B, F)."""
        return self.phi.shape[1], self.phi.shape[2]

    def e_step(self, clients: Ints, centroids: Centroids) -> tuple[Ints, Floats]:
        """Assign clients [n] to their nearest centroids: assignment [n], error [n]."""
        with self._ledger.clock("client", "clustering"):
            return spherical.e_step(self.phi[clients], self.weight[clients], centroids)

    def contribute(
        self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids
    ) -> list[Sealed]:
        """Compute and seal the terms of clients [n] for a phase."""
        with self._ledger.clock("client", "clustering"):
            phi, weight = self.phi[clients], self.weight[clients]
            if self.imputes:  # from the client's own centroid, where that has the class
                missing = (weight == 0) & (centroids.mass[assignment] > 0)
                phi = np.where(missing[:, :, None], centroids.theta[assignment], phi)
                weight = np.where(missing, 1.0, weight)
            terms = phase.contribute(phi, weight, assignment)
        with self._ledger.clock("client", "encryption"):
            return [self._key.seal(term) for term in terms]

    def absorb(self, phase: Phase[Result], totals: Sequence[Sealed | None]) -> Result:
        """Open the sums of a phase, one per cluster, and turn them into its result.

        A deterministic function of the sums: it gives the same wherever they may be opened.
        """
        with self._ledger.clock("client", "encryption"):
            opened = [None if total is None else self._key.open(total) for total in totals]
        length = next((len(row) for row in opened if row is not None), 0)
        rows = np.array([np.zeros(length) if row is None else row for row in opened])
        with self._ledger.clock("client", "clustering"):
            return phase.absorb(rows)


def wire_size(terms: Sequence[Sealed | None]) -> int:
    """Count the bytes of sealed vectors on the wire."""
    return sum(len(term.to_bytes()) for term in terms if term is not None)
