"""One client's replica of a method: the simulator's code, where everybody else is at the end of a link.

`ReplicaWorld` takes the place of the simulator's `World`. Arrays over clients keep their length; the rows of
others are empty, and where a method wants to know more of them, it asks. Models are known by name: a node
fetches those that it trains or tries, the server has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from flameche.crypto.envelope import terms_of
from flameche.crypto.masking import SecAgg
from flameche.em.spherical import Centroids
from flameche.errors import ConfigError
from flameche.methods.base import World
from flameche.network.link import Floats, Ints, Link
from flameche.network.parcel import Arrays, Parcel, Refused, from_bytes
from flameche.privacy.guard import Guard
from flameche.protocol.client import Cohort
from flameche.protocol.exchange import Exchange, by_share
from flameche.protocol.ledger import Ledger
from flameche.protocol.masked import MaskedSums
from flameche.protocol.phases import MStep, Phase, Result
from flameche.protocol.sums import Census, Sums, clear_census, note_openings, stacked
from flameche.training.models import Models
from flameche.training.trainer import Part, Trainer, TrainingPlan

UNKNOWN = -1  # where a lost client would be
Fetch = Callable[[Sequence[str]], Models]  # models by name; pauses where they are not there yet


@dataclass(frozen=True)
class Names:
    """Models by name, in the place of their weights."""

    names: tuple[str, ...]
    finite: bool = True  # the server looks

    def __len__(self) -> int:
        return len(self.names)

    def pick(self, index: Ints) -> Names:
        """Take names, with repetition."""
        return Names(tuple(self.names[k] for k in index.tolist()))

    def joined(self, other: Names) -> Names:
        """Put others below these."""
        return Names(self.names + other.names)

    def nbytes(self, with_buffers: bool = True) -> int:
        """Count nothing: bytes are counted where they travel."""
        return 0


class ReplicaCohort(Cohort):
    """All clients as one of them knows them: itself, and what the others tell."""

    def __init__(self, link: Link, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.link = link
        self.nearest: int | None = None  # of this client, when it was last asked
        if self.imputes and how.get("missing") == "impute":
            raise ConfigError('method.missing = "impute" does not run on a network; "counts" does')

    def e_step(self, clients: Ints, centroids: Centroids) -> tuple[Ints, Floats]:
        """Find one's own cluster, tell it, and hear the others'."""

        def own() -> Floats:
            k, e = super(ReplicaCohort, self).e_step(np.array([self.link.me]), centroids)
            self.nearest = int(k[0])
            return np.array([k[0], e[0]])

        told = self.link.tell(clients, own, width=2, below=len(centroids))
        lost = np.isnan(told[:, 0])
        return np.where(lost, UNKNOWN, told[:, 0]).astype(np.int64), np.where(lost, 0.0, told[:, 1])

    def terms(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Floats:
        """Compute one's own term; the others' are zeros here."""
        mine = np.flatnonzero(clients == self.link.me)
        own = super().terms(phase, clients[mine], assignment[mine], centroids)
        terms = np.zeros((len(clients), own.shape[1]))
        terms[mine] = own
        return terms


class RemoteSums:
    """Sums that the server forms of sealed terms, and clients open."""

    def __init__(self, cohort: ReplicaCohort, clusters: int, held: bool, ledger: Ledger) -> None:
        self._cohort, self._link, self._clusters = cohort, cohort.link, clusters
        self._held = held  # the server has this client's term
        self._ledger, self._version = ledger, np.zeros(len(cohort), np.int64)  # nodes' metadata stay
        self.broadcast_bytes: int | None = 0

    def offer(self, clients: Ints, assignment: Ints, error: Floats, centroids: Centroids) -> None:
        """Send one's own sealed term, once."""
        mine = np.flatnonzero(clients == self._link.me)
        held, self._held = self._held, self._held or len(mine) > 0

        def part() -> Arrays:
            if held or not len(mine):
                return {}
            terms = self._cohort.terms(MStep(centroids), clients[mine], assignment[mine], centroids)
            return {"sealed": from_bytes(self._cohort.seal(terms)[0])}

        self._link.give("store", {"clients": clients.tolist(), "sums": self._clusters}, part)

    def totals(self, members: Ints, assignment: Ints) -> list[Floats | None]:
        """Ask for the sums over these members, and open what comes."""
        about = {"clients": members.tolist(), "rows": assignment.tolist(), "sums": self._clusters}
        return self._opened(self._link.ask("totals", about), "metadata", members, assignment)

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Seal one's own term for a single phase, ask for the sums, and open them."""
        known = assignment != UNKNOWN
        clients, assignment = clients[known], assignment[known]
        terms = self._cohort.terms(phase, clients, assignment, centroids)
        mine = np.flatnonzero(clients == self._link.me)
        about = {"clients": clients.tolist(), "rows": assignment.tolist(), "sums": self._clusters}

        def part() -> Arrays:
            return {"sealed": from_bytes(self._cohort.seal(terms[mine])[0])} if len(mine) else {}

        answer = self._link.ask("once", about, part)
        sums = self._opened(answer, type(phase).__name__, clients, assignment)
        return phase.absorb(stacked(sums, terms.shape[1]))

    def _opened(self, answer: Parcel, what: str, members: Ints, assignment: Ints) -> list[Floats | None]:
        sealed = [answer.arrays.get(str(k)) for k in range(self._clusters)]
        sums = [None if total is None else self._cohort.open(total.tobytes()) for total in sealed]
        note_openings(self._ledger, what, sums, members, assignment, self._version)
        return sums

    def census(self, seen: Ints, participants: Ints, assignment: Ints, error: Floats) -> Census:
        """Add up what clients told."""
        return clear_census(self._clusters, seen, participants, assignment, error)

    def movable(self, seen: Ints, participants: Ints) -> Ints:
        """Move anybody: the server has everybody's term."""
        return seen

    def drifted(self, clients: Ints) -> None:
        """Refuse: a node's metadata stay as they are."""
        raise ConfigError("data that drift are not followed on a network yet")

    def forget(self, clients: Ints, vanished: bool = False) -> None:
        """Let the server drop the stored terms."""
        self._link.give("drop", {"clients": clients.tolist(), "sums": self._clusters})

    def state(self) -> Arrays:
        """Have nothing to keep: the server has it."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Have nothing to take back."""


