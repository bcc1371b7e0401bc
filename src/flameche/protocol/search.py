"""The phases of the search for better clusters, and for how many; each is a sum like any other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flameche.em import criteria, selection, spherical
from flameche.em.selection import Merger
from flameche.em.spherical import Centroids, Floats, Ints

GAIN_SCALE, GAIN_CUT = 12.5, 1.0  # a gain of 0.08 counts like any larger one; 1 fits any scheme.bound


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
