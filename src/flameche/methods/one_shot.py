"""FedAvg until every client was seen, then one clustering, then FedAvg inside the clusters.

What K-Fed and PACFL share under partial participation: a client uploads a summary of its data when it first
takes part, and the server, which must see each summary, clusters them when it has all.
"""

from __future__ import annotations

import numpy as np

from flameche.methods.base import UNSEEN, Ints, Outcome, World
from flameche.methods.partitioned import Partitioned


class OneShot(Partitioned):
    """Subclasses say what a client uploads (`summary_numbers`) and how all are clustered (`partition`)."""

    def __init__(self, world: World) -> None:
        super().__init__(world, np.full(world.clients, UNSEEN, np.int64))

    def summary_numbers(self) -> Ints:
        """Count the numbers in each client's summary [C]."""
        raise NotImplementedError

    def partition(self) -> Ints:
        """Cluster all clients by their summaries [C]."""
        raise NotImplementedError

    def round(self, r: int, participants: Ints) -> bool:
        """Train and average; split the model when the last client has been seen."""
        new = participants[~self.seen[participants]]
        self.world.ledger.sent("metadata", new, 4 * self.summary_numbers()[new])
        super().round(r, participants)
        if not self.seen.all() or (self.assignment != UNSEEN).all():
            return False
        with self.world.ledger.clock("server", "clustering"):
            self.assignment = self.partition()
        self.models = self.models.pick(np.zeros(int(self.assignment.max()) + 1, np.int64))
        self.world.notes.append(
            f"clustered once, after round {r}, when all clients had been seen; FedAvg before"
        )
        return True

    def finish(self) -> Outcome:
        """Report the clusters, if it came to that."""
        if not self.seen.all():
            waiting = int((~self.seen).sum())
            self.world.notes.append(f"no clustering: {waiting} of {len(self.seen)} clients never took part")
        return super().finish()
