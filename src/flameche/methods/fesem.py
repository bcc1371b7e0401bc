"""FeSEM: k-means over the clients' model weights, one step a round.

Long et al., "Multi-center federated learning: clients clustering for better personalization", World Wide
Web 2023.

Deviations:
- Distances are taken over all parameters; `layer` names one layer, as in the original code.
- A client that takes part for the first time has no weights yet: it trains once from a random centre, and is
  charged for it.
- Centres are unweighted averages; one that nobody chose keeps its place.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flameche.methods.base import UNSEEN, About, Arrays, Ints, Outcome, World
from flameche.rng import stream
from flameche.training.geometry import distances


class Fesem:
    """The server keeps every client's last weights and compares them with K centres."""

    about: ClassVar[About] = About(
        "FeSEM",
        "server-side",
        "terms",
        "model; once a first model",
        server="R·n·K·M",
        client="one training",
        up="M",
        down="M",
    )

    def __init__(self, world: World, *, clusters: int = 4, layer: str = "") -> None:
        self.world, self.clusters = world, clusters
        self.models = world.different_models(clusters)
        self.part = world.trainer.layer(layer) if layer else slice(None)
        self.local = world.initial_models(world.clients)  # each client's last weights
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.first = stream(world.seed, "fesem").integers(clusters, size=world.clients)

    def round(self, r: int, participants: Ints) -> bool:
        """Compare, train and average."""
        new = participants[self.assignment[participants] == UNSEEN]
        if len(new):
            trained = self.world.train(self.models, self.first[new], new, r)
            self.local = self.local.with_rows(new, trained)
        with self.world.ledger.clock("server", "clustering"):
            away = distances(self.local.pick(participants), self.models, self.part)
            nearest = np.argmin(away, axis=1).astype(np.int64)
        self.assignment[participants] = nearest
        trained = self.world.train(self.models, nearest, participants, r)
        self.local = self.local.with_rows(participants, trained)
        self.models = self.world.average(self.models, trained, nearest, participants)
        return False

    def serving(self) -> Ints:
        """Serve each client its centre; one never seen gets the centre it would begin from."""
        return np.where(self.assignment == UNSEEN, self.first, self.assignment)

    def finish(self) -> Outcome:
        """Report the last assignments."""
        return Outcome(self.assignment)

    def state(self) -> Arrays:
        """Give every client's last weights."""
        return self.local.to_arrays()

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.local = self.local.from_arrays(arrays)
