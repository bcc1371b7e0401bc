"""What a method is, and the world it acts in: clients, trainer, scheme, ledger, shared by all methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
from flameche.em.spherical import Centroids
from flameche.errors import BadInput
from flameche.metadata.extractors import ClientSamples, Metadata
from flameche.privacy.guard import Guard
from flameche.protocol.client import Cohort
from flameche.protocol.exchange import Exchange, by_share
from flameche.protocol.hidden import HiddenSums
from flameche.protocol.ledger import Ledger
from flameche.protocol.sums import StoredSums, Sums
from flameche.protocol.updates import UpdateSums
from flameche.tables import Table
from flameche.training.models import Models, average
from flameche.training.trainer import Pull, Sgd, Trainer

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
DIVERGED = "training diverged: weights are NaN or infinite, so accuracy says nothing; lower training.lr"
BROKEN_OFF = "training diverged (NaN or infinite weights); lower training.lr"
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
    samples: Callable[[], ClientSamples]  # what clients summarise, for methods with metadata of their own
    group: Ints
    weighting: Literal["uniform", "samples"] = "uniform"
    server_lr: float = 1.0  # how far a model goes towards its participants' average
    absent: Literal["out", "stay"] = "out"  # of an average, or in it with the model as it was
    min_cluster: int = 1  # no sum over fewer clients is opened
    updates: UpdateSums | None = None  # how model updates are protected; None in the clear
    noise: float = 0.0  # of standard deviation noise / n in metadata that are means of n samples
    notes: list[str] = field(default_factory=list)  # what a reader of the results should know
    known_metadata: Metadata | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse metadata that cannot be clustered."""
        if self.known_metadata is not None:
            self.known_metadata.checked()

    @property
    def metadata(self) -> Metadata:
        """Give all clients' metadata; extracted when first asked for, once, and refused if not finite."""
        if self.known_metadata is None:
            with self.ledger.clock("client", "extraction"):
                self.known_metadata = self.extract().checked()
        return self.known_metadata

    @property
    def has_metadata(self) -> bool:
        """Tell whether metadata were asked for."""
        return self.known_metadata is not None

    def truth(self, why: str) -> Ints:
        """Give the true groups [C]; the ledger remembers that it was asked for."""
        self.ledger.oracle_knowledge.append(why)
        return self.group

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        *,
        hidden: bool = False,
        fetched: bool = False,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Send row pick[n] of models to clients [n], train there, collect the results [n].

        hidden: a client takes all models, so that its choice is its own; fetched: it has them already.
        """
        down = 0 if fetched else self.down_bytes(models, len(models) if hidden else 1)
        self.ledger.received("model", clients, down)
        with self.ledger.clock("client", "training"):
            trained = self.trainer.train(models, pick, clients, round, pull, sgd)
        if self.updates is None:
            self.ledger.sent("model", clients, self.model_bytes(models))
        return trained

    def model_bytes(self, models: Models) -> int:
        """Count the bytes of one model on its way up."""
        return models.nbytes(with_buffers=self.trainer.plan.bn_buffers != "local")

    def down_bytes(self, models: Models, count: int = 1) -> int:
        """Count the bytes of so many models on their way down, or of the sealed sum that holds all."""
        return (self.updates.model_bytes if self.updates else 0) or count * self.model_bytes(models)

    def average(
        self,
        previous: Models,
        trained: Models,
        cluster: Ints,
        clients: Ints,
        hidden: bool = False,
        share: Floats | None = None,
        begin: bool = False,
        members: Ints | None = None,
    ) -> Models:
        """Average what clients [n] trained, per cluster [n]; hidden: without anybody seeing the clusters.

        With `share` [n K], a client counts for every cluster by its share, and for `cluster` no more. begin:
        clusters begin here, all the way at the average. members [C]: the cluster of every client that has
        taken part, below 0 for others and for who is in none; absent ones count where `absent` says so.
        """
        weight = None if self.weighting == "uniform" else self.trainer.sizes[clients].astype(float)
        rule = self.trainer.plan.bn_buffers
        if self.updates is not None:
            flat = trained.flat(with_buffers=rule == "mean")
            if not np.isfinite(flat).all():
                raise BadInput(f"a model's update cannot be sealed: {BROKEN_OFF}")
            weights = np.ones(len(clients)) if weight is None else weight / weight.mean()
            if share is not None:
                models = self._average_shared(previous, flat, share, clients, weights)
            else:
                models = self._average_unseen(previous, flat, cluster, clients, weights, hidden)
        else:
            with self.ledger.clock("server", "training"):
                holder = None
                if rule == "member":
                    holder = self._holders(len(previous), cluster, clients, None if begin else members)
                models = average(
                    previous, trained, cluster, weight=weight, buffers=rule, share=share, holder=holder
                )
        if not begin:
            far = self._far(len(previous), cluster, members)
            models = previous.towards(models, far, with_buffers=rule == "mean")
        if not models.finite and DIVERGED not in self.notes:
            self.notes.append(DIVERGED)
        return models

    def _holders(self, count: int, cluster: Ints, clients: Ints, members: Ints | None) -> Ints:
        """Tell at which place [n] each cluster's first member is; below 0 where it is absent.

        Where nobody is a member yet, the first participant is meant.
        """
        holders = np.full(count, -1)
        for k in np.unique(cluster).tolist():
            there = np.flatnonzero(cluster == k)
            known = np.flatnonzero(members == k) if members is not None else there[:0]
            first = known[0] % self.clients if len(known) else clients[there[0]]  # IFCA's are of every start
            place = there[clients[there] == first]
            holders[k] = place[0] if len(place) else -1
        return holders

    def _far(self, count: int, cluster: Ints, members: Ints | None) -> Floats:
        """Tell how far each of `count` models goes towards the average of its participants."""
        far = np.full(count, self.server_lr)
        if self.absent == "stay" and members is not None:
            here = np.bincount(cluster, minlength=count)
            far *= here / np.maximum(np.bincount(members[members >= 0], minlength=count), np.maximum(here, 1))
        return far

    def _average_unseen(
        self, previous: Models, flat: Floats, cluster: Ints, clients: Ints, weight: Floats, hidden: bool
    ) -> Models:
        """Average flat models [n P] from sums alone; a cluster with too few participants keeps its model.

        Sums per cluster, or, where clusters are hidden, one sum of one-hot blocks for all clusters.
        """
        assert self.updates is not None
        terms = np.column_stack([flat * weight[:, None], weight, np.ones(len(flat))])
        totals: list[Floats | None] = []
        if hidden:
            total = self.updates.total(by_share(terms, np.eye(len(previous))[cluster]), clients)
            totals = [] if total is None else list(total.reshape(len(previous), -1))
        else:
            for k in range(len(previous)):
                members = np.flatnonzero(cluster == k)
                totals.append(self.updates.total(terms[members], clients[members]))
        models, opened = previous, np.zeros(len(previous), bool)
        for k, one in enumerate(totals):
            if one is not None and round(one[-1]) >= max(1, self.min_cluster):
                models = models.replaced(k, one[:-2] / one[-2])
                opened[k] = True
        self.ledger.summed("model", np.bincount(cluster, minlength=len(previous)) > 0, opened)
        return models

    def _average_shared(
        self, previous: Models, flat: Floats, share: Floats, clients: Ints, weight: Floats
    ) -> Models:
        """Average flat models [n P] by shares [n K], from one sum with a block for every cluster.

        Shares are known, as clusters are; a cluster of effectively too few participants, (sum r)^2 / sum r^2,
        keeps its model, and is left out of the sum.
        """
        assert self.updates is not None
        many = share.sum(axis=0) ** 2 / np.maximum((share**2).sum(axis=0), 1e-12)
        given = np.where(many < max(2, self.min_cluster) - 1e-9, 0.0, share)
        models, opened = previous, given.sum(axis=0) > 0
        if opened.any():
            terms = np.column_stack([flat * weight[:, None], weight, np.ones(len(flat))])
            total = self.updates.total(by_share(terms, given), clients)
            opened &= total is not None  # there were enough; None: its ciphertexts cancel out
            sums = np.zeros((0, 0)) if total is None else total.reshape(len(previous), -1)
            for k in np.flatnonzero(opened).tolist():
                models = models.moved(k, sums[k, :-2] / sums[k, -2], sums[k, -1])
        self.ledger.summed("model", share.sum(axis=0) > 0, opened)
        return models

    def refuse_diverged(self, models: Models, what: str) -> None:
        """Stop with one line where models to be compared hold NaN."""
        if not models.finite:
            raise BadInput(f"{what}: {BROKEN_OFF}")

    def cohort(self, **how: Any) -> Cohort:
        """Give the clients as holders of their metadata; `how` is the cohort's own."""
        return Cohort(self.metadata, self.scheme, self.ledger, noise=self.noise, **how)

    def exchange(self, cohort: Cohort) -> Exchange:
        """Give the way in which sums are formed that the guard of the whole run decides on."""
        return Exchange(self.scheme, Guard(self.clients, self.min_cluster), self.ledger)

    def reachable(self, present: Ints, participants: Ints) -> Ints:
        """List the clients that can take part in an exchange now; in a simulation, all that are there."""
        return present

    def sums(
        self, cohort: Cohort, clusters: int, over: Literal["seen", "participants"], hidden: bool = False
    ) -> Sums:
        """Give the way in which this run's scheme forms sums over clusters."""
        if isinstance(self.scheme, SecAgg):
            from flameche.protocol.masked import MaskedSums  # needs cryptography, which only this scheme does

            return MaskedSums(cohort, self.scheme, clusters, self.min_cluster, self.ledger, over)
        kind = HiddenSums if hidden else StoredSums
        return kind(cohort, self.scheme, clusters, self.min_cluster, self.ledger)

    def initial_models(self, count: int) -> Models:
        """Give `count` copies of the shared initial model."""
        return self.trainer.initial().pick(np.zeros(count, np.int64))

    def different_models(self, count: int) -> Models:
        """Give `count` initial models, each drawn for itself; the first is the shared one."""
        models = self.trainer.initial()
        for number in range(1, count):
            models = models.joined(self.trainer.initial(number))
        return models


