"""Soft EM over mixtures of an exponential family: what adds is the state, everything else follows from it.

Equations 1 to 3 of the FLAMECHE paper; Dempster, Laird and Rubin, JRSS B 39, 1977. A mixture of K
components *is* its totals [K S+1]: for every component the sum over clients of r_ik t(x_i), and in the
last column that of r_ik, its mass. Means, concentrations, variances and mixing weights are functions of the
totals, so whoever may open the sums has the whole mixture, and a server has nothing to do but add.

Clients hold blocks, one per class, x [C B F] with weights [C B]. A client's log density is the sum over its
blocks, each times its weight; a class that it lacks has weight zero and takes no part. Of a class that a
component knows nothing of, it says what all components together say, and nothing if none of them knows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from flameche.em.spherical import Centroids, Floats, Ints

KNOWN = 1e-6  # less mass behind a class or a component is rounding error of sealed sums, and counts as none


@dataclass(frozen=True)
class Blocks:
    """What clients hold, as a family sees it: x [C B F], weight [C B]."""

    x: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.x)


class Family(Protocol):
    """One exponential family: its sufficient statistics, and its density from their totals."""

    @property
    def hard(self) -> bool:
        """Tell whether a client belongs to one component alone."""
        ...

    @property
    def moments(self) -> bool:
        """Tell whether there are second moments among the statistics."""
        ...

    @property
    def size(self) -> int:
        """Count the statistics of a client: S."""
        ...

    @property
    def scale(self) -> float:
        """Tell what a client's log density is of the order of: it is told in this unit, cut at one."""
        ...

    def prepare(self, phi: Floats, counts: Ints) -> Blocks:
        """Make of metadata phi [C B F] and the samples behind them [C B] what the density is of."""
        ...

    def statistics(self, own: Blocks) -> Floats:
        """Write each client's sufficient statistics t(x) [C S]."""
        ...

    def log_density(self, own: Blocks, totals: Floats, inside: Floats | None = None) -> Floats:
        """Give every client's log density under components that have these totals: [C K].

        inside [C K]: how much of each client's own statistics is in the totals; it is taken out of the means.
        """
        ...

    def log_prior(self, totals: Floats) -> float:
        """Give the prior's part of what no step lowers, up to a constant; zero without a prior."""
        ...

    def start(self, centroids: Centroids, count: Floats) -> Floats:
        """Give totals [K S+1] to begin with, from the means of `count` clients each [K] alone."""
        ...

    def alike(self) -> Family:
        """Give the family in which all components have one spread: what few clients can tell."""
        ...


def log_mixing(totals: Floats) -> Floats:
    """Give the logarithms of the mixing weights [K]; equal ones where nothing has mass yet."""
    mass = np.where(totals[:, -1] > KNOWN, totals[:, -1], 0.0)
    if not mass.any():
        return np.full(len(totals), -np.log(len(totals)))
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(mass) - np.log(mass.sum())
    return logs


def e_step(
    family: Family, own: Blocks, totals: Floats, inside: Floats | None = None
) -> tuple[Floats, Floats]:
    """Compute responsibilities (Eq. 2) and log-likelihoods: [C K], rows that sum to one, and [C].

    In a hard family the densest component takes all, the first of equals, whatever its mass. inside [C K]:
    how much of each client's own is in the totals, where means are to be without it (`em/hartigan.py`).
    """
    density = family.log_density(own, totals, inside)
    if family.hard:
        density = np.where(np.isneginf(log_mixing(totals)), -np.inf, density)
        return np.eye(len(totals))[density.argmax(axis=1)], density.max(axis=1)
    joint = density + log_mixing(totals)
    likelihood = logsumexp(joint, axis=1)
    resp = np.exp(joint - likelihood[:, None])
    return resp / resp.sum(axis=1, keepdims=True), likelihood


def m_step(sums: Floats, previous: Floats) -> Floats:
    """Take sums [K S+1] for the new totals (Eq. 3); a component without mass keeps its own."""
    return np.where(sums[:, -1:] > KNOWN, sums, previous)


def borrowed(sums: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Give components what all together know of the classes they know nothing of.

    sums [K B X], mass [K B] -> the same, filled; a class that nobody knows stays at zero.
    """
    known = mass > KNOWN
    sums, mass = sums * known[:, :, None], mass * known
    return (
        np.where(known[:, :, None], sums, sums.sum(axis=0)),
        np.where(known, mass, mass.sum(axis=0)),
    )
