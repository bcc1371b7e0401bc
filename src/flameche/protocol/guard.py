"""The leakage guard: which sums may be opened.

A sum over one client *is* that client's metadata, and two sums that differ by one client give it away too. So
sums are released only if each holds at least `least` clients, and if no union of clusters differs from any
union of clusters released before by fewer than `least` clients: sums can be added up. Three clients that go
from A to B, and a fourth that is new in B, would otherwise show the fourth. What is not released is deferred:
the centroid stays as it is until enough have moved.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import Ints

Members = NDArray[np.bool_]  # [sets C]
Counts = NDArray[np.int16]  # [sums C]
MOST_UNIONS = 6  # clusters of which all unions are looked at; beyond, single clusters, pairs and all together
MOST_CELLS = 20_000_000  # sets times clients that are remembered; older releases are forgotten beyond


class LeakageGuard:
    """Remembers every union of clusters whose sum was ever released."""

    def __init__(self, clients: int, clusters: int, least: int) -> None:
        self.least = least
        self.deferred = 0  # sums held back so far
        self._released = np.zeros((clusters, clients), bool)  # in each cluster's last released sum
        self._known: Counts = np.zeros((0, clients), np.int16)
        self._unions = _unions(clusters)

    def permits(self, members: Ints, assignment: Ints) -> list[bool]:
        """Tell for each cluster whether the sum over these members [n] may be opened; remember those."""
        now = np.zeros_like(self._released)
        now[assignment, members] = True
        there = now.sum(axis=1) > 0
        if self.least <= 1:
            return [bool(one) for one in there]
        after = np.where(
            there[:, None], now, self._released
        )  # nobody's sum is not opened: the last one stays
        allowed = self.allowed(self._released, after) & there
        self.deferred += int((there & ~allowed).sum())
        self._released = np.where(allowed[:, None], now, self._released)
        self.remember(self._released)
        return [bool(one) for one in allowed]

    def allowed(self, before: Members, after: Members) -> NDArray[np.bool_]:
        """Tell which clusters may go from sums over `before` to sums over `after` [K C]; the others stay."""
        allowed: NDArray[np.bool_] = np.isin(after.sum(axis=1), range(1, self.least), invert=True)
        while True:
            shown = np.where(allowed[:, None], after, before)
            moved = (shown ^ before).sum(axis=1)
            apart = _distances(_joined(self._unions, shown), self._known)
            leaking = ((apart > 0) & (apart < self.least)).sum(axis=1) > 0
            suspects = np.flatnonzero((self._unions[leaking].sum(axis=0) > 0) & (moved > 0))
            if len(suspects) == 0:
                return allowed
            allowed[suspects[moved[suspects].argmin()]] = False

    def remember(self, released: Members) -> None:
        """Keep the unions of what was released."""
        if self.least <= 1:
            return
        fresh = _joined(self._unions, released)
        fresh = fresh[fresh.sum(axis=1) > 0]
        known = np.unique(np.concatenate([self._known, fresh]), axis=0) if len(fresh) else self._known
        if known.size > MOST_CELLS:  # the newest at least
            known = np.concatenate([self._known, fresh])[-max(len(fresh), MOST_CELLS // known.shape[1]) :]
        self._known = known

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Give what was released, for a checkpoint."""
        return {"guard_released": self._released, "guard_known": self._known}

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self._released = arrays["guard_released"].astype(bool)
        self._known = arrays["guard_known"].astype(np.int16)


def _unions(clusters: int) -> Members:
    """List unions of clusters as rows of ones and zeros [U K]."""
    if clusters <= MOST_UNIONS:
        rows = [row for row in itertools.product((False, True), repeat=clusters) if any(row)]
        return np.array(rows)
    single = np.eye(clusters, dtype=bool)
    pairs = [single[i] | single[j] for i, j in itertools.combinations(range(clusters), 2)]
    return np.array([*single, *pairs, np.ones(clusters, bool)])


def _joined(unions: Members, sets: Members) -> Counts:
    """Add up unions [U K] of sets [K C]: how often each client is in each [U C].

    Sets overlap where one cluster's last release is older than another's; then a client counts twice.
    """
    return (unions.astype(np.int16) @ sets.astype(np.int16)).astype(np.int16)


def _distances(a: Counts, b: Counts) -> Ints:
    """Count the clients in which sums over a [U C] and b [V C] differ [U V]; nothing differs from nobody."""
    rows = [(row != b).sum(axis=1) * bool(row.any()) for row in a]
    return np.array(rows, np.int64).reshape(len(a), len(b))
