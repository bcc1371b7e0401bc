"""The phases of the search for better clusters, and for how many; each is a sum like any other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flameche.em import criteria, selection, spherical, splitmerge
from flameche.em.selection import Merger
from flameche.em.spherical import Centroids, Floats, Ints

GAIN_SCALE, GAIN_CUT = 12.5, 1.0  # a gain of 0.08 counts like any larger one; 1 fits any scheme.bound


@dataclass(frozen=True)
class Turn:
    """One power iteration towards the direction in which a cluster is widest."""

    centre: Floats
    direction: Floats

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give (x . v) x."""
        return splitmerge.turn_terms(phi, weight, self.centre, self.direction)

    def absorb(self, totals: Floats) -> Floats:
        """Give the sum, not yet of length one."""
        total: Floats = totals.sum(axis=0)
        return total


@dataclass(frozen=True)
class Statistics:
    """The M-step's sums themselves, per cluster."""

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the weighted metadata, the weights, a one."""
        return spherical.statistics(phi, weight)

    def absorb(self, totals: Floats) -> Floats:
        """Give the sums [K S]."""
        return totals


@dataclass(frozen=True)
class PairedTest:
    """By how much clients are nearer to a candidate's centroids than to the current ones."""

    current: Centroids
    candidate: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the gain, its square, a one; scaled and cut so that fixed point holds both."""
        before = spherical.e_step(phi, weight, self.current)[1]
        after = spherical.e_step(phi, weight, self.candidate)[1]
        gain = np.clip((before - after) * GAIN_SCALE, -GAIN_CUT, GAIN_CUT)
        return np.stack([gain, gain**2, np.ones(len(phi))], axis=1)

    def absorb(self, totals: Floats) -> Floats:
        """Give the three sums [3]."""
        total: Floats = totals.sum(axis=0)
        return total


@dataclass(frozen=True)
class MergerTest:
    """By how much clients lose, merger by merger, on the way from many clusters to one."""

    steps: tuple[Centroids, ...]  # from most clusters to one

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give what each merger costs, its square, its magnitude."""
        errors = np.stack([spherical.e_step(phi, weight, each)[1] for each in self.steps], axis=1)
        return selection.merger_terms(errors, GAIN_SCALE, GAIN_CUT)

    def absorb(self, totals: Floats) -> list[Merger]:
        """Give the mergers, judged."""
        return selection.mergers(totals.sum(axis=0), [len(step) for step in self.steps])


@dataclass(frozen=True)
class Silhouette:
    """How much nearer clients are to their own cluster's mean than to the next one's."""

    means: Centroids

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the client's width and a one."""
        return criteria.silhouette_terms(spherical.unit_norm(phi), weight, assignment, self.means)

    def absorb(self, totals: Floats) -> float:
        """Give the mean width."""
        width, count = totals.sum(axis=0)
        return float(width / count) if count > 0.5 else float("nan")
