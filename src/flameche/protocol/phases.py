"""The phases: what clients contribute, and what becomes of the sums. Nothing here knows of encryption.

A phase turns each client's metadata into one term [S]; the server adds the terms of each cluster; `absorb`
turns the K sums [K S] into the phase's result, wherever they may be opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

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
class UnitMeans:
    """Means of unit-norm metadata per cluster: the first half of DBI and CH."""

    empty: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the metadata scaled to length one, the presence of blocks, a one."""
        return spherical.statistics(spherical.unit_norm(phi), (weight > 0).astype(float))

    def absorb(self, totals: Floats) -> Centroids:
        """Divide sums by counts."""
        return spherical.m_step(totals, self.empty)


@dataclass(frozen=True)
class Spread:
    """Distances to the cluster means: the second half of DBI and CH."""

    means: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the distance to the own cluster's mean, its square, a one."""
        return criteria.spread_terms(spherical.unit_norm(phi), weight, assignment, self.means)

    def absorb(self, totals: Floats) -> tuple[float, float]:
        """Give DBI and CH."""
        return criteria.davies_bouldin(self.means, totals), criteria.calinski_harabasz(self.means, totals)