class RemoteMasked(MaskedSums):
    """Secure aggregation, where this client's vector is one of a session's."""

    def __init__(self, cohort: ReplicaCohort, *given: Any) -> None:
        super().__init__(cohort, *given)
        self._link = cohort.link

    def once(self, phase: Phase[Result], clients: Ints, assignment: Ints, centroids: Centroids) -> Result:
        """Leave out who is lost."""
        known = assignment != UNKNOWN
        return super().once(phase, clients[known], assignment[known], centroids)

    def _session(self, vectors: Ints, clients: Ints, label: str) -> Ints | None:
        about = {"clients": clients.tolist(), "label": label, "length": vectors.shape[1]}
        own = vectors[clients == self._link.me]
        answer = self._link.ask("masked", about, lambda: {"vector": own[0]} if len(own) else {})
        return answer.arrays["total"].astype(np.int64) if "total" in answer.arrays else None

    def state(self) -> Arrays:
        """Give the sums so far; what clients gave before a drift is theirs alone."""
        return {key: value for key, value in super().state().items() if not key.startswith("given/")}


class RemoteExchange(Exchange):
    """An exchange in which this client contributes its own term, and asks the server for the sum.

    The guard has weighed who would be in it, so there is a sum over exactly these clients, or none.
    """

    def __init__(self, link: Link, scheme: Any, guard: Guard, ledger: Ledger) -> None:
        super().__init__(scheme, guard, ledger)
        self._link = link

    def tell(self, clients: Ints, values: Ints, below: int) -> Ints:
        """Tell one's own number, and hear the others'."""
        mine = clients == self._link.me
        told = self._link.tell(clients, lambda: values[mine].astype(np.float64), width=1, below=below)[:, 0]
        return np.where(np.isnan(told), UNKNOWN, told).astype(np.int64)

    def _total(self, terms: Floats, share: Floats, clients: Ints) -> Floats | None:
        mine = clients == self._link.me
        own = by_share(terms[mine], share[mine]).sum(axis=0)
        return self._asked(own, bool(mine.any()), clients)

    def _asked(self, own: Floats, here: bool, clients: Ints) -> Floats | None:
        who = clients.tolist()
        if isinstance(self._scheme, SecAgg):
            codec = self._scheme.codec
            about = {"clients": who, "label": "sketch", "length": len(own)}
            answer = self._link.ask("masked", about, lambda: {"vector": codec.encode(own)} if here else {})
            return codec.decode(answer.arrays["total"].astype(np.int64)) if "total" in answer.arrays else None
        key = self._key
        assert key is not None
        part = (lambda: {"sealed": from_bytes(key.seal(own))}) if here else None
        answer = self._link.ask("exchange", {"clients": who}, part)
        if "0" not in answer.arrays:
            return None
        total = answer.arrays["0"].tobytes()
        if (terms := terms_of(total)) != len(who):
            raise Refused(f"the server answers with a sum of {terms} clients' terms, expected {len(who)}")
        return key.open(total)


