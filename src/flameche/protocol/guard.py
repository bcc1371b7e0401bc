"""The leakage guard: which sums may be opened.

A sum over one client *is* that client's metadata, and two sums that differ by one client give it away too. So
sums are released only if each holds at least `least` clients, and if no union of clusters differs from any
union of clusters released before by fewer than `least` clients: sums can be added up. Three clients that go
from A to B, and a fourth that is new in B, would otherwise show the fourth. What is not released is deferred:
the centroid stays as it is until enough have moved.

Sums are compared two by two. Many of them together may still be solved for single clients, which this guard
does not see (SECURITY.md; tests/protocol/test_attacks.py).

A client whose data drifted sends another term: two sums over the same clients then differ by its change. So
terms have versions, and a client counts as a difference where it is in one union and not in the other, or in
both with different terms; however it differs, it is one client.

A client is known here by its kind: which version of its term each cluster's sum holds. Of 100,000 clients
most are alike, so two releases are compared kind by kind, not client by client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import Ints

Members = NDArray[np.uint32]  # [sets C], the version of a client's term that a set holds; 0 for none
Kinds = NDArray[np.uint32]  # [kinds K]
MOST_UNIONS = 6  # clusters of which all unions are looked at; beyond, single clusters, pairs and all together
MOST_CELLS = 20_000_000  # releases times clients that are remembered; older ones are forgotten beyond
AT_ONCE = 4_000_000  # comparisons held in memory


class Cells(NamedTuple):
    """Clients counted by their kind now and their kind in an earlier release [m]."""

    now: Ints
    then: Ints
    clients: Ints


NOWHERE, SEVERAL = -1, -2


class Alone(NamedTuple):
    """For each kind, the one cluster whose sum holds its clients (or none, or several), and their version."""

    cluster: Ints
    version: NDArray[np.uint32]

    @classmethod
    def of(cls, kinds: Kinds) -> Alone:
        """Read it off the kinds [P K]."""
        held = (kinds > 0).sum(axis=1)
        where = np.where(held == 1, (kinds > 0).argmax(axis=1), np.where(held == 0, NOWHERE, SEVERAL))
        return cls(where, kinds.max(axis=1, initial=0))


class LeakageGuard:
    """Remembers every release: which clusters' sums held each client."""

    def __init__(self, clients: int, clusters: int, least: int) -> None:
        self.least = least
        self.deferred = 0  # sums held back so far
        self.version = np.ones(clients, np.uint32)  # of each client's term
        self._released: Members = np.zeros((clusters, clients), np.uint32)  # in each cluster's last release
        self._kinds: Kinds = np.zeros((0, clusters), np.uint32)
        self._past: NDArray[np.integer] = np.zeros((0, clients), np.uint8)  # every client's kind [T C]
        self._unions = _unions(clusters if least > 1 else 1)  # looked at where anything is guarded

    def renew(self, clients: Ints, version: NDArray[np.uint32]) -> None:
        """Note which of their terms [n] these clients have in the sums from now on; equal terms are equal."""
        self.version[clients] = version

    def permits(self, members: Ints, assignment: Ints) -> list[bool]:
        """Tell for each cluster whether the sum over these members [n] may be opened; remember those."""
        now = np.zeros_like(self._released)
        now[assignment, members] = self.version[members]
        there = (now > 0).sum(axis=1) > 0
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
        allowed: NDArray[np.bool_] = np.isin((after > 0).sum(axis=1), range(1, self.least), invert=True)
        kinds, kind = _sorted_out(np.concatenate([before, after]))
        old, new = np.hsplit(kinds, 2)
        clients = np.bincount(kind, minlength=len(kinds))
        past = [_cells(kind, row, len(self._kinds)) for row in self._past]
        while True:
            shown = np.where(allowed, new, old)
            moved = clients @ (shown != old)
            leaking = self._leaking(shown, clients, past)
            suspects = np.flatnonzero(self._unions[leaking].any(axis=0) & (moved > 0))
            if len(suspects) == 0:
                return allowed
            allowed[suspects[moved[suspects].argmin()]] = False

    def _leaking(self, shown: Kinds, clients: Ints, past: list[Cells]) -> NDArray[np.bool_]:
        """Tell which unions [U] differ from an earlier one by few; there are clients [Q] of each kind now."""
        leaking = np.zeros(len(self._unions), bool)
        rows, alone, before = _different(self._unions, shown), Alone.of(shown), Alone.of(self._kinds)
        now = _joined(self._unions[rows], shown)
        there = (now != 0) @ clients > 0
        for cells in past:
            earlier = self._unions[_different(self._unions, self._kinds[np.unique(cells.then)])]
            then = _joined(earlier, self._kinds)
            near = _least_apart(self._unions[rows], earlier, alone, before, cells) < self.least
            for i, j in _in_parts(near & there[:, None], len(cells.now)):
                a, b = now[i][:, cells.now], then[j][:, cells.then]
                apart = (a != b) @ cells.clients
                few = (apart > 0) & (apart < self.least) & b.any(axis=1)
                leaking[rows[i[few]]] = True
        return leaking

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
            "guard_version": self.version,
            "guard_released": self._released,
            "guard_kinds": self._kinds,
            "guard_past": self._past,
            "guard_deferred": np.array(self.deferred),
        }

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self.version = arrays.get("guard_version", self.version).astype(np.uint32)
        self._released = arrays["guard_released"].astype(np.uint32)
        self._kinds = arrays["guard_kinds"].astype(np.uint32)
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


