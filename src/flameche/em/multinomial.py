"""Multinomial mixtures of label counts: for clients that differ in which labels they have.

A client's block is how many samples it has of each class, n_i; component k draws classes with
probabilities p_k. The statistics are the counts themselves. Probabilities are smoothed by a Dirichlet prior
that adds `PRIOR` samples to each class of each component, so that a class that is new to it is unlikely and
not impossible. What no step lowers is then the likelihood with the prior's part, PRIOR sum_kl log p_kl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln

from flameche.em.mixture import Blocks
from flameche.em.spherical import Centroids, Floats, Ints

PRIOR = 0.01  # samples
UNIT = 1024.0  # samples that count as one in sums: 65,536 of a class fit the default scheme.bound
NATS = 1024.0  # a log density, at most


@dataclass(frozen=True)
class Multinomial:
    """One distribution over the labels for each component."""

    labels: int
    hard: ClassVar[bool] = False
    moments: ClassVar[bool] = False
    scale: ClassVar[float] = NATS

    @property
    def size(self) -> int:
        """Count the labels."""
        return self.labels

    def prepare(self, phi: Floats, counts: Ints) -> Blocks:
        """Take the counts as one block: the samples behind the blocks, or label counts as metadata."""
        table = phi if counts.shape[1] == 1 else counts[:, None, :].astype(np.float64)
        return Blocks(table, np.ones((len(table), 1)))

    def statistics(self, own: Blocks) -> Floats:
        """Give the counts."""
        return own.x[:, 0] / UNIT

    def log_density(self, own: Blocks, totals: Floats, inside: Floats | None = None) -> Floats:
        """Give the log probability of a client's counts, among all ways to draw as many samples."""
        n = own.x[:, 0]
        ways = gammaln(n.sum(axis=1) + 1) - gammaln(n + 1).sum(axis=1)
        logs: Floats
        if inside is None:
            logs = n @ np.log(self.probabilities(totals)).T + ways[:, None]
            return logs
        others = (
            totals[None]
            - inside[:, :, None] * np.column_stack([self.statistics(own), np.ones(len(n))])[:, None]
        )
        p = self.probabilities(others.reshape(-1, totals.shape[1])).reshape(*inside.shape, -1)
        logs = np.einsum("cl,ckl->ck", n, np.log(p)) + ways[:, None]
        return logs

    def probabilities(self, totals: Floats) -> Floats:
        """Give each component's probabilities [K L]."""
        n = np.maximum(totals[:, : self.labels], 0.0) * UNIT + PRIOR
        shares: Floats = n / n.sum(axis=1, keepdims=True)
        return shares

    def log_prior(self, totals: Floats) -> float:
        """Give the prior's part of what no step lowers, up to a constant."""
        return PRIOR * float(np.log(self.probabilities(totals)).sum())

    def start(self, centroids: Centroids, count: Floats) -> Floats:
        """Take mean label counts of any scale, or what is behind blocks, as shares of labels."""
        n = np.maximum(centroids.theta[:, 0] if centroids.mass.shape[1] == 1 else centroids.mass, 0.0)
        return np.column_stack([count[:, None] * n / n.sum(axis=1, keepdims=True), count])

    def alike(self) -> Multinomial:
        """Give itself: its spread follows from its mean."""
        return self
