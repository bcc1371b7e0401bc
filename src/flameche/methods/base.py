"""What a method is, and the world it acts in: clients, trainer, scheme, ledger, shared by all methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
from flameche.metadata.extractors import Metadata
from flameche.protocol.client import Cohort
from flameche.protocol.ledger import Ledger
from flameche.protocol.sums import StoredSums, Sums
from flameche.training.models import Models, average
from flameche.training.trainer import Trainer

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[np.generic]]
DIVERGED = "training diverged: a model holds NaN or infinite weights"
UNSEEN = -1  # the cluster of a client that has not taken part yet; 0 is a cluster like any other


@dataclass
class World:
    """Everything a method may use. `metadata` and `truth` are asked for, so that their cost is known."""

    clients: int
    rounds: int
    seed: int
    trainer: Trainer
    ledger: Ledger
    scheme: Scheme | SecAgg
    extract: Callable[[], Metadata]
    group: Ints
    weighting: Literal["uniform", "samples"] = "uniform"
    min_cluster: int = 1  # no sum over fewer clients is opened
    notes: list[str] = field(default_factory=list)  # what a reader of the results should know
    known_metadata: Metadata | None = field(default=None, repr=False)

    @property
    def metadata(self) -> Metadata:
        """Give all clients' metadata; extracted when first asked for, once."""
        if self.known_metadata is None:
            with self.ledger.clock("client", "extraction"):
                self.known_metadata = self.extract()
        return self.known_metadata

    @property
    def has_metadata(self) -> bool:
        """Tell whether metadata were asked for."""
        return self.known_metadata is not None

    def truth(self, why: str) -> Ints:
        """Give the true groups [C]; the ledger remembers that it was asked for."""
        self.ledger.oracle_knowledge.append(why)
        return self.group

    def train(self, models: Models, pick: Ints, clients: Ints, round: int) -> Models:
        """Send row pick[n] of models to clients [n], train there, collect the results [n]."""
        size = models.nbytes(with_buffers=self.trainer.plan.bn_buffers != "local")
        self.ledger.received("model", clients, size)
        with self.ledger.clock("client", "training"):
            trained = self.trainer.train(models, pick, clients, round)
        self.ledger.sent("model", clients, size)
        return trained

    def average(self, previous: Models, trained: Models, cluster: Ints, clients: Ints) -> Models:
        """Average what clients [n] trained, per cluster [n]."""
        weight = None if self.weighting == "uniform" else self.trainer.sizes[clients].astype(float)
        with self.ledger.clock("server", "training"):
            rule = self.trainer.plan.bn_buffers
            models = average(previous, trained, cluster, weight=weight, buffers=rule)
        if not models.finite and DIVERGED not in self.notes:
            self.notes.append(DIVERGED)
        return models

    def sums(self, cohort: Cohort, clusters: int, over: Literal["seen", "participants"]) -> Sums:
        """Give the way in which this run's scheme forms sums over clusters."""
        if isinstance(self.scheme, SecAgg):
            from flameche.protocol.masked import MaskedSums  # needs cryptography, which only this scheme does

            return MaskedSums(cohort, self.scheme, clusters, self.min_cluster, self.ledger, over)
        return StoredSums(cohort, self.scheme, clusters, self.min_cluster, self.ledger)

    def initial_models(self, count: int) -> Models:
        """Give `count` copies of the shared initial model."""
        return self.trainer.initial().pick(np.zeros(count, np.int64))


@dataclass(frozen=True)
class Outcome:
    """What a method says of its clustering when the last round is over."""

    assignment: Ints | None = None  # [C], after a last E-step where the method has one
    dbi: float = float("nan")
    ch: float = float("nan")


class Method(Protocol):
    """What the simulator drives, round by round."""

    title: ClassVar[str]
    family: ClassVar[str]
    needs: ClassVar[Literal["sums", "terms"]]
    uploads: ClassVar[str]

    models: Models
    assignment: Ints  # [C], UNSEEN where unknown
    clusters: int  # 1 for a method without clusters

    def __init__(self, world: World, **options: Any) -> None: ...

    def round(self, r: int, participants: Ints) -> bool:
        """Play round r with these clients; tell whether clients were redistributed."""
        ...

    def serving(self) -> Ints:
        """Tell which of the models each client [C] would use now."""
        ...

    def finish(self) -> Outcome:
        """Close the run."""
        ...

    def state(self) -> Arrays:
        """Give what must survive a restart besides the models and the assignment."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        ...
