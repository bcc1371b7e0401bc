"""Where the M-step's sums come from: terms kept sealed by the server, or masked afresh each round.

Both kinds do the same for a method: clients `offer` what the sums need, `totals` gives the sums that may be
opened, `once` plays a single phase. A sum that the leakage guard holds back comes out as None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Scheme
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.protocol.client import Cohort
from flameche.protocol.given import Given
from flameche.protocol.ledger import Ledger, sizes_of
from flameche.protocol.phases import MStep, Phase, Result
from flameche.protocol.vault import Vault

Arrays = dict[str, np.ndarray]


class Census(NamedTuple):
    """What a reclustering decides on, per cluster [K]: participants, clients seen, sums of errors."""

    present: Floats
    seen: Floats
    error: Floats


class Sums(Protocol):
    """The M-step's sums over clusters."""

    broadcast_bytes: int | None  # of the sealed sums, where clients open them; None where the server does

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Let clients [n] hand in what the next sums need of them."""
        ...

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Count clients and errors per cluster; assignment and error [C] are everybody's latest."""
        ...

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Open the sums [S] of the K clusters over these members [n]; None for nobody, or held back."""
        ...

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Play one phase with clients [n] and keep nothing of it."""
        ...

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Tell whose terms can change cluster now: everybody seen, or only who is there to say so."""
        ...

    def drifted(self, clients: Ints) -> None:
        """Hear that these clients' metadata are about to change; they say so when they next take part."""
        ...

    def forget(self, clients: Ints, vanished: bool = False) -> None:
        """Take these clients out of the sums; vanished: they cannot help with it."""
        ...

    def state(self) -> Arrays:
        """Give what must survive a restart."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        ...


class StoredSums:
    """Terms are sealed once and stay with the server, which adds them cluster by cluster."""

    def __init__(self, cohort: Cohort, scheme: Scheme, clusters: int, least: int, ledger: Ledger) -> None:
        self._cohort, self._ledger = cohort, ledger
        self._server = Vault(scheme.adder(), len(cohort), clusters, least, ledger)
        self._guard = self._server.guard
        self._sealed = scheme.opened_by == "clients"
        self.broadcast_bytes: int | None = 0 if self._sealed else None
        self._sizes = np.zeros(clusters, np.int64)  # of each cluster's last released sum
        self._given = Given(cohort)

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Send sealed metadata: once, after a drift, or whenever imputed blocks may have changed.

        A new term takes the old one's place: adding the change to it would count as a second term.
        """
        changed = self._given.changed(clients)
        self._guard.version[clients] = self._given.version(clients)
        self._given.told(clients)
        if not self._cohort.imputes:
            new = changed | ~self._server.holds(clients)
            clients, assignment = clients[new], assignment[new]
        terms = self._cohort.seal(self._cohort.terms(MStep(centroids), clients, assignment, centroids))
        self._ledger.sent("metadata", clients, sizes_of(terms))
        self._server.store(clients, terms)

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Add the stored terms, and open the sums that may be opened."""
        released = self._server.totals(members, assignment)
        formed = ~np.isin(assignment, list(self._server.cancelled))
        count_sums(self._ledger, assignment[formed], released)
        for k, total in enumerate(released):
            self._sizes[k] = self._sizes[k] if total is None else len(total)
        if self._sealed:  # of all clusters: a participant may lack those that were released earlier
            self.broadcast_bytes = int(self._sizes.sum())
        opened = [self._cohort.open(total) for total in released]
        note_openings(self._ledger, "metadata", opened, members, assignment, self._guard.version)
        return opened

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Seal, add and open one phase's terms; clusters below the least size stay out."""
        terms = self._cohort.terms(phase, clients, assignment, centroids)
        sealed = self._cohort.seal(terms)
        released = self._server.once(sealed, assignment)
        self._ledger.sent("exchange", clients, sizes_of(sealed))
        self._ledger.received("exchange", clients, sum(len(total) for total in released if total is not None))
        opened = [self._cohort.open(total) for total in released]
        note_openings(self._ledger, type(phase).__name__, opened, clients, assignment, self._guard.version)
        return phase.absorb(stacked(opened, terms.shape[1]))

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Add up what clients told the server in the clear, as in the paper."""
        return clear_census(len(self._sizes), seen, participants, assignment, error)

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Move anybody: the server has everybody's term."""
        return seen

    def drifted(self, clients: Ints) -> None:
        """Keep the old terms until new ones come."""
        self._given.keep(clients)

    def forget(self, clients: Ints, vanished: bool = False) -> None:
        """Drop the stored terms; nobody's help is needed."""
        self._server.drop(clients)

    def state(self) -> Arrays:
        """Give the server's sealed terms and the guard's memory."""
        return {
            **self._server.state(),
            **self._given.state(),
            "sizes": self._sizes,
        }

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._server.restore(arrays)
        self._sizes = arrays["sizes"].astype(np.int64)
        self._given.restore(arrays)
        if self._sealed:
            self.broadcast_bytes = int(self._sizes.sum())


def clear_census(clusters: int, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
    """Count clients and errors per cluster from values that are known."""

    def per_cluster(clients: Ints, weights: Floats | None = None) -> Floats:
        return np.bincount(assignment[clients], weights, minlength=clusters).astype(np.float64)

    return Census(per_cluster(participants), per_cluster(seen), per_cluster(seen, error[seen]))


def count_sums(ledger: Ledger, assignment: Ints, sums: Sequence[object]) -> None:
    """Count in the ledger which of the K sums over members [n] were opened, and which held back."""
    wanted = np.bincount(assignment, minlength=len(sums)) > 0
    ledger.summed("metadata", wanted, np.array([total is not None for total in sums]))


def note_openings(
    ledger: Ledger,
    what: str,
    opened: Sequence[Floats | None],
    clients: Ints,
    assignment: Ints,
    version: NDArray[np.integer],
) -> None:
    """Note in the ledger which of the K sums over clients [n] were opened; version [C] of their terms."""
    for k, total in enumerate(opened):
        members = clients[assignment == k]
        if total is not None and len(members):
            ledger.opened(what, members, len(total), version[members].astype(np.int64))


def stacked(totals: list[Floats | None], length: int = 0) -> Floats:
    """Put the sums of K clusters on top of each other [K S], zeros for None."""
    known = next((len(total) for total in totals if total is not None), length)
    return np.array([np.zeros(known) if total is None else total for total in totals])
