"""FedAvg until every client was seen, then one clustering, then FedAvg inside the clusters.

What K-Fed and PACFL share under partial participation: a client uploads a summary of its data when it first
takes part, and the server, which must see each summary, clusters them when it has all.
"""

from __future__ import annotations

import numpy as np

from flameche.methods.base import UNSEEN, Arrays, Ints, Outcome, World


class OneShot:
    """Subclasses say what a client uploads (`summary_numbers`) and how all are clustered (`partition`)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.models = world.initial_models(1)
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.seen = np.zeros(world.clients, bool)

    def summary_numbers(self) -> Ints:
        """Count the numbers in each client's summary [C]."""
        raise NotImplementedError

    def partition(self) -> Ints:
        """Cluster all clients by their summaries [C]."""
        raise NotImplementedError

    @property
    def clusters(self) -> int:
        """Count the clusters: one until the shot."""
        return len(self.models)

    def round(self, r: int, participants: Ints) -> bool:
        """Train and average; split the model when the last client has been seen."""
        new = participants[~self.seen[participants]]
        self.world.ledger.sent("metadata", new, 4 * self.summary_numbers()[new])
        self.seen[participants] = True
        part = self.serving()[participants]
        trained = self.world.train(self.models, part, participants, r)
        members = np.where(self.seen, self.serving(), UNSEEN)
        self.models = self.world.average(self.models, trained, part, participants, members=members)
        if not self.seen.all() or (self.assignment != UNSEEN).all():
            return False
        with self.world.ledger.clock("server", "clustering"):
            self.assignment = self.partition()
        self.models = self.models.pick(np.zeros(int(self.assignment.max()) + 1, np.int64))
        self.world.notes.append(
            f"clustered once, after round {r}, when all clients had been seen; FedAvg before"
        )
        return True

    def serving(self) -> Ints:
        """Serve everybody the one model, later each client its cluster's."""
        return np.maximum(self.assignment, 0)

    def finish(self) -> Outcome:
        """Report the clusters, if it came to that."""
        if not self.seen.all():
            waiting = int((~self.seen).sum())
            self.world.notes.append(f"no clustering: {waiting} of {len(self.seen)} clients never took part")
        return Outcome(self.assignment if self.clusters > 1 else None)

    def state(self) -> Arrays:
        """Give who was seen."""
        return {"seen": self.seen}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.seen = arrays["seen"].astype(bool)
