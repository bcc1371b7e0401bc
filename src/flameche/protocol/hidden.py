"""Sums that hide who is where: each client seals one-hot blocks for all K clusters.

A client's term is, for every cluster k, [gamma_k w phi, gamma_k w, gamma_k, gamma_k e]: its own block full,
the others zero, and all of it sealed. The server adds the latest terms of all clients seen and learns neither
k_i nor e_i; clients open one sum that holds every cluster's. What a reclustering decides on, counts and
errors per cluster, comes out of the same sum, and the clients decide it, all alike.

The server cannot count members, so the guard's place is with the clients: blocks of fewer than `least` are
not used. Clients that look before they drop them see such a block.
"""

from __future__ import annotations

import numpy as np

from flameche.crypto.api import Scheme
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.protocol.client import Cohort
from flameche.protocol.exchange import by_share
from flameche.protocol.ledger import Ledger, sizes_of
from flameche.protocol.phases import MStep, Phase, Result
from flameche.protocol.server import AdditiveServer
from flameche.protocol.sums import Arrays, Census, count_sums, note_openings, stacked


class HiddenSums:
    """One sealed sum over everybody, with a block per cluster."""

    def __init__(self, cohort: Cohort, scheme: Scheme, clusters: int, least: int, ledger: Ledger) -> None:
        self._cohort, self._ledger = cohort, ledger
        self._server = AdditiveServer(scheme.adder(), ledger, 1)
        self._clusters, self._least = clusters, least
        self._sums = np.zeros((clusters, 0))  # opened: over all members asked for
        self._present = np.zeros(clusters)  # opened: this round's participants per cluster
        self.broadcast_bytes: int | None = 0

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Seal and send every block anew: who moved must not look different from who stayed."""
        terms = self._cohort.terms(MStep(centroids), clients, assignment, centroids)
        sealed = self._seal(np.column_stack([terms, error]), assignment, clients)
        self._server.store(clients, sealed)
        self._present = self._count(clients, assignment)

    def _count(self, clients: Ints, assignment: Ints) -> Floats:
        """Count this round's participants per cluster [K], from sealed ones; too few are not counted."""
        if len(clients) < self._least:
            return np.ones(self._clusters)  # as if no cluster were empty
        sealed = self._cohort.seal(np.eye(self._clusters)[assignment])
        self._ledger.sent("metadata", clients, sizes_of(sealed))
        (total,) = self._server.sums(sealed, np.zeros_like(clients))
        self._ledger.received("centroids", clients, len(total or b""))
        return np.ones(self._clusters) if total is None else self._blocks(total)[:, 0]

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Open the one sum and take it apart."""
        (total,) = self._server.sums_of_stored(members, np.zeros_like(members))
        found: list[Floats | None] = [None] * self._clusters
        if total is None:  # its ciphertexts cancel each other
            return found
        if len(members) >= self._least:
            self.broadcast_bytes = len(total)
            self._sums = self._blocks(total)
            found = [b[:-1] if round(b[-2]) >= max(1, self._least) else None for b in self._sums]
        count_sums(self._ledger, assignment, found)
        note_openings(
            self._ledger, "metadata", found, members, assignment, np.zeros(len(self._cohort), np.int64)
        )
        return found

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Seal, add and open one phase's terms, in blocks."""
        terms = self._cohort.terms(phase, clients, assignment, centroids)
        counted = np.column_stack([terms, np.ones(len(terms))])
        (total,) = self._server.sums(self._seal(counted, assignment), np.zeros_like(clients))
        kept: list[Floats | None] = [None] * self._clusters
        if total is not None:  # else its ciphertexts cancel each other
            blocks = self._blocks(total)
            kept = [b[:-1] if round(b[-1]) >= max(1, self._least) else None for b in blocks]
            every = np.zeros(len(self._cohort), np.int64)
            note_openings(self._ledger, type(phase).__name__, kept, clients, assignment, every)
        return phase.absorb(stacked(kept, terms.shape[1]))

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Read counts and errors off the opened sums; the arguments are nobody's to know, and not read."""
        return Census(np.rint(self._present), np.rint(self._sums[:, -2]), self._sums[:, -1])

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Move only who is there: nobody else knows where it is."""
        return participants

    def drifted(self, clients: Ints) -> None:
        """Do nothing: every block is sealed anew whenever a client takes part."""

    def forget(self, clients: Ints, vanished: bool = False) -> None:
        """Drop the stored blocks; nobody's help is needed."""
        self._server.drop(clients)

    def _seal(self, terms: Floats, assignment: Ints, senders: Ints | None = None) -> list[bytes]:
        hot = np.eye(self._clusters)[assignment]
        sealed = self._cohort.seal(by_share(terms, hot))
        if senders is not None:
            self._ledger.sent("metadata", senders, sizes_of(sealed))
        return sealed

    def _blocks(self, total: bytes) -> Floats:
        opened = self._cohort.open(total)
        assert opened is not None
        return opened.reshape(self._clusters, -1)

    def state(self) -> Arrays:
        """Give the server's sealed terms and what clients opened last."""
        return {
            **self._server.state(),
            "opened": self._sums,
            "present": self._present,
            "sizes": np.array([self.broadcast_bytes]),
        }

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._server.restore(arrays)
        self._sums, self._present = arrays["opened"], arrays["present"]
        self.broadcast_bytes = int(arrays["sizes"][0])
