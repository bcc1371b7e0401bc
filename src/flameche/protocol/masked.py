"""The M-step's sums under secure aggregation, where masks live for one session.

Two ways, by the method's M-step:
- "participants": in each round and cluster, its participants sum their terms in a session of their own,
  as the paper says.
- "seen": metadata never change, so a participant contributes only the *change* of its part in each cluster's
  sum, gamma_new phi - gamma_old phi, for all K clusters in one session of the round's participants. The
  server's running sums equal those over all clients seen, which the paper calls hard to keep.

The guard (`guard.py`) decides which moves are let through; a client keeps the others back, whole, for a later
round.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.masking import SecAgg
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.protocol.client import Cohort
from flameche.protocol.guard import LeakageGuard
from flameche.protocol.ledger import Ledger
from flameche.protocol.phases import MStep, Phase, Result
from flameche.protocol.server import NOWHERE
from flameche.protocol.session import masked_sum
from flameche.protocol.sums import Arrays, Census, clear_census, count_sums, stacked


class MaskedSums:
    """Sums that only sessions of present clients can form."""

    def __init__(
        self,
        cohort: Cohort,
        scheme: SecAgg,
        clusters: int,
        least: int,
        ledger: Ledger,
        over: Literal["seen", "participants"],
    ) -> None:
        self._cohort, self._codec, self._ledger = cohort, scheme.codec, ledger
        self._clusters, self._least, self._over = clusters, least, over
        self._guard = LeakageGuard(len(cohort), clusters, least)
        self._part = np.zeros((len(cohort), clusters), bool)  # each client's own part in the running sums
        self._sums: list[np.ndarray | None] = [None] * clusters  # integers, as the codec has them
        self.broadcast_bytes: int | None = None

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Hold the sessions that these clients' terms need."""
        if len(clients) == 0:
            return
        terms = self._cohort.terms(MStep(centroids), clients, assignment, centroids)
        encoded = np.stack([self._codec.encode(term) for term in terms])
        if self._over == "participants":
            permits = np.array(self._guard.permits(clients, assignment))
            open_to = np.where(permits[assignment], assignment, NOWHERE)
            self._sums = self._by_cluster(encoded, clients, open_to)
            count_sums(self._ledger, assignment, self._sums)
        else:
            self._add_changes(encoded, clients, assignment)

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Read the sums that the last offer left."""
        return [None if total is None else self._codec.decode(total) for total in self._sums]

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Sum one phase's terms, cluster by cluster."""
        terms = self._cohort.terms(phase, clients, assignment, centroids)
        encoded = np.stack([self._codec.encode(term) for term in terms])
        sums = self._by_cluster(encoded, clients, assignment)
        decoded = [None if total is None else self._codec.decode(total) for total in sums]
        return phase.absorb(stacked(decoded, terms.shape[1]))

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Add up what clients told the server in the clear, as in the paper."""
        return clear_census(self._clusters, seen, participants, assignment, error)

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Move only who is there: nobody else's part in a sum can be changed."""
        return participants

    def _by_cluster(self, encoded: Ints, clients: Ints, assignment: Ints) -> list[np.ndarray | None]:
        sums: list[np.ndarray | None] = []
        for k in range(self._clusters):
            mine = np.flatnonzero(assignment == k)
            enough = len(mine) >= max(2, self._least)  # one alone has nobody to mask with
            sums.append(self._session(encoded[mine], clients[mine], f"cluster {k}") if enough else None)
        return sums

    def _add_changes(self, encoded: Ints, clients: Ints, assignment: Ints) -> None:
        wanted = np.eye(self._clusters, dtype=bool)[assignment]
        enough = len(clients) >= max(2, self._least)  # for a session
        after = self._allowed(clients, wanted) if enough else self._part
        whole = self._part.copy()
        whole[clients] = wanted
        different = (whole != after).sum(axis=0) > 0
        self._ledger.summed("metadata", (whole.sum(axis=0) > 0) | different, ~different)
        change = after[clients].astype(np.int64) - self._part[clients]
        if not change.any():
            return
        blocks = (change[:, :, None] * encoded[:, None, :]).reshape(len(clients), -1)
        total = self._session(blocks, clients, "changes").reshape(self._clusters, -1)
        self._part = after
        self._guard.remember(after.T)
        held = self._part.sum(axis=0) > 0
        for k in np.flatnonzero(change.any(axis=0)).tolist():
            before = self._sums[k]
            self._sums[k] = (total[k] if before is None else before + total[k]) if held[k] else None

    def _allowed(self, clients: Ints, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Give everybody's part after the moves that the guard lets through; a move is made whole or not."""
        moving = (wanted != self._part[clients]).any(axis=1)
        while True:
            after = self._part.copy()
            after[clients[moving]] = wanted[moving]
            if self._least <= 1 or not moving.any():
                return after
            allowed = self._guard.allowed(self._part.T, after.T)
            held_back = moving & (wanted != self._part[clients])[:, ~allowed].any(axis=1)
            if not held_back.any():
                return after
            moving &= ~held_back

    def _session(self, vectors: Ints, clients: Ints, label: str) -> Ints:
        return masked_sum(vectors, clients, "metadata", label, self._ledger)

    def state(self) -> Arrays:
        """Give the running sums and every client's part in them."""
        sums = {f"sum/{k}": total for k, total in enumerate(self._sums) if total is not None}
        return {"part": self._part, **self._guard.state(), **sums}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._part = arrays["part"].astype(bool)
        self._guard.restore(arrays)
        for key, value in arrays.items():
            if key.startswith("sum/"):
                self._sums[int(key.removeprefix("sum/"))] = value