@dataclass(frozen=True)
class About:
    """What there is to know of a method before it is run; costs are those beyond FedAvg's, over a run.

    In the costs' words R is rounds, N clients, n participants of a round, K clusters, M numbers in a model, d
    numbers in a client's metadata.
    """

    title: str
    family: Literal["–", "server-side", "client-side", "metadata"]
    needs: Literal["sums", "terms"]  # what the server must see: sums alone, or each client's term
    uploads: str
    server: str = "–"
    client: str = "–"
    up: str = "–"
    down: str = "–"
    by_metadata: bool = False  # whether it clusters clients by metadata, which a scheme can seal
    follows_events: bool = True  # whether clients may join, leave and drift while it runs

    @property
    def needs_terms(self) -> bool:
        """Tell whether the server must see each client's model or metadata."""
        return self.needs == "terms"


class MethodOptions(Table):
    """What the [method] table of an experiment may say; a method's own options add their keys.

    Example:
        >>> from flameche.methods.base import MethodOptions
        >>> class Mine(MethodOptions):
        ...     clusters: int = 4
        >>> Mine(clusters=2).own()
        {'clusters': 2}
    """

    kind: str = ""

    @property
    def by_session(self) -> bool:
        """Tell whether clusters, and their number, come from a clustering session."""
        return False

    @property
    def takes_noise(self) -> bool:
        """Tell whether everything that is opened comes from metadata that may have noise (`[privacy]`)."""
        return False

    def own(self) -> dict[str, Any]:
        """Give the method's own options, without its kind."""
        return self.model_dump(exclude={"kind"})

    def make(self, kind: type[Method], world: World) -> Method:
        """Build the method with these options."""
        return kind(world, **self.own())

    def check(self, experiment: Any) -> None:
        """Raise a ConfigError where other tables of the experiment do not go with these options."""


