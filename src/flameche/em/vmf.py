"""Directions class by class: von Mises-Fisher mixtures, and spherical k-means as their hard limit.

Banerjee, Dhillon, Ghosh and Sra, "Clustering on the unit hypersphere using von Mises-Fisher distributions",
JMLR 6, 2005. A client's block of class b is a unit vector with density c(kappa_kb) exp(kappa_kb mu_kb . x_ib)
under component k; a client's density is the product over its classes, each to the power of its weight, which
grows with the samples behind it. The statistics are [w x, w], as in the hard M-step; their totals give both
parameters in closed form or nearly so: mu is the direction of the sum, kappa solves A(kappa) = |sum| / mass.

On metadata of real images kappa is of the order of 10^4 to 10^6 in 84 to 512 dimensions and ten classes, and
then nearly every responsibility is 0 or 1: soft EM says there what hard EM says, with honest densities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flameche.em.bessel import concentration, log_normaliser
from flameche.em.mixture import KNOWN, Blocks, borrowed
from flameche.em.spherical import Centroids, Floats, Ints, class_norm, sample_weight

CLOSEST = 1e-5  # 1 - |mean| counts as no less: caps kappa, well above what sealed sums round
NATS = 16.0  # a log density a coordinate, at most


@dataclass(frozen=True)
class Directions:
    """What both families share: unit blocks, their weighted sums, and the means of these."""

    blocks: int
    features: int
    moments: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Count the weighted blocks and the weights."""
        return self.blocks * self.features + self.blocks

    def prepare(self, phi: Floats, counts: Ints) -> Blocks:
        """Scale each class mean to length one; it weighs as much as the samples behind it."""
        return Blocks(class_norm(phi), sample_weight(counts))

    def statistics(self, own: Blocks) -> Floats:
        """Give the weighted blocks and the weights."""
        return np.concatenate([_flat(own.x * own.weight[:, :, None]), own.weight], axis=1)

    def start(self, centroids: Centroids, count: Floats) -> Floats:
        """Turn means back into the sums that they come from: these are the statistics."""
        return np.column_stack([_flat(centroids.theta * centroids.mass[:, :, None]), centroids.mass, count])

    def log_prior(self, totals: Floats) -> float:
        """Give nothing: there is no prior."""
        return 0.0

    def parts(self, totals: Floats) -> tuple[Floats, Floats]:
        """Take totals apart: sums [K B F], mass [K B]."""
        many = self.blocks * self.features
        sums = totals[:, :many].reshape(len(totals), self.blocks, self.features)
        return sums, np.maximum(totals[:, many:-1], 0.0)

    def means(self, totals: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Give directions [K B F], the lengths of the means [K B], and which classes anybody knows."""
        sums, mass = borrowed(*self.parts(totals))
        length = np.linalg.norm(sums, axis=2)
        mu = np.divide(sums, length[:, :, None], out=np.zeros_like(sums), where=length[:, :, None] > 0)
        known = mass > 0
        mean = np.divide(length, mass, out=np.zeros_like(mass), where=known)
        return mu, np.minimum(mean, 1.0 - CLOSEST), known

    def cosines(self, own: Blocks, totals: Floats, inside: Floats | None) -> Floats:
        """Compare clients with the directions of components class by class: [C K B]."""
        mu, _, _ = self.means(totals)
        near: Floats = np.einsum("cbf,kbf->ckb", own.x, mu)
        if inside is None:
            return near
        sums, mass = self.parts(totals)
        part = np.where(mass > KNOWN, inside[:, :, None] * own.weight[:, None, :], 0.0)
        dots = np.einsum("cbf,kbf->ckb", own.x, sums)
        length = np.linalg.norm(sums, axis=2) ** 2 - 2 * part * dots + part**2
        others = (part > 0) & (mass - part > KNOWN) & (length > 0)
        return np.where(others, (dots - part) / np.sqrt(np.where(others, length, 1.0)), near)


@dataclass(frozen=True)
class Spherical(Directions):
    """K-means by cosine, class by class: every kappa alike and without end, so responsibilities are one-hot.

    In place of a log density stands the weighted sum of cosines, which no step lowers.
    """

    hard: ClassVar[bool] = True

    @property
    def scale(self) -> float:
        """Bound the sum of cosines."""
        return float(self.blocks)

    def log_density(self, own: Blocks, totals: Floats, inside: Floats | None = None) -> Floats:
        """Add up the cosines of a client's classes with each component's, by weight."""
        near: Floats = np.einsum("ckb,cb->ck", self.cosines(own, totals, inside), own.weight)
        return near

    def alike(self) -> Spherical:
        """Give itself: it knows no spread."""
        return self


@dataclass(frozen=True)
class Vmf(Directions):
    """A von Mises-Fisher distribution for each component and class; `tied`: one kappa a class for all."""

    tied: bool = False
    hard: ClassVar[bool] = False

    @property
    def scale(self) -> float:
        """Bound a log density by so much a coordinate."""
        return NATS * self.blocks * self.features

    def log_density(self, own: Blocks, totals: Floats, inside: Floats | None = None) -> Floats:
        """Add up the log densities of a client's classes, by weight."""
        known, kappa = self.means(totals)[2], self.kappa(totals)
        constant = np.where(known, log_normaliser(self.features, kappa), 0.0)
        slope = np.where(known, kappa, 0.0)
        near = self.cosines(own, totals, inside)
        logs: Floats = np.einsum("ckb,kb,cb->ck", near, slope, own.weight) + own.weight @ constant.T
        return logs

    def kappa(self, totals: Floats) -> Floats:
        """Find the concentrations of maximum likelihood [K B], up to a cap."""
        if not self.tied:
            return concentration(self.features, self.means(totals)[1])
        sums, mass = self.parts(totals)
        together = mass.sum(axis=0)
        length = np.linalg.norm(sums, axis=2).sum(axis=0)
        mean = np.divide(length, together, out=np.zeros_like(together), where=together > 0)
        one = concentration(self.features, np.minimum(mean, 1.0 - CLOSEST))
        return np.broadcast_to(one, mass.shape)

    def alike(self) -> Vmf:
        """Give the family with one kappa a class."""
        return replace(self, tied=True)


def _flat(blocks: Floats) -> Floats:
    return blocks.reshape(len(blocks), -1)
