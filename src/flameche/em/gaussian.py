"""Gaussian mixtures: with full covariances in the few numbers of a sketch, or diagonal ones class by class.

`Full` is the paper's own example: of clients with q numbers y (`em/sketch.py`) the statistics are [y, y yT],
q + q (q + 1) / 2 numbers. What few clients tell of a covariance is little, so each is shrunk towards one that
all components share, as the mode under an inverse Wishart prior is (Fraley and Raftery, "Bayesian
regularization for normal mixture estimation and model-based clustering", Journal of Classification 24,
2007). How wide that is follows from the sums that hard clusters were found by.

`Gaussian` has [w x, w x^2, w] block by block. A variance is never below `FLOOR`, which is what maximum
likelihood under that constraint gives: the likelihood still never falls. Blocks are class means scaled to
one length, `LENGTH`: values then fit the fixed point of sealed sums, and so do their squares, up to the
default `scheme.bound`. With thousands of coordinates and tens of clients, variances are poorly known and
responsibilities are 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from flameche.em.leaves import Leaves
from flameche.em.mixture import KNOWN, Blocks, borrowed
from flameche.em.sketch import Sketch
from flameche.em.spherical import Centroids, Floats, Ints, class_norm, sample_weight

FLOOR = 2e-6  # of a variance, for blocks of length 4: above what fixed point of 20 bits and more rounds
LENGTH = 4.0
NATS = 16.0  # a log density a coordinate, at most
FARTHEST = 7.0  # standard deviations of a sketch along an axis, at most: of all clients, so that squares fit
NARROWEST = 1e-3  # the shared covariance's least variance, of that of all clients along all axes
FULL_NATS = 64.0  # a log density a number of a sketch, at most


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian for each component and class; `tied`: one variance a coordinate for all."""

    blocks: int
    features: int
    tied: bool = False
    floor: float = field(default=FLOOR)
    hard: ClassVar[bool] = False
    moments: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """Count the weighted blocks, their squares, and the weights."""
        return 2 * self.blocks * self.features + self.blocks

    @property
    def scale(self) -> float:
        """Bound a log density by so much a coordinate."""
        return NATS * self.blocks * self.features

    def prepare(self, phi: Floats, counts: Ints) -> Blocks:
        """Scale each class mean to one length; it weighs as much as its samples."""
        return Blocks(LENGTH * class_norm(phi), sample_weight(counts))

    def statistics(self, own: Blocks) -> Floats:
        """Give the weighted blocks, their weighted squares, and the weights."""
        weight, many = own.weight[:, :, None], (len(own), -1)
        parts = [(own.x * weight).reshape(many), (own.x**2 * weight).reshape(many), own.weight]
        return np.concatenate(parts, axis=1)

    def log_density(self, own: Blocks, totals: Floats, inside: Floats | None = None) -> Floats:
        """Add up the log densities of a client's coordinates, by the weights of their classes."""
        mean, variance, known = self.parameters(totals)
        density, mass = np.empty((len(own), len(totals))), self._parts(totals)[2]
        for k in range(len(totals)):  # a difference before its square: nothing cancels
            part = own.weight * (0.0 if inside is None else inside[:, [k]])
            gap = (own.x - mean[k]) * others(mass[k], part)[:, :, None]
            away = gap**2 / variance[k] + np.log(2 * np.pi * variance[k])
            density[:, k] = -0.5 * (away.sum(axis=2) * own.weight) @ known[k]
        return density

    def parameters(self, totals: Floats) -> tuple[Floats, Floats, Floats]:
        """Give means and variances [K B F], and which classes anybody knows, as ones and zeros [K B]."""
        first, second, mass = self._parts(totals)
        both, borrowed_mass = borrowed(np.concatenate([first, second], axis=2), mass)
        known = borrowed_mass > 0
        scale = np.where(known, borrowed_mass, 1.0)[:, :, None]
        mean, square = both[:, :, : self.features] / scale, both[:, :, self.features :] / scale
        variance = square - mean**2
        if self.tied:
            own = np.divide(first**2, mass[:, :, None], out=np.zeros_like(first), where=mass[:, :, None] > 0)
            together = np.where(known[0], mass.sum(axis=0), 1.0)[:, None]
            variance = np.broadcast_to((second - own).sum(axis=0) / together, mean.shape)
        return mean, np.maximum(variance, self.floor), known.astype(np.float64)

    def start(self, centroids: Centroids, count: Floats) -> Floats:
        """Take variances alike in all directions; their sum follows from the lengths of means."""
        x, mass = LENGTH * centroids.theta, centroids.mass[:, :, None]
        away = np.maximum(LENGTH**2 - (x**2).sum(axis=2, keepdims=True), 0.0) / self.features
        many = (len(x), -1)
        first, second = (x * mass).reshape(many), ((x**2 + away) * mass).reshape(many)
        return np.column_stack([first, second, centroids.mass, count])

    def _parts(self, totals: Floats) -> tuple[Floats, Floats, Floats]:
        """Take totals apart: sums and sums of squares [K B F], mass [K B]."""
        many, shape = self.blocks * self.features, (len(totals), self.blocks, self.features)
        first, second = totals[:, :many].reshape(shape), totals[:, many : 2 * many].reshape(shape)
        return first, second, np.maximum(totals[:, 2 * many : -1], 0.0)

    def log_prior(self, totals: Floats) -> float:
        """Give nothing: there is no prior."""
        return 0.0

    def alike(self) -> Gaussian:
        """Give the family with one variance a coordinate."""
        return replace(self, tied=True)


