"""FedGroup: groups by the directions of the clients' first updates.

Duan et al., "FedGroup: efficient federated learning via decomposed similarity-based clustering", ISPA 2021.

Deviations:
- The cold start is the first `cold_rounds` rounds: their participants train from the initial model, once
  each, and are grouped at its end. The FLAMECHE paper's 40% of clients are two draws of 20%, 36% on average.
- A newcomer joins by the cosine of its first update with the groups' directions, as published;
  `newcomers = "weights"` compares its weights with the groups' models, as the published code does.
- No mixing between groups (its eta_g = 0). A client without a group is served the mean of the groups' models.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.cluster import KMeans

from flameche.errors import ConfigError
from flameche.methods.base import UNSEEN, About, Arrays, Floats, Ints, MethodOptions, Outcome, World
from flameche.rng import stream_seed
from flameche.tables import Count
from flameche.training.models import Models, average, cosines, directions


class FedGroupOptions(MethodOptions):
    """Groups are made from the first updates of the clients of `cold_rounds` rounds."""

    kind: str = "fedgroup"
    clusters: Count = 4
    cold_rounds: Count = 2
    newcomers: Literal["updates", "weights"] = "updates"

    def check(self, experiment: Any) -> None:
        """Refuse a cold start that leaves no round to train in."""
        if self.cold_rounds >= experiment.rounds > 1:
            raise ConfigError(
                f"method.cold_rounds = {self.cold_rounds} must be below rounds = {experiment.rounds}; "
                "groups train after the cold start"
            )


class FedGroup:
    """K models of groups, and below them their mean."""

    Options: ClassVar[type[MethodOptions]] = FedGroupOptions
    about: ClassVar[About] = About(
        "FedGroup",
        "server-side",
        "terms",
        "model; once a first model",
        server="n²·M + N·K·M",
        client="one training",
        up="M",
        down="M",
    )

    def __init__(self, world: World, **options: Any) -> None:
        how = FedGroupOptions(**options)
        clusters = how.clusters
        self.world, self.clusters, self.newcomers = world, clusters, how.newcomers
        self.cold_rounds = min(how.cold_rounds, world.rounds)
        self.initial = world.initial_models(1)
        self.models = world.initial_models(clusters + 1)
        self.direction = world.initial_models(clusters)  # the groups' first mean updates, once known
        self.cold = world.initial_models(0)  # models of the cold start, of these clients:
        self.cold_clients: Ints = np.zeros(0, np.int64)
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.filled = np.ones(clusters, bool)  # groups that the cold start gave members

    def round(self, r: int, participants: Ints) -> bool:
        """Collect first models, or train inside groups."""
        if r <= self.cold_rounds:
            new = np.setdiff1d(participants, self.cold_clients)
            if len(new):
                self.cold = self.cold.joined(self._first_models(new, r))
                self.cold_clients = np.concatenate([self.cold_clients, new])
            if r == self.cold_rounds:
                self._group()
            return r == self.cold_rounds
        new = participants[self.assignment[participants] == UNSEEN]
        if len(new):
            first = self._first_models(new, r)
            with self.world.ledger.clock("server", "clustering"):
                self.assignment[new] = self._nearest(first)
        group = self.assignment[participants]
        trained = self.world.train(self.models, group, participants, r)
        self._take(self.world.average(self.models, trained, group, participants, members=self.assignment))
        return False

    def _first_models(self, clients: Ints, r: int) -> Models:
        return self.world.train(self.initial, np.zeros(len(clients), np.int64), clients, r)

    def _group(self) -> None:
        """Group the cold start's clients; a group begins from the mean of its members' models."""
        self.world.refuse_diverged(self.cold, "FedGroup's cold start")
        with self.world.ledger.clock("server", "clustering"):
            features = edc(self.cold.minus(self.initial), self.clusters)
            seed = stream_seed(self.world.seed, "fedgroup") % 2**32
            means = KMeans(min(self.clusters, len(features)), n_init=10, random_state=seed)
            group = means.fit_predict(features).astype(np.int64)
        self.assignment[self.cold_clients] = group
        self.filled = np.bincount(group, minlength=self.clusters) > 0
        self._take(self.world.average(self.models, self.cold, group, self.cold_clients, begin=True))
        self.direction = self.models.pick(np.arange(self.clusters)).minus(self.initial)
        self.cold = self.world.initial_models(0)

    def _nearest(self, first: Models) -> Ints:
        """Find the group with the smallest (1 - cosine) / 2."""
        if self.newcomers == "weights":
            near = cosines(first, self.models.pick(np.arange(self.clusters)))
        else:
            near = cosines(first.minus(self.initial), self.direction)
        nearest: Ints = np.argmin(np.where(self.filled, (1 - near) / 2, np.inf), axis=1)
        return nearest

    def _take(self, models: Models) -> None:
        """Keep the groups' models, and below them their mean."""
        groups, last = models.pick(np.arange(self.clusters)), models.pick(np.array([self.clusters]))
        filled = groups.pick(np.flatnonzero(self.filled))
        rule = self.world.trainer.plan.bn_buffers
        zero = np.zeros(len(filled), np.int64)
        mean = average(last, filled, zero, buffers="first" if rule == "member" else rule)
        self.models = groups.joined(mean)

    def serving(self) -> Ints:
        """Serve each client its group's model, or the mean."""
        return np.where(self.assignment == UNSEEN, self.clusters, self.assignment)

    def finish(self) -> Outcome:
        """Have no last E-step."""
        return Outcome()

    def state(self) -> Arrays:
        """Give the cold start's models and the groups' directions."""
        parts = {"cold": self.cold, "direction": self.direction}
        arrays = {f"{name}/{key}": v for name, m in parts.items() for key, v in m.to_arrays().items()}
        return {"cold_clients": self.cold_clients, "filled": self.filled, **arrays}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.cold_clients = arrays["cold_clients"].astype(np.int64)
        self.filled = arrays["filled"].astype(bool)
        for name in ("cold", "direction"):
            own = {key: arrays[f"{name}/{key}"] for key in ("params", "buffers")}
            setattr(self, name, self.initial.from_arrays(own))


def edc(updates: Models, count: int) -> Floats:
    """Describe each update by its cosines with the leading directions of all updates [n count]."""
    return cosines(updates, directions(updates, count))
