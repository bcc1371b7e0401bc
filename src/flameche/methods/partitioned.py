"""FedAvg inside the parts of a partition that is known from the start."""

from __future__ import annotations

import numpy as np

from flameche.methods.base import UNSEEN, Arrays, Ints, Outcome, World


class Partitioned:
    """One model per part; each round averages, in each part, what its participants trained."""

    def __init__(self, world: World, partition: Ints) -> None:
        self.world = world
        self.assignment = partition
        self.clusters = int(partition.max()) + 1
        self.models = world.initial_models(self.clusters)
        self.seen = np.zeros(world.clients, bool)

    def round(self, r: int, participants: Ints) -> bool:
        """Train and average; nobody ever changes part."""
        part = self.assignment[participants]
        trained = self.world.train(self.models, part, participants, r)
        self.seen[participants] = True
        members = np.where(self.seen, self.assignment, UNSEEN)
        self.models = self.world.average(self.models, trained, part, participants, members=members)
        return False

    def serving(self) -> Ints:
        """Serve each client its part's model."""
        return self.assignment

    def finish(self) -> Outcome:
        """Report the partition."""
        return Outcome(self.assignment if self.clusters > 1 else None)

    def state(self) -> Arrays:
        """Give who was seen."""
        return {"seen": self.seen}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.seen = arrays["seen"].astype(bool)


def one_part(clients: int) -> Ints:
    """Put everybody together [C]."""
    return np.zeros(clients, np.int64)
