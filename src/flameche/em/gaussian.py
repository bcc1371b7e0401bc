"""Gaussian mixtures with diagonal covariances, class by class.

The statistics are [w x, w x^2, w] block by block; their totals give means and variances. A variance is
never below `FLOOR`, which is what maximum likelihood under that constraint gives: the likelihood still never
falls. Blocks are class means scaled to one length, `LENGTH`: values then fit the fixed point of sealed
sums, and so do their squares, up to the default `scheme.bound`.

With thousands of coordinates and tens of clients, variances are poorly known and responsibilities are 0 or
1. A random projection (Johnson and Lindenstrauss, 1984; Dasgupta, "Experiments with random projection", UAI
2000) takes each block to `projection` numbers by one matrix for all, so that classes that a client lacks stay
out as before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from flameche.em.mixture import Blocks, borrowed
from flameche.em.spherical import Centroids, Floats, Ints, class_norm, sample_weight
from flameche.rng import stream

FLOOR = 2e-6  # of a variance, for blocks of length 4: above what fixed point of 20 bits and more rounds
LENGTH = 4.0
NATS = 16.0  # a log density a coordinate, at most


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian for each component and class; `tied`: one variance a coordinate for all.

    features: those of the metadata; projection: how many of them are left (0: all); seed: of its matrix.
    """

    blocks: int
    features: int
    projection: int = 0
    seed: int = 0
    tied: bool = False
    floor: float = field(default=FLOOR)
    hard: ClassVar[bool] = False

    @property
    def kept(self) -> int:
        """Count the numbers of a block."""
        return self.projection or self.features

    @property
    def size(self) -> int:
        """Count the weighted blocks, their squares, and the weights."""
        return 2 * self.blocks * self.kept + self.blocks

    @property
    def scale(self) -> float:
        """Bound a log density by so much a coordinate."""
        return NATS * self.blocks * self.kept

    def prepare(self, phi: Floats, counts: Ints) -> Blocks:
        """Scale each class mean to one length and project it; it weighs as much as its samples."""
        x = LENGTH * class_norm(phi)
        if self.projection:
            matrix = stream(self.seed, "projection").standard_normal((self.features, self.projection))
            x = x @ (matrix / np.sqrt(self.projection))
        return Blocks(x, sample_weight(counts))

    def statistics(self, own: Blocks) -> Floats:
        """Give the weighted blocks, their weighted squares, and the weights."""
        weight, many = own.weight[:, :, None], (len(own), -1)
        parts = [(own.x * weight).reshape(many), (own.x**2 * weight).reshape(many), own.weight]
        return np.concatenate(parts, axis=1)

    def log_density(self, own: Blocks, totals: Floats) -> Floats:
        """Add up the log densities of a client's coordinates, by the weights of their classes."""
        mean, variance, known = self.parameters(totals)
        density = np.empty((len(own), len(totals)))
        for k in range(len(totals)):  # a difference before its square: nothing cancels
            away = (own.x - mean[k]) ** 2 / variance[k] + np.log(2 * np.pi * variance[k])
            density[:, k] = -0.5 * (away.sum(axis=2) * own.weight) @ known[k]
        return density

    def parameters(self, totals: Floats) -> tuple[Floats, Floats, Floats]:
        """Give means and variances [K B F], and which classes anybody knows, as ones and zeros [K B]."""
        first, second, mass = self._parts(totals)
        both, borrowed_mass = borrowed(np.concatenate([first, second], axis=2), mass)
        known = borrowed_mass > 0
        scale = np.where(known, borrowed_mass, 1.0)[:, :, None]
        mean, square = both[:, :, : self.kept] / scale, both[:, :, self.kept :] / scale
        variance = square - mean**2
        if self.tied:
            own = np.divide(first**2, mass[:, :, None], out=np.zeros_like(first), where=mass[:, :, None] > 0)
            together = np.where(known[0], mass.sum(axis=0), 1.0)[:, None]
            variance = np.broadcast_to((second - own).sum(axis=0) / together, mean.shape)
        return mean, np.maximum(variance, self.floor), known.astype(np.float64)

    def centroids(self, totals: Floats) -> Centroids:
        """Divide sums by weights."""
        first, _, mass = self._parts(totals)
        theta = np.divide(first, mass[:, :, None], out=np.zeros_like(first), where=mass[:, :, None] > 0)
        return Centroids(theta, mass)

    def _parts(self, totals: Floats) -> tuple[Floats, Floats, Floats]:
        """Take totals apart: sums and sums of squares [K B F], mass [K B]."""
        many, shape = self.blocks * self.kept, (len(totals), self.blocks, self.kept)
        first, second = totals[:, :many].reshape(shape), totals[:, many : 2 * many].reshape(shape)
        return first, second, np.maximum(totals[:, 2 * many : -1], 0.0)

    def alike(self) -> Gaussian:
        """Give the family with one variance a coordinate."""
        return replace(self, tied=True)
