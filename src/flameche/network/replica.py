"""A node's replica of a method: the simulator's code, with all other clients behind the network.

`ReplicaWorld` takes the place of the simulator's `World`. Arrays over clients keep their length; the rows of
other clients are empty, and where the method needs them, it asks the server. Models are handled by name: a
node downloads those that it trains or evaluates, and the server stores the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from flameche.crypto.envelope import terms_of
from flameche.crypto.masking import SecAgg
from flameche.em.spherical import Centroids
from flameche.errors import ConfigError
from flameche.methods.base import World
from flameche.network.message import Arrays, Message, RejectedMessage, bytes_array
from flameche.network.replay import Floats, Ints, Replay
from flameche.privacy.guard import Guard
from flameche.protocol.client import Cohort
from flameche.protocol.exchange import Exchange, by_share
from flameche.protocol.ledger import Ledger
from flameche.protocol.masked import MaskedSums
from flameche.protocol.phases import MStep, Phase, Result
from flameche.protocol.sums import Census, Sums, clear_census, note_openings, stacked
from flameche.training.models import Models
from flameche.training.trainer import Part, Trainer, TrainingPlan

UNKNOWN = -1  # the cluster of a client that was lost
GetModels = Callable[
    [Sequence[str]], Models
]  # models by name; raises ModelsMissing if some must be sent first


@dataclass(frozen=True)
class ModelNames:
    """Names of models, in place of their weights."""

    names: tuple[str, ...]
    finite: bool = True  # the server checks the weights

    def __len__(self) -> int:
        return len(self.names)

    def pick(self, index: Ints) -> ModelNames:
        """Select names, with repetition."""
        return ModelNames(tuple(self.names[k] for k in index.tolist()))

    def joined(self, other: ModelNames) -> ModelNames:
        """Append other names."""
        return ModelNames(self.names + other.names)

    def nbytes(self, with_buffers: bool = True) -> int:
        """Return 0: the server counts bytes as they are sent."""
        return 0


class ReplicaCohort(Cohort):
    """All clients, as one of them knows them: itself, and what the others report."""

    def __init__(self, replay: Replay, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.replay = replay
        self.nearest: int | None = None  # this client's cluster in its last E-step
        if self.imputes and options.get("missing") == "impute":
            raise ConfigError('method.missing = "impute" does not run on a network; "counts" does')

    def e_step(self, clients: Ints, centroids: Centroids) -> tuple[Ints, Floats]:
        """Find this client's cluster, report it, and receive the others'."""

        def own() -> Floats:
            k, e = super(ReplicaCohort, self).e_step(np.array([self.replay.client]), centroids)
            self.nearest = int(k[0])
            return np.array([k[0], e[0]])

        found = self.replay.gather(clients, own, width=2, below=len(centroids))
        lost = np.isnan(found[:, 0])
        return np.where(lost, UNKNOWN, found[:, 0]).astype(np.int64), np.where(lost, 0.0, found[:, 1])

    def terms(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Floats:
        """Compute this client's term; the others' rows are zeros."""
        mine = np.flatnonzero(clients == self.replay.client)
        own = super().terms(phase, clients[mine], assignment[mine], centroids)
        terms = np.zeros((len(clients), own.shape[1]))
        terms[mine] = own
        return terms


class RemoteSums:
    """Sums of ciphertexts that the server forms and clients decrypt."""

    def __init__(self, cohort: ReplicaCohort, clusters: int, stored: bool, ledger: Ledger) -> None:
        self._cohort, self._replay, self._clusters = cohort, cohort.replay, clusters
        self._stored = stored  # whether the server has this client's term
        self._ledger = ledger
        self._version = np.zeros(len(cohort), np.int64)  # a node's metadata do not change
        self.broadcast_bytes: int | None = 0

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Send this client's encrypted term, once."""
        mine = np.flatnonzero(clients == self._replay.client)
        stored, self._stored = self._stored, self._stored or len(mine) > 0

        def arrays() -> Arrays:
            if stored or not len(mine):
                return {}
            terms = self._cohort.terms(MStep(centroids), clients[mine], assignment[mine], centroids)
            return {"sealed": bytes_array(self._cohort.seal(terms)[0])}

        self._replay.upload("store", {"clients": clients.tolist(), "sums": self._clusters}, arrays)

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Request the sums over these members, and decrypt them."""
        fields = {"clients": members.tolist(), "rows": assignment.tolist(), "sums": self._clusters}
        return self._opened(self._replay.ask("totals", fields), "metadata", members, assignment)

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Encrypt this client's term for a single phase, request the sums, and decrypt them."""
        known = assignment != UNKNOWN
        clients, assignment = clients[known], assignment[known]
        terms = self._cohort.terms(phase, clients, assignment, centroids)
        mine = np.flatnonzero(clients == self._replay.client)
        fields = {"clients": clients.tolist(), "rows": assignment.tolist(), "sums": self._clusters}

        def arrays() -> Arrays:
            return {"sealed": bytes_array(self._cohort.seal(terms[mine])[0])} if len(mine) else {}

        answer = self._replay.ask("once", fields, arrays)
        sums = self._opened(answer, type(phase).__name__, clients, assignment)
        return phase.absorb(stacked(sums, terms.shape[1]))

    def _opened(self, answer: Message, what: str, members: Ints, assignment: Ints) -> list[Floats | None]:
        sealed = [answer.arrays.get(str(k)) for k in range(self._clusters)]
        sums = [None if total is None else self._cohort.open(total.tobytes()) for total in sealed]
        note_openings(self._ledger, what, sums, members, assignment, self._version)
        return sums

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Add up what clients reported."""
        return clear_census(self._clusters, seen, participants, assignment, error)

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Return all clients seen: the server stores everybody's term."""
        return seen

    def drifted(self, clients: Ints) -> None:
        """Raise: on a network, a node's metadata do not change."""
        raise ConfigError("drifting data are not followed on a network yet")

    def forget(self, clients: Ints, vanished: bool = False) -> None:
        """Let the server delete stored terms."""
        self._replay.upload("drop", {"clients": clients.tolist(), "sums": self._clusters})

    def state(self) -> Arrays:
        """Return nothing: the server stores the terms."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Do nothing: the server stores the terms."""


