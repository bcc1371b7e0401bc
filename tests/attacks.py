"""What whoever sees the opened sums can work out: which clients' terms solve, and what these are.

A client's term does not change from round to round, so every opened sum is a linear equation in the clients'
terms. The attack keeps what was opened and who was in it, and nothing else: no state of the code under
test, in particular not the leakage guard's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SURE = 1e-9  # far above rounding: an unsolved client misses by a tenth or more


@dataclass
class OpenedSums:
    """A log of sums: how often each holds each client's term [T C], and what was read [T S]."""

    clients: int
    members: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, members, value):
        """Note a sum over these clients; one that is listed twice is in it twice."""
        self.members.append(np.bincount(members, minlength=self.clients).astype(np.float64))
        self.values.append(np.array(value, np.float64))

    def listen(self, sums):
        """Note from now on whatever the M-step's sums of this run open, and hand them on unchanged.

        Right where an opened sum is over exactly the members that were asked for: not under secure
        aggregation with `m_step = "seen"`, where some clients hold their changes back.
        """
        totals = sums.totals

        def heard(members, assignment):
            opened = totals(members, assignment)
            for k, total in enumerate(opened):
                if total is not None:
                    self.add(members[assignment == k], total)
            return opened

        sums.totals = heard

    @property
    def smallest(self):
        """Count the clients in the smallest sum that was opened."""
        return min(int((row > 0).sum()) for row in self.members)

    def solved(self):
        """Solve for every client that can be solved: its number and its term [S].

        Client i is solved if some combination of the sums holds it once and nobody else, which is to say
        that its unit vector is in the row space of `members`.
        """
        rows, values = np.array(self.members), np.array(self.values)
        weights = np.linalg.pinv(rows.T)  # [T C]: the best combination for each client
        missed = np.abs(rows.T @ weights - np.eye(self.clients)).max(axis=0)
        return {int(i): weights[:, i] @ values for i in np.flatnonzero(missed < SURE)}


def metadata_in(term, blocks, features):
    """Read a client's metadata [B F] and the weight of each block [B] off its term [w phi, w, 1]."""
    weight = term[blocks * features : -1]
    return term[: blocks * features].reshape(blocks, features) / weight[:, None], weight


def solvable(rows, some):
    """Tell by brute force whether a combination of rows holds the clients `some` and nobody else.

    A row names terms by client and number, with how much of each it holds: {(client, number): weight}.
    """
    if not rows:
        return False
    terms = sorted({term for row in rows for term in row})
    whole = np.array([[row.get(term, 0.0) for term in terms] for row in rows])
    outside = whole[:, [client not in some for client, _ in terms]]
    rank = np.linalg.matrix_rank
    return rank(whole, tol=1e-8) > (rank(outside, tol=1e-8) if outside.size else 0)


def pairs(clients):
    """Every client, and every pair of clients."""
    return [{i, j} for i in range(clients) for j in range(i + 1)]
