"""The leakage guard: which sums may be opened.

A sum over one client *is* that client's metadata, and two sums that differ by one client give it away too. So
sums are released only if each holds at least `least` clients, and if no union of clusters differs from any
union of clusters released before by fewer than `least` clients: sums can be added up. Three clients that go
from A to B, and a fourth that is new in B, would otherwise show the fourth. What is not released is deferred:
the centroid stays as it is until enough have moved.

A client is known here by its kind, the set of clusters whose sums hold it. Of 100,000 clients most are alike,
so two releases are compared kind by kind, not client by client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import Ints

Members = NDArray[np.bool_]  # [sets C]
Kinds = NDArray[np.bool_]  # [kinds K]
MOST_UNIONS = 6  # clusters of which all unions are looked at; beyond, single clusters, pairs and all together
MOST_CELLS = 20_000_000  # releases times clients that are remembered; older ones are forgotten beyond
AT_ONCE = 4_000_000  # comparisons held in memory


class Cells(NamedTuple):
    """Clients counted by their kind now and their kind in an earlier release [m]."""

    now: Ints
    then: Ints
    clients: Ints


class LeakageGuard:
    """Remembers every release: which clusters' sums held each client."""

    def __init__(self, clients: int, clusters: int, least: int) -> None:
        self.least = least
        self.deferred = 0  # sums held back so far
        self._released = np.zeros((clusters, clients), bool)  # in each cluster's last released sum
        self._kinds: Kinds = np.zeros((0, clusters), bool)
        self._past: NDArray[np.integer] = np.zeros((0, clients), np.uint8)  # every client's kind [T C]
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
        kinds, kind = _sorted_out(np.concatenate([before, after]))
        old, new = np.hsplit(kinds, 2)
        clients = np.bincount(kind, minlength=len(kinds))
        past = [_cells(kind, row, len(self._kinds)) for row in self._past]
        while True:
            shown = np.where(allowed, new, old)
            moved = clients @ (shown ^ old)
            leaking = self._leaking(shown, clients, past)
            suspects = np.flatnonzero(self._unions[leaking].any(axis=0) & (moved > 0))
            if len(suspects) == 0:
                return allowed
            allowed[suspects[moved[suspects].argmin()]] = False

    def _leaking(self, shown: Kinds, clients: Ints, past: list[Cells]) -> NDArray[np.bool_]:
        """Tell which unions [U] differ from an earlier one by few; there are clients [Q] of each kind now."""
        leaking = np.zeros(len(self._unions), bool)
        now, then = _joined(self._unions, shown), _joined(self._unions, self._kinds)
        size = (now > 0) @ clients
        for cells in past:
            a, b = now[:, cells.now], then[:, cells.then]
            for i, j in self._near(size, (b > 0) @ cells.clients, len(cells.now)):
                apart = (a[i] != b[j]) @ cells.clients
                leaking[i[(apart > 0) & (apart < self.least)]] = True
        return leaking

    def _near(self, a: Ints, b: Ints, cells: int) -> Iterator[tuple[Ints, Ints]]:
        """Pair unions of a [U] clients with those of b [U] that may differ by few; nobody's with none."""
        near = (np.abs(a[:, None] - b) < self.least) & (a[:, None] > 0) & (b > 0)
        i, j = np.nonzero(near)
        step = max(1, AT_ONCE // cells)
        for at in range(0, len(i), step):
            yield i[at : at + step], j[at : at + step]

    def remember(self, released: Members) -> None:
        """Keep what was released."""
        if self.least <= 1 or not released.any():
            return
        kinds, kind = _sorted_out(released)
        known = {one.tobytes(): number for number, one in enumerate(self._kinds)}
        numbers = np.array([known.setdefault(one.tobytes(), len(known)) for one in kinds])
        self._kinds = np.concatenate([self._kinds, kinds[numbers >= len(self._kinds)]])
        row = numbers.astype(np.min_scalar_type(len(known)))[kind]
        if not (self._past == row).all(axis=1).any():
            most = max(1, MOST_CELLS // len(row))
            self._past = np.concatenate([self._past, row[None]])[-most:]

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Give what was released, for a checkpoint."""
        return {
            "guard_released": self._released,
            "guard_kinds": self._kinds,
            "guard_past": self._past,
            "guard_deferred": np.array(self.deferred),
        }

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self._released = arrays["guard_released"].astype(bool)
        self._kinds = arrays["guard_kinds"].astype(bool)
        self._past = arrays["guard_past"].astype(np.min_scalar_type(len(self._kinds)))
        self.deferred = int(arrays["guard_deferred"])


def _unions(clusters: int) -> NDArray[np.bool_]:
    """List unions of clusters as rows of ones and zeros [U K]."""
    if clusters <= MOST_UNIONS:
        rows = [row for row in itertools.product((False, True), repeat=clusters) if any(row)]
        return np.array(rows)
    single = np.eye(clusters, dtype=bool)
    pairs = [single[i] | single[j] for i, j in itertools.combinations(range(clusters), 2)]
    return np.array([*single, *pairs, np.ones(clusters, bool)])


def _joined(unions: NDArray[np.bool_], kinds: Kinds) -> Ints:
    """Count how often a client of each kind [P K] is in each union [U K] of sums: [U P].

    Sets overlap where one cluster's last release is older than another's; then a client counts twice.
    """
    return unions.astype(np.int64) @ kinds.T.astype(np.int64)


def _sorted_out(sets: Members) -> tuple[Kinds, Ints]:
    """List the kinds [P K] of clients in sets [K C], and the kind of each client [C]."""
    packed = np.ascontiguousarray(np.packbits(sets, axis=0).T)
    words = packed.view(f"V{packed.shape[1]}").ravel()
    _, first, kind = np.unique(words, return_index=True, return_inverse=True)
    return sets[:, first].T, kind


def _cells(now: Ints, then: NDArray[np.integer], kinds: int) -> Cells:
    """Count the clients of each pair of kinds."""
    pair, clients = np.unique(now * kinds + then, return_counts=True)
    return Cells(pair // kinds, pair % kinds, clients)