class RemoteMaskedSums(MaskedSums):
    """Secure aggregation, in which this client contributes one vector to each session."""

    def __init__(self, cohort: ReplicaCohort, *args: Any) -> None:
        super().__init__(cohort, *args)
        self._replay = cohort.replay

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Run a single phase without the clients that were lost."""
        known = assignment != UNKNOWN
        return super().once(phase, clients[known], assignment[known], centroids)

    def _session(self, vectors: Ints, clients: Ints, label: str) -> Ints | None:
        return _masked_sum(self._replay, vectors[clients == self._replay.client], clients, label)

    def state(self) -> Arrays:
        """Return the sums so far, without the clients' own terms of before a drift."""
        return {key: value for key, value in super().state().items() if not key.startswith("given/")}


def _masked_sum(replay: Replay, own: Ints, clients: Ints, label: str) -> Ints | None:
    """Request the sum of these clients' vectors; own [1 S], or [0 S] if this client is not among them."""
    fields = {"clients": clients.tolist(), "label": label, "length": own.shape[1]}
    answer = replay.ask("masked", fields, lambda: {"vector": own[0]} if len(own) else {})
    return answer.arrays["total"].astype(np.int64) if "total" in answer.arrays else None


class RemoteExchange(Exchange):
    """An exchange in which this client contributes its own term and requests the sum from the server.

    The guard has approved the set of clients, so there is a sum over exactly these, or none.
    """

    def __init__(self, replay: Replay, scheme: Any, guard: Guard, ledger: Ledger) -> None:
        super().__init__(scheme, guard, ledger)
        self._replay = replay

    def tell(self, clients: Ints, values: Ints, below: int) -> Ints:
        """Report this client's number, and return everybody's; UNKNOWN for clients that were lost."""
        own = values[clients == self._replay.client].astype(np.float64)
        found = self._replay.gather(clients, lambda: own, width=1, below=below)[:, 0]
        return np.where(np.isnan(found), UNKNOWN, found).astype(np.int64)

    def _total(self, terms: Floats, share: Floats, clients: Ints) -> Floats | None:
        mine = clients == self._replay.client
        own = by_share(terms[mine], share[mine])  # one vector, or none
        if isinstance(self._scheme, SecAgg):
            codec = self._scheme.codec
            encoded = np.stack([codec.encode(vector) for vector in own]) if len(own) else own.astype(np.int64)
            total = _masked_sum(self._replay, encoded, clients, "sketch")
            return None if total is None else codec.decode(total)
        key = self._key
        assert key is not None
        arrays = (lambda: {"sealed": bytes_array(key.seal(own[0]))}) if len(own) else None
        answer = self._replay.ask("exchange", {"clients": clients.tolist()}, arrays)
        if "0" not in answer.arrays:
            return None
        data = answer.arrays["0"].tobytes()
        if (count := terms_of(data)) != len(clients):
            raise RejectedMessage(
                f"the server answers with a sum of {count} clients' terms, expected {len(clients)}"
            )
        return key.open(data)


