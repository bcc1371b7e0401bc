"""The leakage guard: which sums may be opened.

A sum over one client *is* that client's metadata, and two sums that differ by one client give it away too. So
sums are released only if each holds at least `least` clients, and if no union of clusters differs from any
union of clusters of the last release by fewer than `least` clients: sums can be added up. Three clients that
go from A to B, and a fourth that is new in B, would otherwise show the fourth. What is not released is
deferred: the centroid stays as it is until enough have moved.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import Ints

Members = NDArray[np.bool_]  # [K C]
MOST_UNIONS = 6  # clusters of which all unions are looked at; beyond, single clusters, pairs and all together


def permitted(before: Members, now: Members, least: int) -> NDArray[np.bool_]:
    """Tell which clusters may go from the sums released before to those over `now`; the others stay."""
    allowed: NDArray[np.bool_] = np.isin(now.sum(axis=1), range(1, least), invert=True)
    unions = _unions(len(now))
    known = _joined(unions, before)
    while True:
        after = np.where(allowed[:, None], now, before)
        moved = (after ^ before).sum(axis=1)
        shown = _joined(unions, after)
        apart = (shown[:, None] ^ known[None]).sum(axis=2)
        real = (shown.sum(axis=1) > 0)[:, None] & (known.sum(axis=1) > 0)[None]
        leaking = (real & (apart > 0) & (apart < least)).sum(axis=1) > 0
        suspects = np.flatnonzero((unions[leaking].sum(axis=0) > 0) & (moved > 0))
        if len(suspects) == 0:
            return allowed
        allowed[suspects[moved[suspects].argmin()]] = False


def _joined(unions: Members, sets: Members) -> Members:
    """Form unions [U K] of sets [K C]."""
    return unions.astype(np.int64) @ sets.astype(np.int64) > 0


def _unions(clusters: int) -> Members:
    """List unions of clusters as rows of ones and zeros [U K]."""
    if clusters <= MOST_UNIONS:
        rows = [row for row in itertools.product((False, True), repeat=clusters) if any(row)]
        return np.array(rows)
    single = np.eye(clusters, dtype=bool)
    pairs = [single[i] | single[j] for i, j in itertools.combinations(range(clusters), 2)]
    return np.array([*single, *pairs, np.ones(clusters, bool)])


class LeakageGuard:
    """Remembers who was in each cluster's last released sum."""

    def __init__(self, clients: int, clusters: int, least: int) -> None:
        self.least = least
        self.released = np.zeros((clusters, clients), bool)
        self.deferred = 0  # sums held back so far

    def permits(self, members: Ints, assignment: Ints) -> list[bool]:
        """Tell for each cluster whether the sum over these members [n] may be opened; remember those."""
        now = np.zeros_like(self.released)
        now[assignment, members] = True
        there = now.sum(axis=1) > 0
        if self.least <= 1:
            self.released = now
            return [bool(one) for one in there]
        allowed = permitted(self.released, now, self.least)
        self.deferred += int((~allowed & there).sum())
        self.released = np.where(allowed[:, None], now, self.released)
        return [bool(one) for one in allowed & there]