def _joined(unions: NDArray[np.bool_], kinds: Kinds) -> NDArray[np.uint64]:
    """Tell what of a client of each kind [P K] is in each union [U K] of sums: [U P], 0 for nothing.

    Sets overlap where one cluster's last release is older than another's; then a client counts twice. A first
    version counts 1, every later one a number scattered over 64 bits (splitmix64), so that only equal terms
    add up to equal numbers.
    """
    number = kinds.T.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    number = np.where(kinds.T > 1, number ^ (number >> np.uint64(31)), kinds.T.astype(np.uint64))
    joined: NDArray[np.uint64] = unions.astype(np.uint64) @ number
    return joined


def _sorted_out(sets: Members) -> tuple[Kinds, Ints]:
    """List the kinds [P K] of clients in sets [K C], and the kind of each client [C]."""
    rows = np.ascontiguousarray(sets.T)
    words = rows.view(f"V{rows.itemsize * rows.shape[1]}").ravel()
    _, first, kind = np.unique(words, return_index=True, return_inverse=True)
    return sets[:, first].T, kind


def _different(unions: NDArray[np.bool_], kinds: Kinds) -> Ints:
    """Choose the unions that are sums of their own: without clusters that hold nobody, and the whole."""
    empty = ~(kinds > 0).any(axis=0)
    return np.flatnonzero(~(unions & empty).any(axis=1) | unions.all(axis=1))


def _least_apart(
    unions: NDArray[np.bool_], earlier: NDArray[np.bool_], now: Alone, then: Alone, cells: Cells
) -> NDArray[np.float64]:
    """Count the clients by which each union now differs from each earlier one [U V], or fewer.

    Only clients count that are in one sum at most, now and then: their differences come from how many went
    from each cluster to each, without comparing unions one by one.
    """
    here, there = now.cluster[cells.now], then.cluster[cells.then]
    same = now.version[cells.now] == then.version[cells.then]
    clusters, plain = unions.shape[1], (here != SEVERAL) & (there != SEVERAL)
    one, other = plain & (here >= 0), plain & (there >= 0)
    both, shared = one & other, np.zeros((clusters, clusters))
    np.add.at(shared, (here[both], there[both]), np.where(same, 2.0, 1.0)[both] * cells.clients[both])
    a = np.bincount(here[one], cells.clients[one], clusters)
    b = np.bincount(there[other], cells.clients[other], clusters)
    sets, others = unions.astype(np.float64), earlier.astype(np.float64)
    apart: NDArray[np.float64] = (sets @ a)[:, None] + others @ b - sets @ shared @ others.T
    return apart


def _in_parts(near: NDArray[np.bool_], cells: int) -> Iterator[tuple[Ints, Ints]]:
    """List the pairs of unions that are near, as many at once as memory allows."""
    i, j = np.nonzero(near)
    step = max(1, AT_ONCE // cells)
    for at in range(0, len(i), step):
        yield i[at : at + step], j[at : at + step]


def _cells(now: Ints, then: NDArray[np.integer], kinds: int) -> Cells:
    """Count the clients of each pair of kinds."""
    pair, clients = np.unique(now * kinds + then, return_counts=True)
    return Cells(pair // kinds, pair % kinds, clients)