@dataclass(frozen=True)
class Outcome:
    """What a method says of its clustering when the last round is over."""

    assignment: Ints | None = None  # [C], after a last E-step where the method has one
    dbi: float = float("nan")
    ch: float = float("nan")
    keep: Arrays = field(default_factory=dict)  # what a newcomer needs to find its cluster


class Living:
    """What FLAMECHE's modes share: centroids, and clients whose metadata change, who leave and come again."""

    def __init__(self, world: World, cohort: Cohort, clusters: int) -> None:
        self.world, self.cohort = world, cohort
        self.models = world.initial_models(clusters)
        shape = (clusters, *cohort.blocks)
        self.centroids = Centroids(np.zeros(shape), np.zeros(shape[:2]))
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.left, self.drifted = np.zeros(world.clients, bool), np.zeros(world.clients, bool)

    @property
    def present(self) -> Ints:
        """List the clients that have not left."""
        return np.flatnonzero(~self.left)

    def refuse_gone(self, participants: Ints) -> None:
        """Stop with one line where somebody takes part who has left."""
        if (gone := participants[self.left[participants]]).size:
            raise BadInput(f"client {gone[0]} has left and takes part; let it join first")

    def join(self, clients: Ints) -> None:
        """Let clients take part that left, or were not there from the start."""
        self.left[clients] = False

    def state(self) -> Arrays:
        """Give the centroids, and the metadata of who drifted."""
        who = np.flatnonzero(self.drifted)
        drifted = {"drift/phi": self.cohort.phi[who], "drift/weight": self.cohort.weight[who]}
        return {"theta": self.centroids.theta, "mass": self.centroids.mass, **drifted}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave; it must be known by now who drifted."""
        theta, mass, phi, weight = (
            arrays[name].astype(np.float64) for name in ("theta", "mass", "drift/phi", "drift/weight")
        )
        self.centroids = Centroids(theta, mass)
        self.cohort.take(np.flatnonzero(self.drifted), phi, weight)


class Method(Protocol):
    """What the simulator drives, round by round."""

    about: ClassVar[About]
    Options: ClassVar[type[MethodOptions]]

    models: Models
    assignment: Ints  # [C], UNSEEN where unknown

    def __init__(self, world: World, **options: Any) -> None: ...

    @property
    def clusters(self) -> int:
        """Count the clusters there are now; 1 for a method without clusters."""
        ...

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
