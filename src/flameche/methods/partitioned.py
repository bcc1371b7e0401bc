"""FedAvg inside the parts of a partition: one that is known from the start, or found on the way."""

from __future__ import annotations

import numpy as np

from flameche.methods.base import UNSEEN, Arrays, Ints, Outcome, World


class Partitioned:
    """One model per part; each round averages, in each part, what its participants trained."""

    def __init__(self, world: World, partition: Ints) -> None:
        self.world = world
        self.assignment = partition
        self.models = world.initial_models(max(1, int(partition.max()) + 1))
        self.seen = np.zeros(world.clients, bool)

    @property
    def clusters(self) -> int:
        """Count the parts."""
        return len(self.models)

    def round(self, r: int, participants: Ints) -> bool:
        """Train and average; nobody changes part."""
        part = self.serving()[participants]
        trained = self.world.train(self.models, part, participants, r)
        self.seen[participants] = True
        members = np.where(self.seen, self.serving(), UNSEEN)
        self.models = self.world.average(self.models, trained, part, participants, members=members)
        return False

    def serving(self) -> Ints:
        """Serve each client its part's model; all one model while there are no parts."""
        return np.maximum(self.assignment, 0)

    def finish(self) -> Outcome:
        """Report the partition."""
        return Outcome(self.assignment if self.clusters > 1 else None)

    def state(self) -> Arrays:
        """Give who was seen."""
        return {"seen": self.seen}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.seen = arrays["seen"].astype(bool)