@dataclass(frozen=True)
class Full:
    """A Gaussian with full covariance for each component, of sketches in standard deviations of all clients.

    shared [q q]: a covariance, in these units; strength: how many clients it counts as.
    """

    sketch: Sketch
    shared: Floats
    strength: float
    hard: ClassVar[bool] = False
    moments: ClassVar[bool] = True

    @classmethod
    def within(cls, sketch: Sketch, clusters: Leaves) -> Full:
        """Make the family whose shared covariance is as wide as these clusters, and round before scaling.

        Of few clients, one in the wrong cluster makes their covariance widest where it tells clusters apart.
        """
        width = float(np.trace(clusters.scatter)) / max(float(clusters.count.sum()), 1.0) / sketch.size
        least = NARROWEST * float(sketch.variance.mean())
        return cls(sketch, np.diag(max(width, least) / deviation(sketch) ** 2), float(sketch.size))

    @property
    def size(self) -> int:
        """Count the numbers of a sketch and its second moments."""
        q = self.sketch.size
        return q + q * (q + 1) // 2

    @property
    def scale(self) -> float:
        """Bound a log density by so much a number of the sketch."""
        return FULL_NATS * self.sketch.size

    def prepare(self, phi: Floats, counts: Ints) -> Blocks:
        """Sketch metadata; what is farther than `FARTHEST` counts as so far."""
        y = self.sketch.of(class_norm(phi), sample_weight(counts)) / deviation(self.sketch)
        return Blocks(np.clip(y, -FARTHEST, FARTHEST)[:, None, :], np.ones((len(y), 1)))

    def statistics(self, own: Blocks) -> Floats:
        """Give the sketch and its second moments."""
        y = own.x[:, 0]
        rows, columns = np.triu_indices(y.shape[1])
        return np.column_stack([y, y[:, rows] * y[:, columns]])

    def log_density(self, own: Blocks, totals: Floats, inside: Floats | None = None) -> Floats:
        """Give the log densities of sketches."""
        y, (mean, covariance) = own.x[:, 0], self.parameters(totals)
        density = np.empty((len(y), len(mean)))
        stretch = others(totals[:, -1], np.zeros_like(density) if inside is None else inside)
        for k, (values, vectors) in enumerate(map(np.linalg.eigh, covariance)):
            spread = np.maximum(values, FLOOR)
            away = ((y - mean[k]) @ vectors) ** 2 / spread * stretch[:, k, None] ** 2
            density[:, k] = -0.5 * (away + np.log(2 * np.pi * spread)).sum(axis=1)
        return density

    def parameters(self, totals: Floats) -> tuple[Floats, Floats]:
        """Give means [K q] and covariances [K q q]."""
        q, n = self.sketch.size, np.maximum(totals[:, -1], KNOWN)
        mean = totals[:, :q] / n[:, None]
        rows, columns = np.triu_indices(q)
        second = np.empty((len(totals), q, q))
        second[:, rows, columns] = second[:, columns, rows] = totals[:, q:-1]
        scatter = second - n[:, None, None] * mean[:, :, None] * mean[:, None, :]
        return mean, (scatter + self.strength * self.shared) / (n + self.strength)[:, None, None]

    def log_prior(self, totals: Floats) -> float:
        """Give the prior's part of what no step lowers, up to a constant."""
        covariance = self.parameters(totals)[1]
        inside = np.trace(np.linalg.solve(covariance, self.shared[None]), axis1=1, axis2=2)
        return float(-0.5 * self.strength * (np.linalg.slogdet(covariance)[1] + inside).sum())

    def start(self, centroids: Centroids, count: Floats) -> Floats:
        """Give every component the shared covariance; centroids are of sketches, one block."""
        mean = centroids.theta[:, 0] / deviation(self.sketch)
        rows, columns = np.triu_indices(self.sketch.size)
        second = self.shared[rows, columns] + mean[:, rows] * mean[:, columns]
        return np.column_stack([count[:, None] * mean, count[:, None] * second, count])

    def alike(self) -> Full:
        """Give itself: what few clients can tell, the prior sees to."""
        return self


def others(mass: Floats, part: Floats) -> Floats:
    """Tell by how much a mean over `mass` is farther from a client if its own part is taken out."""
    left = mass - part
    stretch: Floats = np.where(left > KNOWN, mass / np.maximum(left, KNOWN), 1.0)
    return stretch


def deviation(sketch: Sketch) -> Floats:
    """Give the standard deviations of all clients along a sketch's axes [q]."""
    return np.sqrt(np.maximum(sketch.variance, FLOOR * max(float(sketch.variance.max()), FLOOR)))
