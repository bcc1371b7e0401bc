"""The M-step's sums under secure aggregation, where masks live for one session.

Two ways, by the method's M-step:
- "participants": in each round and cluster, its participants sum their terms in a session of their own,
  as the paper says.
- "seen": a participant contributes only the *change* of its part in each cluster's sum,
  gamma_new phi_new - gamma_old phi_old, for all K clusters in one session of the round's participants. The
  server's running sums equal those over all clients seen, which the paper calls hard to keep. A client that
  leaves is in one last session, where it takes its part out; the part of one that vanished stays.

The guard (`privacy/guard.py`) decides which moves are let through; a client keeps the others back, whole, for
a later round.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from flameche.crypto.masking import SecAgg
from flameche.crypto.secagg.driver import aggregate
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.privacy.guard import Guard
from flameche.protocol.client import Cohort
from flameche.protocol.given import Given
from flameche.protocol.ledger import Ledger
from flameche.protocol.phases import MStep, Phase, Result
from flameche.protocol.server import NOWHERE
from flameche.protocol.sums import Arrays, Census, clear_census, count_sums, note_openings, stacked


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
        self._guard = Guard(len(cohort), least)
        # Which version of its term each client has in the running sums, one more than its number; 0 for none.
        self._part: Ints = np.zeros((len(cohort), clusters), np.int64)
        self._given = Given(cohort)
        self._leaving = np.zeros(len(cohort), bool)  # who waits for a last session
        self._sums: list[np.ndarray | None] = [None] * clusters  # integers, as the codec has them
        self.broadcast_bytes: int | None = None

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Hold the sessions that these clients' terms need."""
        if len(clients) == 0:
            return
        self._leaving[clients] = False
        terms = self._cohort.terms(MStep(centroids), clients, assignment, centroids)
        encoded = self._encoded(terms)
        if self._over == "participants":
            self._guard.version[clients] = self._given.version(clients)
            self._given.told(clients)
            permits = np.array([self._guard.admit(clients[assignment == k]) for k in range(self._clusters)])
            open_to = np.where(permits[assignment], assignment, NOWHERE)
            self._sums = self._by_cluster(encoded, clients, open_to)
            count_sums(self._ledger, assignment, self._sums)
            note_openings(self._ledger, "metadata", self._floats, clients, assignment, self._guard.version)
        else:
            self._add_changes(encoded, clients, assignment)

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Read the sums that the last offer left."""
        return self._floats

    @property
    def _floats(self) -> list[Floats | None]:
        return [None if total is None else self._codec.decode(total) for total in self._sums]

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Sum one phase's terms, cluster by cluster."""
        terms = self._cohort.terms(phase, clients, assignment, centroids)
        sums = self._by_cluster(self._encoded(terms), clients, assignment)
        decoded = [None if total is None else self._codec.decode(total) for total in sums]
        note_openings(self._ledger, type(phase).__name__, decoded, clients, assignment, self._guard.version)
        return phase.absorb(stacked(decoded, terms.shape[1]))

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Add up what clients told the server in the clear, as in the paper."""
        return clear_census(self._clusters, seen, participants, assignment, error)

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Move only who is there: nobody else's part in a sum can be changed."""
        return participants

    def drifted(self, clients: Ints) -> None:
        """Remember what these clients gave, for the change that they will contribute."""
        self._given.keep(clients)

    def forget(self, clients: Ints, vanished: bool = False) -> None:
        """Let these clients take their parts out in a last session; nobody else can do it for them."""
        if not vanished:
            self._leaving[clients] = self._part[clients].any(axis=1)

    def _encoded(self, terms: Floats) -> Ints:
        return np.stack([self._codec.encode(term) for term in terms])

    def _by_cluster(self, encoded: Ints, clients: Ints, assignment: Ints) -> list[np.ndarray | None]:
        sums: list[np.ndarray | None] = []
        for k in range(self._clusters):
            mine = np.flatnonzero(assignment == k)
            enough = len(mine) >= max(2, self._least)  # one alone has nobody to mask with
            sums.append(self._session(encoded[mine], clients[mine], f"cluster {k}") if enough else None)
        return sums

    def _add_changes(self, encoded: Ints, clients: Ints, assignment: Ints) -> None:
        """Sum what changes for these clients, and for those that leave, in one session."""
        count = len(clients)
        who = np.append(clients, np.flatnonzero(self._leaving))
        wanted = np.zeros((len(who), self._clusters), np.int64)
        wanted[np.arange(count), assignment] = 1 + self._given.version(clients)
        enough = len(who) >= max(2, self._least)  # for a session
        after, guard = self._allowed(who, wanted) if enough else (self._part, self._guard)
        whole = self._part.copy()
        whole[who] = wanted
        different = (whole != after).sum(axis=0) > 0
        self._ledger.summed("metadata", ((whole > 0).sum(axis=0) > 0) | different, ~different)
        before, now = self._part[who], after[who]
        moved, touched = (now != before).sum(axis=1) > 0, (now != before).sum(axis=0) > 0
        if not moved.any():
            return
        old = self._encoded(self._given.of(who))
        new = np.append(encoded, old[count:], axis=0)
        blocks = (now > 0)[:, :, None] * new[:, None] - (before > 0)[:, :, None] * old[:, None]
        blocks[~moved] = 0  # who is held back says nothing yet, of its drift neither
        summed = self._session(blocks.reshape(len(who), -1), who, "changes")
        if summed is None:
            return
        total = summed.reshape(self._clusters, -1)
        self._part, self._guard = after, guard
        self._given.told(clients[moved[:count]])
        self._leaving[who[moved]] = False
        held = (after > 0).sum(axis=0) > 0
        for k in np.flatnonzero(touched).tolist():
            so_far = self._sums[k]
            self._sums[k] = (total[k] if so_far is None else so_far + total[k]) if held[k] else None
            members = np.flatnonzero(after[:, k])
            if len(members):  # the changes and the sum so far give the sum over all these
                self._ledger.opened("metadata", members, total.shape[1], after[members, k] - 1)

    def _allowed(self, clients: Ints, wanted: Ints) -> tuple[Ints, Guard]:
        """Give parts after the moves that the guard lets through, each whole or not; and the guard then."""
        moving = (wanted != self._part[clients]).any(axis=1)
        while True:
            after, guard = self._part.copy(), self._guard.copy()
            after[clients[moving]] = wanted[moving]
            refused = [
                k for k in range(self._clusters) if not self._admits(guard, after[:, k], self._part[:, k])
            ]
            if not refused:
                return after, guard
            moving &= (wanted == self._part[clients])[:, refused].all(axis=1)

    @staticmethod
    def _admits(guard: Guard, after: Ints, before: Ints) -> bool:
        """Ask whether a sum may go from terms `before` to terms `after` [C]."""
        members = np.flatnonzero(after)
        stays = len(members) == 0 or np.array_equal(after, before)
        return stays or guard.admit(members, version=after[members] - 1)

    def _session(self, vectors: Ints, clients: Ints, label: str) -> Ints | None:
        """Sum vectors [n S] of exactly these clients [n]; None where that failed."""
        return masked_sum(vectors, clients, "metadata", label, self._ledger)

    def state(self) -> Arrays:
        """Give the running sums and every client's part in them."""
        sums = {f"sum/{k}": total for k, total in enumerate(self._sums) if total is not None}
        own = {"part": self._part, "leaving": self._leaving}
        return {**own, **self._guard.state(), **self._given.state(), **sums}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._part = arrays["part"].astype(np.int64)
        self._leaving = arrays.get("leaving", self._leaving).astype(bool)
        self._guard.restore(arrays)
        self._given.restore(arrays)
        for key, value in arrays.items():
            if key.startswith("sum/"):
                self._sums[int(key.removeprefix("sum/"))] = value


def masked_sum(vectors: Ints, clients: Ints, what: str, label: str, ledger: Ledger) -> Ints:
    """Run one whole session among clients [n] over vectors [n S]; their uploads count as `what`."""
    total, _, costs = aggregate(vectors, label=label)
    ledger.sent(what, clients, costs.up)
    ledger.received("secagg", clients, costs.down)
    ledger.add("client", "encryption", costs.client_seconds)
    ledger.add("server", "encryption", costs.server_seconds)
    return total