@dataclass
class ReplicaTrainer:
    """Trains and evaluates models, by name, on this client's own data."""

    replay: Replay
    get_models: GetModels
    local: Callable[[], Trainer]
    train_local: Callable[[str, int], Arrays]  # a model's name, a round -> params, buffers
    plan: TrainingPlan
    sizes: Ints
    awaiting_average: bool = False  # models were sent that the server must average before their first use

    def initial(self, number: int = 0) -> ModelNames:
        """Name an initial model; number 0 is the shared one."""
        return ModelNames((f"init.{number}",))

    def train(
        self, models: ModelNames, pick: Ints, clients: Ints, round: int, pull: Any = None, sgd: Any = None
    ) -> list[tuple[str, int, int]]:
        """List which client trains which model in which round; training starts when its result is needed."""
        if pull is not None or sgd is not None:
            raise ConfigError("this method trains in a way of its own, which does not run on a network yet")
        return [(models.names[k], i, round) for k, i in zip(pick.tolist(), clients.tolist(), strict=True)]

    def judge(self, models: ModelNames, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Evaluate models on this client's samples, and receive the others' losses and accuracies."""
        if self.awaiting_average:
            self.replay.ask("averaged", {})
            self.awaiting_average = False
        who = np.unique(clients)
        each = len(clients) // max(1, len(who))  # every client evaluates equally many models

        def own() -> Floats:
            mine = np.flatnonzero(clients == self.replay.client)
            rows = self.get_models([models.names[k] for k in pick[mine].tolist()])
            me = np.full(each, self.replay.client)
            return np.concatenate(self.local().judge(rows, np.arange(each), me, part))

        found = self.replay.gather(who, own, width=2 * each)
        loss, accuracy = np.full(len(clients), np.nan), np.full(len(clients), np.nan)
        for n, i in enumerate(who.tolist()):
            loss[clients == i], accuracy[clients == i] = found[n, :each], found[n, each:]
        return loss, accuracy

    def state(self) -> Arrays:
        """Return nothing: other nodes need no state of this trainer."""
        return {}


@dataclass
class ReplicaWorld(World):
    """The world of a method on a node."""

    replay: Replay = field(default_factory=lambda: Replay(0))
    term_is_stored: bool = False  # whether the server has this client's encrypted metadata

    def cohort(self, **options: Any) -> Cohort:
        """Return the clients, as this one knows them."""
        return ReplicaCohort(
            self.replay, self.metadata, self.scheme, self.ledger, noise=self.noise, **options
        )

    def sums(
        self, cohort: Cohort, clusters: int, over: Literal["seen", "participants"], hidden: bool = False
    ) -> Sums:
        """Return an object that requests sums over clusters from the server."""
        replicas = cast(ReplicaCohort, cohort)
        if hidden:
            raise ConfigError("method.hide_assignments does not run on a network yet")
        if isinstance(self.scheme, SecAgg):
            return RemoteMaskedSums(replicas, self.scheme, clusters, self.min_cluster, self.ledger, over)
        return RemoteSums(replicas, clusters, self.term_is_stored, self.ledger)

    def exchange(self, cohort: Cohort) -> Exchange:
        """Return an object that requests the sums of an exchange from the server."""
        return RemoteExchange(self.replay, self.scheme, Guard(self.clients, self.min_cluster), self.ledger)

    def reachable(self, present: Ints, participants: Ints) -> Ints:
        """Return the round's participants: no other nodes reply."""
        return participants

    def average(
        self,
        previous: Any,
        trained: Any,
        cluster: Ints,
        clients: Ints,
        hidden: bool = False,
        share: Floats | None = None,
        begin: bool = False,
        members: Ints | None = None,
    ) -> Any:
        """Train this client's model, send it, and name the averages that the server will form."""
        trainer, names = cast(ReplicaTrainer, self.trainer), list(previous.names)
        for k in np.unique(cluster).tolist():
            names[k] = f"{trained[0][2]}.{k}"
        fields = {
            "previous": list(previous.names), "names": names,
            "clients": clients.tolist(), "rows": cluster.tolist(),
        }  # fmt: skip

        def arrays() -> Arrays:
            return {
                f"{at}/{key}": array
                for at, (name, client, round) in enumerate(trained)
                if client == self.replay.client
                for key, array in trainer.train_local(name, round).items()
            }

        self.replay.upload("average", fields, arrays)
        trainer.awaiting_average = True
        return ModelNames(tuple(names))
