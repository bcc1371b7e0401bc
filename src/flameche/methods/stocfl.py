"""StoCFL: clusters that begin as single clients and merge when their first updates point the same way.

Zeng et al., "Stochastic clustered federated learning", 2023; and its journal version of 2025.

Deviations:
- A client's first update is made by SGD, as published. With the Adam of all methods (`first = "adam"`) they
  are noisier: means of different groups can then be more alike than two clients of one group, and merge.
- Without `threshold`, one is searched at which all clients' similarities fall into `clusters` parts, as
  the FLAMECHE paper does: knowledge that a federation with partial participation has not. The ledger says so.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse.csgraph import connected_components

from flameche.errors import ConfigError
from flameche.methods.base import UNSEEN, About, Arrays, Floats, Ints, MethodOptions, Outcome, World
from flameche.tables import Count
from flameche.training.models import average, cosines
from flameche.training.trainer import Pull, Sgd

FIRST_LR = 0.01  # of the SGD behind first updates, whose directions count
SEARCHED = "all clients' first updates, to search the threshold"


class StoCflOptions(MethodOptions):
    """Clusters merge while similar; without `threshold`, one is searched on everybody's updates."""

    kind: str = "stocfl"
    clusters: Count = 4
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    mu: float = Field(default=0.05, ge=0)
    first: Literal["sgd", "adam"] = "sgd"

    def check(self, experiment: Any) -> None:
        """Refuse first updates by an optimiser that there is not."""
        if self.first == "adam" and experiment.training.optimiser == "sgd":
            raise ConfigError(
                'method.first = "adam" is the Adam of all training, training.optimiser = "sgd" has none; '
                'take first = "sgd"'
            )


class StoCfl:
    """Row 0 is the global model, row 1 + k cluster k's; clusters only merge."""

    Options: ClassVar[type[MethodOptions]] = StoCflOptions
    about: ClassVar[About] = About(
        "StoCFL",
        "server-side",
        "terms",
        "two models; once a first update",
        server="R·n²·M",
        client="one more training a round",
        up="R·M",
        down="R·M",
    )

    def __init__(self, world: World, **options: Any) -> None:
        how = StoCflOptions(**options)
        self.world, self.wanted, self.threshold, self.mu = world, how.clusters, how.threshold, how.mu
        self.sgd = Sgd(FIRST_LR) if how.first == "sgd" else None
        self.anchor = world.initial_models(1)
        self.models = world.initial_models(1)
        self.psi = self.anchor.minus(self.anchor).pick(np.zeros(world.clients, np.int64))
        self.assignment = np.full(world.clients, UNSEEN, np.int64)

    @property
    def clusters(self) -> int:
        """Count the clusters there are now."""
        return len(self.models) - 1

    def round(self, r: int, participants: Ints) -> bool:
        """Take in who is new, merge, train clusters and the global model."""
        if self.threshold is None:
            self.threshold = self._search()
        new = participants[self.assignment[participants] == UNSEEN]
        if len(new):
            first = self.world.train(self.anchor, np.zeros(len(new), np.int64), new, r, sgd=self.sgd)
            self.psi = self.psi.with_rows(new, first.minus(self.anchor))
            self.assignment[new] = self.clusters + np.arange(len(new))
            self.models = self.models.joined(self.models.pick(np.zeros(len(new), np.int64)))
        with self.world.ledger.clock("server", "clustering"):
            merged = self._merge(participants, self.threshold)
        rows, shared = 1 + self.assignment[participants], np.zeros(len(participants), np.int64)
        pull = Pull(self.models.pick(shared[:1]), self.mu)
        trained = self.world.train(self.models, rows, participants, r, pull=pull)
        together = self.world.train(self.models, shared, participants, r)
        seen = self.assignment != UNSEEN
        own, all_in_one = np.where(seen, 1 + self.assignment, UNSEEN), np.where(seen, 0, UNSEEN)
        models = self.world.average(self.models, trained, rows, participants, members=own)
        self.models = self.world.average(models, together, shared, participants, members=all_in_one)
        return merged

    def _merge(self, participants: Ints, threshold: float) -> bool:
        """Merge clusters that have participants, from the most similar pair down while similar enough."""
        present, member = np.unique(self.assignment[participants], return_inverse=True)
        blank = self.psi.pick(np.zeros(len(present), np.int64))
        means = average(blank, self.psi.pick(participants), member.reshape(-1))
        sizes = np.bincount(self.assignment[self.assignment != UNSEEN], minlength=self.clusters)
        into = merge_order(cosines(means, means), sizes[present], threshold)
        heir = np.arange(self.clusters)
        heir[present] = present[into]
        kept, renamed = np.unique(heir, return_inverse=True)
        known = self.assignment != UNSEEN
        self.assignment[known] = renamed.reshape(-1)[self.assignment[known]]
        self.models = self.models.pick(np.concatenate([[0], 1 + kept]))
        return len(kept) < len(heir)

    def _search(self) -> float:
        """Find the threshold at which everybody's first updates fall into the wanted number of parts."""
        ledger, every = self.world.ledger, np.arange(self.world.clients)
        size = self.world.model_bytes(self.anchor)
        ledger.received("tuning", every, size)
        with ledger.clock("client", "tuning"):
            first = self.world.trainer.train(self.anchor, 0 * every, every, 0, sgd=self.sgd)
        ledger.sent("tuning", every, size)
        with ledger.clock("server", "tuning"):
            updates = first.minus(self.anchor)
            found = threshold_for(cosines(updates, updates), self.wanted)
        ledger.tuning_runs += 1
        ledger.oracle_knowledge.append(SEARCHED)
        return found

    def serving(self) -> Ints:
        """Serve each client its cluster's model; one never seen the global one."""
        return np.where(self.assignment == UNSEEN, 0, 1 + self.assignment)

    def finish(self) -> Outcome:
        """Have no last E-step."""
        return Outcome()

    def state(self) -> Arrays:
        """Give the threshold and every client's first update."""
        return {
            "threshold": np.array(np.nan if self.threshold is None else self.threshold),
            **self.psi.to_arrays(),
        }

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.threshold = None if np.isnan(arrays["threshold"]) else float(arrays["threshold"])
        self.psi = self.psi.from_arrays(arrays)


def merge_order(similar: Floats, sizes: Ints, threshold: float) -> Ints:
    """Merge n clusters from the most similar pair down to a threshold; tell into which each goes [n].

    Of two that merge the larger lives on, the first of equals; it then counts the members of both.
    """
    heir, sizes = np.arange(len(similar)), sizes.copy()
    above, right = np.triu_indices(len(similar), 1)
    order = np.argsort(-similar[above, right], kind="stable")
    for a, b in zip(above[order].tolist(), right[order].tolist(), strict=True):
        if not similar[a, b] >= threshold:  # nor where it is NaN
            break
        one, other = int(heir[a]), int(heir[b])
        if one == other:
            continue
        winner, loser = (one, other) if sizes[one] >= sizes[other] else (other, one)
        heir[heir == loser] = winner
        sizes[winner] += sizes[loser]
    return heir


def threshold_for(similar: Floats, parts: int) -> float:
    """Search the threshold at which a similarity matrix falls into so many connected parts, by bisection.

    Where no threshold gives that number, the highest one that gives fewer.
    """

    def count(threshold: float) -> int:
        return int(connected_components(similar >= threshold, directed=False)[0])

    low, high = -1.0, float(np.nextafter(1.0, 2.0))
    for _ in range(60):
        middle = (low + high) / 2
        found = count(middle)
        if found == parts:
            return middle
        low, high = (middle, high) if found < parts else (low, middle)
    return low
