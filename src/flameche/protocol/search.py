"""The phases of the search for better clusters, and for how many; each is a sum like any other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flameche.em import criteria, others, selection, spherical, splitmerge
from flameche.em.selection import Merger
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.em.splitmerge import Options

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
    """By how much clients are nearer to their centroids after each of some moves than before it.

    Without their own parts: clients are in the sums before a move, and who judges it did not make it.
    """

    options: Options

    def of(self, clients: Ints) -> PairedTest:
        """Keep what clients [n] know of their own parts."""
        rows = self.options.rows
        own = None if rows.own is None else rows.own[clients]
        return PairedTest(replace(self.options, rows=replace(rows, own=own)))

    def contribute(self, phi: Floats, weight: Floats, assignment: Ints) -> Floats:
        """Give the gain by each move, their squares, a one; scaled and cut so that fixed point holds them."""
        rows = self.options.rows
        own = np.zeros((len(phi), len(rows))) if rows.own is None else rows.own
        near = others.cosine(phi, weight, rows, own)
        before = near[:, self.options.before].max(axis=1)
        after = np.where(self.options.after, near[:, None], -np.inf).max(axis=2)
        gain = np.clip((after - before[:, None]) * GAIN_SCALE, -GAIN_CUT, GAIN_CUT)
        return np.concatenate([gain, gain**2, np.ones((len(phi), 1))], axis=1)

    def absorb(self, totals: Floats) -> Floats:
        """Give the sums [2 P + 1]."""
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
