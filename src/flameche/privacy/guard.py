"""The guard of a federation's whole life: which sums may be opened, given everything opened before.

A sum over a set of clients is a row of zeros and ones, a column for each client; where clients belong to a
cluster in part, of these shares. Whoever opens sums can form every combination of their rows. So a client
is solved as soon as some combination is that client alone, and a party that knows one client's term (a key
holder knows its own) solves another as soon as some combination holds just these two. The guard keeps an
orthonormal basis of all rows opened and refuses a sum that would let one client, or a pair, be solved; and
any sum over fewer than `least` clients. Combinations of three and more are not searched for: finding the
smallest support in a row space is hard in general.

A client whose data drifted contributes other terms than before: another column. A client's old and new terms
count as one client: a combination that holds just these two, or these and one other client's, is refused too.

With shares, a client can follow nearly: a sum of one that counts in full and two that count an eighth is
mostly the first's. So their effective number, (sum w)^2 / sum w^2, must be `least`, and what is left unknown
of a client, by itself or to one that knows its own term, at least `MARGIN`.

Second moments and histograms tell more than sums: they need twice as many clients, and so does the
difference of two sets over which second moments were opened, or of multiples of two rows of shares.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["sum", "histogram", "moments"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TINY = 1e-7
MARGIN = 0.25  # what stays unknown of a client, 1 less its leverage, after a sum by shares
Arrays = dict[str, NDArray[np.generic]]


class Guard:
    """Remembers every set of clients over which a sum was opened."""

    def __init__(self, clients: int, least: int) -> None:
        self.least, self.refused = max(1, least), 0
        self.version = np.zeros(clients, np.int64)  # how often a client's metadata changed
        self._column: dict[tuple[int, int], int] = {}  # (client, version) -> column
        self._owner: list[int] = []  # of each column
        self._basis: Floats = np.zeros((0, 0))  # [rank columns], orthonormal
        self._moments: list[dict[int, float]] = []  # rows, by column, over which second moments were opened

    def renew(self, clients: Ints) -> None:
        """Note that these clients' metadata are others from now on."""
        self.version[clients] += 1

    @property
    def rank(self) -> int:
        """Count the sums opened that did not follow from others."""
        return len(self._basis)

    def admit(self, members: Ints, kind: Kind = "sum", weight: Floats | None = None) -> bool:
        """Tell whether a sum over these clients may be opened, and remember it if so.

        weight [n], above zero: how much each client counts; all in full where not given.
        """
        shares = np.ones(len(members)) if weight is None else weight
        now = {self._column_of(int(i)): float(w) for i, w in zip(members, shares, strict=True)}
        many = sum(now.values()) ** 2 / max(sum(w**2 for w in now.values()), TINY)
        least = self.least if kind == "sum" else 2 * self.least
        if many < least - TINY:
            self.refused += len(members) > 0
            return False
        if self.least == 1:
            return True  # nothing is guarded
        basis, inside = self._extended(now)
        if not inside and self._exposes(basis, TINY if len(set(now.values())) == 1 else MARGIN):
            self.refused += 1
            return False
        if kind == "moments":
            if any(0 < self._apart(now, past) < least for past in self._moments):
                self.refused += 1
                return False
            if now not in self._moments:
                self._moments.append(now)
        self._basis = basis
        return True

    def leverage(self) -> Floats:
        """Tell how near each client [C] is to being solved: 1 for one that is, 0 for one never summed."""
        h = np.zeros(len(self.version))
        if self._basis.size:
            np.maximum.at(h, np.array(self._owner), (self._basis**2).sum(axis=0))
        return h

    def _apart(self, now: dict[int, float], past: dict[int, float]) -> int:
        """Count the clients that the difference of two rows holds, or of multiples, at the fewest."""
        ratio = {c: now[c] / past[c] for c in now.keys() & past.keys()}
        ((same, _),) = Counter(ratio.values()).most_common(1) or ((0.0, 0),)
        gone = {c for c in ratio if ratio[c] == same}
        return len({self._owner[c] for c in (now.keys() | past.keys()) - gone})

    def _column_of(self, client: int) -> int:
        key = (client, int(self.version[client]))
        if key not in self._column:
            self._column[key] = len(self._owner)
            self._owner.append(client)
            self._basis = np.pad(self._basis, ((0, 0), (0, 1)))
        return self._column[key]

    def _extended(self, now: dict[int, float]) -> tuple[Floats, bool]:
        """Give the basis with one more row, and whether that row was in its span already."""
        row = np.zeros(len(self._owner))
        row[list(now)] = list(now.values())
        basis = self._basis.reshape(-1, len(row))
        length = np.linalg.norm(row)
        for _ in range(2):  # twice is enough, numerically
            row = row - (basis @ row) @ basis
        left = np.linalg.norm(row)
        if left < TINY * length:
            return basis, True
        return np.vstack([basis, row / left]), False

    def _exposes(self, basis: Floats, margin: float) -> bool:
        """Tell whether some combination of the rows holds one client's terms alone, or two clients'.

        margin: what may be missing from it.
        """
        touched = np.flatnonzero((basis**2).sum(axis=0) > TINY)
        left = np.eye(len(touched)) - basis[:, touched].T @ basis[:, touched]  # [t t], what stays unknown
        free = np.diagonal(left)
        if (free < margin).any():
            return True
        owner = np.array(self._owner)[touched]
        dependent = np.outer(free, free) - left**2 < margin * np.outer(free, free)
        np.fill_diagonal(dependent, False)
        same = owner[:, None] == owner
        if (dependent & same).any():
            return True
        if self.least > 2 and dependent.any():
            return True
        return self._exposes_drifted(left, owner, margin)

    def _exposes_drifted(self, left: Floats, owner: NDArray[np.int64], margin: float) -> bool:
        """Look at clients with several terms: all of one's, where least > 2 with all of one other's."""
        names, counts = np.unique(owner, return_counts=True)
        for name in names[counts > 1].tolist():
            own = np.flatnonzero(owner == name)
            for other in names.tolist() if self.least > 2 else [name]:
                some = own if other == name else np.append(own, np.flatnonzero(owner == other))
                if np.linalg.eigvalsh(left[np.ix_(some, some)])[0] < margin:
                    return True
        return False

    def state(self) -> Arrays:
        """Give the guard's memory, for a checkpoint."""
        keys = np.array(list(self._column), np.int64).reshape(-1, 2)
        sets = np.zeros((len(self._moments), len(self._owner)))
        for row, past in zip(sets, self._moments, strict=True):
            row[list(past)] = list(past.values())
        return {
            "guard/columns": keys,
            "guard/basis": self._basis.reshape(-1, len(self._owner)) if self._owner else np.zeros((0, 0)),
            "guard/version": self.version,
            "guard/moments": sets,
            "guard/refused": np.array(self.refused),
        }

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        if "guard/basis" not in arrays:
            return
        keys = arrays["guard/columns"].astype(np.int64)
        self._column = {(int(i), int(v)): n for n, (i, v) in enumerate(keys)}
        self._owner = [int(i) for i, _ in keys]
        self._basis = arrays["guard/basis"].astype(np.float64)
        self.version = arrays["guard/version"].astype(np.int64)
        rows = arrays["guard/moments"].astype(np.float64)
        self._moments = [{c: float(row[c]) for c in np.flatnonzero(row).tolist()} for row in rows]
        self.refused = int(arrays["guard/refused"])
