"""The clients: they hold the metadata and the keys, take the E-step, and open sums.

A cohort carries C clients along a leading axis. The simulator has all of them in one cohort; a node of a
real network is a cohort of one. Both run these functions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
from flameche.em import spherical
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.errors import BadInput
from flameche.metadata.extractors import Metadata
from flameche.protocol.ledger import Ledger, Side
from flameche.protocol.phases import Phase, Result

Missing = Literal["counts", "impute", "zero"]


class Cohort:
    """C clients' metadata, their key, and what they compute.

    missing: how a class without samples is treated. "counts": its block stays out of sums and cosines
    (default); "impute": filled from the client's own centroid, as the paper does, which changes every
    round; "zero": taken for zeros.
    scaled: blocks are scaled to length one and weighted by the samples behind them, up to `spherical.FULL`;
    what `missing` and `unit_norm` say does not matter then. noise: of standard deviation noise / n is in a
    mean of n samples (`privacy/noise.py`), which weighs less.
    """

    def __init__(
        self,
        metadata: Metadata,
        scheme: Scheme | SecAgg,
        ledger: Ledger,
        *,
        unit_norm: bool = False,
        missing: Missing = "counts",
        scaled: bool = False,
        noise: float = 0.0,
    ) -> None:
        self._unit_norm, self._missing, self._scaled, self._noise = unit_norm, missing, scaled, noise
        self.phi, self.weight = self._prepared(metadata)
        self.imputes = missing == "impute" and bool((metadata.counts == 0).any())
        self._key = None if isinstance(scheme, SecAgg) else scheme.client_key()
        self._opener: Side = "server" if scheme.opened_by == "server" else "client"
        self._ledger = ledger

    def __len__(self) -> int:
        return len(self.phi)

    def _prepared(self, metadata: Metadata) -> tuple[Floats, Floats]:
        """Scale metadata and weigh their blocks as the options say: phi [n B F], weight [n B]."""
        if self._scaled:
            weight = spherical.sample_weight(metadata.counts, self._noise)
            return spherical.class_norm(metadata.phi), weight
        phi = spherical.unit_norm(metadata.phi) if self._unit_norm else metadata.phi
        return phi, np.ones_like(metadata.presence) if self._missing == "zero" else metadata.presence

    def differ(self, clients: Ints, metadata: Metadata) -> NDArray[np.bool_]:
        """Tell which of clients [n] would have other metadata than now."""
        if metadata.phi.shape != self.phi[clients].shape:
            raise BadInput(
                f"metadata of shape {list(metadata.phi.shape)} for {len(clients)} clients, expected "
                f"{[len(clients), *self.blocks]}: the same extractor as everybody's"
            )
        phi, weight = self._prepared(metadata)
        other: NDArray[np.bool_] = (phi != self.phi[clients]).any(axis=(1, 2))
        other |= (weight != self.weight[clients]).any(axis=1)
        return other

    def drift(self, clients: Ints, metadata: Metadata) -> None:
        """Give clients [n] new metadata, prepared as everybody's."""
        self.take(clients, *self._prepared(metadata))

    def take(self, clients: Ints, phi: Floats, weight: Floats) -> None:
        """Give clients [n] new metadata that are prepared: phi [n B F], weight [n B]."""
        self.phi, self.weight = self.phi.copy(), self.weight.copy()  # the first ones belong to who gave them
        self.phi[clients], self.weight[clients] = phi, weight
        self.imputes |= self._missing == "impute" and bool((weight == 0).any())

    @property
    def blocks(self) -> tuple[int, int]:
        """Give the metadata's shape (B, F)."""
        return self.phi.shape[1], self.phi.shape[2]

    def e_step(self, clients: Ints, centroids: Centroids) -> tuple[Ints, Floats]:
        """Assign clients [n] to their nearest centroids: assignment [n], error [n]."""
        with self._ledger.clock("client", "clustering"):
            return spherical.e_step(self.phi[clients], self.weight[clients], centroids)

    def terms(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Floats:
        """Compute the terms of clients [n] for a phase [n S], not yet sealed."""
        with self._ledger.clock("client", "clustering"):
            phi, weight = self.phi[clients], self.weight[clients]
            if self.imputes:  # from the client's own centroid, where that has the class
                missing = (weight == 0) & (centroids.mass[assignment] > 0)
                phi = np.where(missing[:, :, None], centroids.theta[assignment], phi)
                weight = np.where(missing, 1.0, weight)
            return phase.contribute(phi, weight, assignment)

    def seal(self, terms: Floats) -> list[bytes]:
        """Seal terms [n S], each by its client."""
        with self._ledger.clock("client", "encryption"):
            return [self._key.seal(term) for term in terms] if self._key else []

    def open(self, total: bytes | None) -> Floats | None:
        """Open a sum [S], on whichever side may; None stays None."""
        if total is None or self._key is None:
            return None
        with self._ledger.clock(self._opener, "encryption"):
            return self._key.open(total)