@dataclass
class ReplicaTrainer:
    """Training and trying, of this client's own data alone."""

    link: Link
    fetch: Fetch
    own: Callable[[], Trainer]
    plan: TrainingPlan
    sizes: Ints
    averaged: bool = False  # models were given that the server has to average before anybody can try them

    def judge(self, models: Names, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Try models on one's own samples, and hear how the others fared."""
        if self.averaged:
            self.link.ask("averaged", {})
            self.averaged = False
        who = np.unique(clients)
        each = len(clients) // max(1, len(who))  # as many questions for everybody

        def own() -> Floats:
            mine = np.flatnonzero(clients == self.link.me)
            rows = self.fetch([models.names[k] for k in pick[mine].tolist()])
            asked = np.arange(each)
            return np.concatenate(self.own().judge(rows, asked, np.full(each, self.link.me), part))

        told = self.link.tell(who, own, width=2 * each)
        loss, accuracy = np.full(len(clients), np.nan), np.full(len(clients), np.nan)
        for n, i in enumerate(who.tolist()):
            loss[clients == i], accuracy[clients == i] = told[n, :each], told[n, each:]
        return loss, accuracy

    def state(self) -> Arrays:
        """Have nothing that others should know."""
        return {}


@dataclass
class ReplicaWorld(World):
    """The world of a method on a node."""

    link: Link = field(default_factory=lambda: Link(0))
    held: bool = False  # the server has this client's sealed metadata
    train_own: Callable[[str, int], Arrays] | None = None  # a model's name, a round -> params, buffers

    def cohort(self, **how: Any) -> Cohort:
        """Give the clients, as this one knows them."""
        return ReplicaCohort(self.link, self.metadata, self.scheme, self.ledger, noise=self.noise, **how)

    def sums(
        self, cohort: Cohort, clusters: int, over: Literal["seen", "participants"], hidden: bool = False
    ) -> Sums:
        """Give the way in which sums are asked for."""
        mine = cast(ReplicaCohort, cohort)
        if hidden:
            raise ConfigError("method.hide_assignments does not run on a network yet")
        if isinstance(self.scheme, SecAgg):
            return RemoteMasked(mine, self.scheme, clusters, self.min_cluster, self.ledger, over)
        return RemoteSums(mine, clusters, self.held, self.ledger)

    def exchange(self, cohort: Cohort) -> Exchange:
        """Give the way in which exchanges are asked for."""
        return RemoteExchange(self.link, self.scheme, Guard(self.clients, self.min_cluster), self.ledger)

    def reachable(self, present: Ints, participants: Ints) -> Ints:
        """List the round's nodes: no others answer."""
        return participants

    def train(self, models: Any, pick: Ints, clients: Ints, round: int, **how: Any) -> Any:
        """Note who trains which model; it is done when the result is given."""
        return [(models.names[k], i, round) for k, i in zip(pick.tolist(), clients.tolist(), strict=True)]

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
        """Train one's own part, give it, and name the models that the server makes of everybody's."""
        names = list(previous.names)
        for k in np.unique(cluster).tolist():
            names[k] = f"{trained[0][2]}.{k}"
        about = {
            "previous": list(previous.names), "names": names,
            "clients": clients.tolist(), "rows": cluster.tolist(),
        }  # fmt: skip
        self.link.give("average", about, lambda: dict(self._own(trained)))
        cast(ReplicaTrainer, self.trainer).averaged = True
        return Names(tuple(names))

    def _own(self, trained: list[tuple[str, int, int]]) -> Iterator[tuple[str, Any]]:
        assert self.train_own is not None
        for at, (name, client, round) in enumerate(trained):
            if client == self.link.me:
                for key, array in self.train_own(name, round).items():
                    yield f"{at}/{key}", array

    def model_bytes(self, models: Any) -> int:
        """Count nothing: bytes are counted where they travel."""
        return 0

    def initial_models(self, count: int) -> Any:
        """Name the shared initial model, so many times."""
        return Names(("init.0",) * count)

    def different_models(self, count: int) -> Any:
        """Name so many initial models, each drawn for itself."""
        return Names(tuple(f"init.{number}" for number in range(count)))
