"""The guard of a federation's whole life: which sums may be opened, given everything opened before.

A sum over a set of clients is a row of zeros and ones, a column for each client; where clients belong to a
cluster in part, of these shares. Whoever opens sums can form every combination of their rows. So a client
is solved as soon as some combination is that client alone, and a party that knows one client's term (a key
holder knows its own) solves another as soon as some combination holds just these two. The guard keeps an
orthonormal basis of all rows opened and refuses a sum that would let one client, or a pair, be solved; and
any sum over fewer than `least` clients. Combinations of three and more are not searched for: finding the
smallest support in a row space is hard in general.

Clients that every row so far counts alike are of one *kind*, and have equal columns in the basis, which is
kept by kind: of 100,000 clients most are alike. A combination holds all clients of a kind or none, so only
those that are alone in their kind, or two, can be solved.

A client whose data drifted contributes other terms than before: another column. A client's old and new terms
count as one client: a combination that holds just these two, or these and one other client's, is refused too.

With shares, a client can follow nearly: a sum of one that counts in full and two that count an eighth is
mostly the first's. So their effective number, (sum w)^2 / sum w^2, must be `least`, and what is left unknown
of a client, by itself or to one that knows its own term, at least `MARGIN`.

Second moments and histograms tell more than sums: they need twice as many clients, and so does the
difference of two sets over which second moments were opened, or of multiples of two rows of shares.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from flameche.errors import StoreError

Kind = Literal["sum", "histogram", "moments"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TINY = 1e-7
MARGIN = 0.25  # what stays unknown of a client, 1 less its leverage, after a sum by shares
AFTER_SHARES = 0.05  # of sums of whole terms once there are such: without them no more is known in practice
Arrays = dict[str, NDArray[np.generic]]


class Guard:
    """Remembers every set of clients over which a sum was opened."""

    def __init__(self, clients: int, least: int) -> None:
        self.least, self.refused = max(1, least), 0
        self.version = np.zeros(clients, np.int64)  # how often a client's metadata changed
        self._keys = np.arange(clients)  # of each column: client and version, as client + version * clients
        self._kind = np.zeros(clients, np.int64)  # of each column
        self._basis: Floats = np.zeros((0, 1))  # [rank kinds], orthonormal once written out by column
        self._moments: list[dict[int, float]] = []  # rows, by column, over which second moments were opened
        self._shared = False  # whether a row counts clients by different shares

    def renew(self, clients: Ints) -> None:
        """Note that these clients' metadata are others from now on."""
        self.version[clients] += 1

    @property
    def rank(self) -> int:
        """Count the sums opened that did not follow from others."""
        return len(self._basis)

    def copy(self) -> Self:
        """Give a guard that knows the same; what it admits, this one does not hear of."""
        other = copy.copy(self)
        other.version, other._moments = self.version.copy(), [*self._moments]
        return other

    def admit(
        self, members: Ints, kind: Kind = "sum", weight: Floats | None = None, version: Ints | None = None
    ) -> bool:
        """Tell whether a sum over these clients may be opened, and remember it if so.

        weight [n], above zero: how much each client counts; all in full where not given. version [n]: of
        the terms that it holds; those of now where not given.
        """
        shares = np.ones(len(members)) if weight is None else weight
        least = self.least if kind == "sum" else 2 * self.least
        if shares.sum() ** 2 < (least - TINY) * max((shares**2).sum(), TINY):
            self.refused += len(members) > 0
            return False
        if self.least == 1:
            return True  # nothing is guarded
        columns = self._columns_of(members, self.version[members] if version is None else version)
        held, basis, inside = self._extended(columns, shares)
        unequal = not bool((shares == shares[0]).all())
        margin = MARGIN if unequal else AFTER_SHARES if self._shared else TINY
        if not inside and self._exposes(held, basis, margin):
            self.refused += 1
            return False
        if kind == "moments":
            now = dict(zip(columns.tolist(), shares.tolist(), strict=True))
            if any(0 < self._apart(now, past) < least for past in self._moments):
                self.refused += 1
                return False
            if now not in self._moments:
                self._moments.append(now)
        if not inside:
            self._kind, self._basis = held, basis
            self._shared |= unequal
        return True

    def leverage(self) -> Floats:
        """Tell how near each client [C] is to being solved: 1 for one that is, 0 for one never summed."""
        h = np.zeros(len(self.version))
        np.maximum.at(h, self._owner, (self._basis**2).sum(axis=0)[self._kind])
        return h

    @property
    def _owner(self) -> Ints:
        owner: Ints = self._keys % len(self.version)
        return owner

    def _apart(self, now: dict[int, float], past: dict[int, float]) -> int:
        """Count the clients that the difference of two rows holds, or of multiples, at the fewest."""
        ratio = {c: now[c] / past[c] for c in now.keys() & past.keys()}
        ((same, _),) = Counter(ratio.values()).most_common(1) or ((0.0, 0),)
        gone = {c for c in ratio if ratio[c] == same}
        return len(set(self._owner[list((now.keys() | past.keys()) - gone)].tolist()))

    def _columns_of(self, clients: Ints, version: Ints) -> Ints:
        """Find the columns of these clients' terms; one that was never summed is like all such."""
        count = len(self.version)
        if not version.any():
            return clients
        keys = clients + version * count
        later = self._keys[count:]  # in the order in which they came
        new = np.setdiff1d(keys[version > 0], later)
        if len(new):
            zero = np.flatnonzero(~(self._basis != 0).any(axis=0))
            if len(zero) == 0:
                self._basis = np.pad(self._basis, ((0, 0), (0, 1)))
            kind = zero[0] if len(zero) else self._basis.shape[1] - 1
            self._keys = np.append(self._keys, new)
            self._kind = np.append(self._kind, np.full(len(new), kind))
            later = self._keys[count:]
        order = np.argsort(later)
        place = count + order[np.searchsorted(later, keys, sorter=order) % len(later)]
        columns: Ints = np.where(version > 0, place, clients)
        return columns

    def _extended(self, columns: Ints, weight: Floats) -> tuple[Ints, Floats, bool]:
        """Give all columns' kinds and the basis with one more row, and whether its span held that already.

        A kind of which the row holds a part, or parts by several weights, is several kinds from now on.
        """
        _, level = np.unique(weight, return_inverse=True)
        before, kinds = self._kind[columns], self._basis.shape[1]
        code = before * (int(level.max()) + 1) + level
        _, first, which, count = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
        old = before[first]
        parts = np.flatnonzero(count < np.bincount(self._kind, minlength=kinds)[old])
        new = old.copy()
        new[parts] = kinds + np.arange(len(parts))
        held = self._kind.copy()
        held[columns] = new[which]
        value = np.zeros(kinds + len(parts))
        value[new] = weight[first]
        basis = self._basis[:, np.append(np.arange(kinds), old[parts])]
        size = np.bincount(held, minlength=len(value))
        length = np.sqrt(size @ value**2)
        for _ in range(2):  # twice is enough, numerically
            value = value - ((basis * size) @ value) @ basis
        left = np.sqrt(size @ value**2)
        if left < TINY * length:
            return self._kind, self._basis, True
        return held, np.vstack([basis, value / left]), False

    def _exposes(self, kind: Ints, basis: Floats, margin: float) -> bool:
        """Tell whether some combination of the rows holds one client's terms alone, or two clients'.

        margin: what may be missing from it.
        """
        size, known = np.bincount(kind, minlength=basis.shape[1]), (basis**2).sum(axis=0)
        two = known[size == 2]
        if self.least > 2 and (two**2 > (1 - margin) * (1 - two) ** 2).any():
            return True
        lone = (size == 1) & (known > TINY)
        if (known[lone] > 1 - margin).any():
            return True
        if self.least > 2 and _pairs(basis[:, lone], known[lone], margin):
            return True
        return self._exposes_drifted(kind, basis, known, margin)

    def _exposes_drifted(self, kind: Ints, basis: Floats, known: Floats, margin: float) -> bool:
        """Look at clients with several terms: all of one's, where least > 2 with all of one other's.

        Of others those alone that share no kind with third clients can be set apart.
        """
        if len(self._keys) == len(self.version):
            return False
        summed = np.flatnonzero(known[kind] > TINY)
        owner = self._owner[summed]
        names, counts = np.unique(owner, return_counts=True)
        several = names[counts > 1]
        if len(several) == 0:
            return False
        size = np.bincount(kind, minlength=len(known))
        for name in several.tolist():
            own = summed[owner == name]
            others = [name]
            if self.least > 2:
                mine = np.bincount(kind[own], minlength=len(known))
                alone = (size - mine)[kind[summed]] == 1
                others += np.unique(owner[alone & (owner != name)]).tolist()
            for other in others:
                some = own if other == name else np.append(own, summed[owner == other])
                left = np.eye(len(some)) - basis[:, kind[some]].T @ basis[:, kind[some]]
                if np.linalg.eigvalsh(left)[0] < margin:
                    return True
        return False

    def state(self) -> Arrays:
        """Give the guard's memory, for a checkpoint."""
        sets = np.zeros((len(self._moments), len(self._keys)))
        for row, past in zip(sets, self._moments, strict=True):
            row[list(past)] = list(past.values())
        return {
            "guard/keys": self._keys[len(self.version) :],
            "guard/kind": self._kind,
            "guard/basis": self._basis,
            "guard/version": self.version,
            "guard/moments": sets,
            "guard/numbers": np.array([self.refused, self._shared]),
        }

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        if "guard/numbers" not in arrays:
            raise StoreError(
                "the checkpoint is of an earlier version, without the guard's memory; begin with --fresh"
            )
        self._keys = np.append(np.arange(len(self.version)), arrays["guard/keys"].astype(np.int64))
        self._kind = arrays["guard/kind"].astype(np.int64)
        self._basis = arrays["guard/basis"].astype(np.float64)
        self.version = arrays["guard/version"].astype(np.int64)
        rows = arrays["guard/moments"].astype(np.float64)
        self._moments = [{c: float(row[c]) for c in np.flatnonzero(row).tolist()} for row in rows]
        refused, shared = arrays["guard/numbers"].astype(np.int64).tolist()
        self.refused, self._shared = refused, bool(shared)


def _pairs(basis: Floats, known: Floats, margin: float) -> bool:
    """Tell whether a combination of rows [rank n] holds two columns alone, each of a client of its own.

    That is so where what is unknown of the two is parallel. It takes known shares [n] that add up to one at
    least, by which most pairs are left out.
    """
    odds = known / np.maximum(1 - known, TINY)
    high = np.flatnonzero(odds**2 > (1 - margin) * (1 - 1e-6))
    if len(high) == 0:
        return False
    near = np.flatnonzero(odds * odds[high].max() > (1 - margin) * (1 - 1e-6))
    both = basis[:, high].T @ basis[:, near]
    free = np.outer(1 - known[high], 1 - known[near])
    dependent = free - both**2 < margin * free
    dependent[high[:, None] == near] = False
    return bool(dependent.any())
