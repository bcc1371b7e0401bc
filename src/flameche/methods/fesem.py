"""FeSEM: k-means over the clients' model weights, one step a round.

Long et al., "Multi-center federated learning: clients clustering for better personalization", World Wide
Web 2023.

Deviations:
- How K centres begin is left open. `start = "kmeans"`: the first round's participants train from the shared
  initial model and k-means over their weights gives the centres. "different": K initial models of their own;
  "shared": K copies of one. In these a newcomer first trains from a random centre, and hardly any client
  ever leaves the centre it first joined (measured: ARI 0).
- With "kmeans", newcomers of later rounds train from the *initial* model; a random centre does worse. Centres
  have moved on by then, so that some newcomers join the one that moved least; `newcomers = "first"` compares
  them with the centres as they first were, and finds more of the groups.
- A client that takes part for the first time has no weights yet: it trains once more, and is charged for it.
- Distances are taken over all parameters; `layer` names one layer, as in the original code.
- Centres are unweighted averages; one that nobody chose keeps its place.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.cluster import KMeans

from flameche.errors import ConfigError
from flameche.methods.base import UNSEEN, About, Arrays, Ints, MethodOptions, Outcome, World
from flameche.rng import stream, stream_seed
from flameche.tables import Count
from flameche.training.models import Models, coordinates, distances

Start = Literal["kmeans", "different", "shared"]
Newcomers = Literal["moved", "first"]


class FesemOptions(MethodOptions):
    """`start` gives the first centres, `layer` takes one layer alone.

    `newcomers` are compared with the centres as they have `moved`, or as they `first` were.
    """

    kind: str = "fesem"
    clusters: Count = 4
    start: Start = "kmeans"
    layer: str = ""
    newcomers: Newcomers = "moved"

    def check(self, experiment: Any) -> None:
        """Refuse newcomers that are compared with first centres where there are none."""
        if self.newcomers == "first" and self.start != "kmeans":
            raise ConfigError('method.newcomers = "first" needs method.start = "kmeans"')


class Fesem:
    """The server keeps every client's last weights and compares them with K centres."""

    Options: ClassVar[type[MethodOptions]] = FesemOptions
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

    def __init__(self, world: World, **options: Any) -> None:
        how = FesemOptions(**options)
        self.world, self.clusters, self.start, self.newcomers = world, how.clusters, how.start, how.newcomers
        self.initial = world.initial_models(1)
        several = world.different_models if self.start == "different" else world.initial_models
        self.models = several(self.clusters)
        self.began = self.models  # the centres as they first were
        self.part = world.trainer.layer(how.layer) if how.layer else slice(None)
        self.local = world.initial_models(world.clients)  # each client's last weights
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.first = stream(world.seed, "fesem").integers(self.clusters, size=world.clients)

    def round(self, r: int, participants: Ints) -> bool:
        """Compare, train and average."""
        fresh = self.assignment[participants] == UNSEEN
        new = participants[fresh]
        if len(new):
            self.local = self.local.with_rows(new, self._first_models(new, r))
        if r == 1 and self.start == "kmeans":
            self._seed(participants)
        with self.world.ledger.clock("server", "clustering"):
            away = distances(self.local.pick(participants), self.models, self.part)
            if self.newcomers == "first":
                away[fresh] = distances(self.local.pick(new), self.began, self.part)
            nearest: Ints = np.argmin(np.where(np.isnan(away), np.inf, away), axis=1)
        self.assignment[participants] = nearest
        trained = self.world.train(self.models, nearest, participants, r)
        self.local = self.local.with_rows(participants, trained)
        self.models = self.world.average(self.models, trained, nearest, participants, members=self.assignment)
        return False

    def _first_models(self, clients: Ints, r: int) -> Models:
        """Let clients [n] train once, so that they have weights to be compared by."""
        if self.start == "kmeans":
            return self.world.train(self.initial, np.zeros(len(clients), np.int64), clients, r)
        return self.world.train(self.models, self.first[clients], clients, r)

    def _seed(self, clients: Ints) -> None:
        """Begin from the centres that k-means finds among the first weights."""
        own = self.local.pick(clients)
        self.world.refuse_diverged(own, "FeSEM's first weights")
        with self.world.ledger.clock("server", "clustering"):
            seed = stream_seed(self.world.seed, "fesem") % 2**32
            means = KMeans(min(self.clusters, len(clients)), n_init=10, tol=0.0, random_state=seed)
            cluster: Ints = means.fit_predict(coordinates(own, self.part)).astype(np.int64)
        self.models = self.began = self.world.average(self.models, own, cluster, clients, begin=True)

    def serving(self) -> Ints:
        """Serve each client its centre; one never seen gets a random one."""
        return np.where(self.assignment == UNSEEN, self.first, self.assignment)

    def finish(self) -> Outcome:
        """Have no last E-step."""
        return Outcome()

    def state(self) -> Arrays:
        """Give every client's last weights, and the first centres where newcomers ask for them."""
        began = self.began.to_arrays() if self.newcomers == "first" else {}
        return {**self.local.to_arrays(), **{f"began/{key}": value for key, value in began.items()}}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.local = self.local.from_arrays(arrays)
        if self.newcomers == "first":
            self.began = self.began.from_arrays(
                {key: arrays[f"began/{key}"] for key in ("params", "buffers")}
            )
