"""The phases: what clients contribute, and what becomes of the sums. Nothing here knows of encryption.

A phase turns each client's metadata into one term [S]; the server adds the terms of each cluster; `absorb`
turns the K sums [K S] into the phase's result, wherever they may be opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from flameche.em import criteria, spherical
from flameche.em.spherical import Centroids, Floats, Ints

Result = TypeVar("Result", covariant=True)


class Phase(Protocol[Result]):
    """One exchange: contribute, add, absorb."""

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Compute each client's term: phi [n B F], weight [n B], assignment [n] -> [n S]."""
        ...

    def absorb(self, totals: Floats) -> Result:
        """Turn the sums of the K clusters [K S] into the result."""
        ...


@dataclass(frozen=True)
class MStep:
    """Sums of metadata become centroids (Eq. 5); an empty cluster keeps its own."""

    previous: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the weighted metadata, the weights, a one."""
        return spherical.statistics(phi, weight)

    def absorb(self, totals: Floats) -> Centroids:
        """Divide sums by counts."""
        return spherical.m_step(totals, self.previous)


@dataclass(frozen=True)
class UnitMeans(MStep):
    """Means of unit-norm metadata per cluster: the first half of DBI and CH."""

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the metadata scaled to length one, the presence of blocks, a one."""
        return spherical.statistics(spherical.unit_norm(phi), (weight > 0).astype(float))


@dataclass(frozen=True)
class Spread:
    """Distances to the cluster means: the second half of DBI and CH."""

    means: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the distance to the own cluster's mean, its square, a one."""
        return criteria.spread_terms(spherical.unit_norm(phi), weight, assignment, self.means)

    def absorb(self, totals: Floats) -> tuple[float, float]:
        """Give DBI and CH."""
        return criteria.from_spread(self.means, totals)


@dataclass(frozen=True)
class Errors:
    """Mean error per cluster: how far its clients lie from their nearest centroid."""

    centroids: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the distance to the nearest centroid, a one."""
        error = spherical.e_step(phi, weight, self.centroids)[1]
        return np.column_stack([error, np.ones(len(phi))])

    def absorb(self, totals: Floats) -> Floats:
        """Give the clients counted and their mean error [K 2]; NaN for a cluster without a sum."""
        count = np.rint(totals[:, 1])
        mean = np.divide(totals[:, 0], count, out=np.full(len(totals), np.nan), where=count > 0)
        return np.column_stack([count, mean])


@dataclass(frozen=True)
class Deviations(Errors):
    """Mean absolute deviation of errors from their mean; squares would drown in fixed point's rounding."""

    errors: Floats  # [K 2], what `Errors` gave

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the distance of the own error from the cluster's mean, a one."""
        terms = super().contribute(phi, weight, assignment)
        terms[:, 0] = np.abs(terms[:, 0] - np.nan_to_num(self.errors[assignment, 1]))
        return terms

    def absorb(self, totals: Floats) -> Floats:
        """Give the mean deviation [K]; NaN for a cluster without a sum."""
        return super().absorb(totals)[:, 1]
