"""A node: answers the server's messages, one after another, each perhaps in a process of its own.

hello     who it is: number, key, shape of its metadata
round     a round begins or goes on: it replays its method with the answers so far
step      a step of secure aggregation
evaluate  its cluster's model on its own test samples
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from flameche import __version__
from flameche.crypto.api import Scheme
from flameche.crypto.box import Box
from flameche.crypto.masking import SecAgg
from flameche.errors import DataError, FlamecheError, OutOfRange, SealError, StoreError
from flameche.metadata.extractors import NOT_FINITE, Metadata
from flameche.methods.base import Method
from flameche.methods.flameche import Flameche
from flameche.methods.sketch import FlamecheSketch
from flameche.network.forms import is_name
from flameche.network.link import Alone, Link, Paused
from flameche.network.models import Missing, fetcher
from flameche.network.parcel import Arrays, Parcel, Refused, from_bytes, npz_arrays, npz_bytes, prefixed
from flameche.network.replica import Fetch, Names, ReplicaTrainer, ReplicaWorld
from flameche.network.sessions import begin_session, take_step
from flameche.network.site import Site
from flameche.protocol.ledger import Ledger
from flameche.training.trainer import Trainer, TrainingPlan


class Unreadable(Exception):
    """What clients left with the server cannot be read; another node's copy may be."""


@dataclass(frozen=True)
class Work:
    """What a node can do, and what it has agreed to: one client of an experiment."""

    run: str  # names configuration and seed, the same on every node
    number: int
    clients: int
    rounds: int
    seed: int
    plan: TrainingPlan
    size: Callable[[], int]  # of its training set
    method: Callable[[ReplicaWorld], Method]
    scheme: Scheme | SecAgg = field(repr=False)
    fingerprint: str  # of the key
    min_cluster: int
    metadata: Callable[[], Metadata] = field(repr=False)  # of this client, one row
    trainer: Callable[[], Trainer] = field(repr=False)  # over this client's data, under its number
    box: Box | None = None  # where the server must not read what clients know
    keepsake: Callable[[Arrays], Arrays] = lambda keep: keep  # of what a method keeps: what newcomers need
    noise: float = 0.0  # in everybody's metadata, as a `World` has it
    config: str = ""  # the experiment, to lie beside it


class Node:
    """One client of a federation, on a disk of its own."""

    def __init__(self, work: Work, site: Site) -> None:
        self.work, self.site = work, site
        self._trainer: Trainer | None = None

    def handle(self, parcel: Parcel) -> Parcel:
        """Answer one message; FlamecheError says in one line why not."""
        what = parcel.head.get("what")
        answers: dict[Any, Callable[[Parcel], Parcel]] = {
            "hello": self._hello,
            "round": self._round,
            "step": self._step,
            "evaluate": self._evaluate,
        }
        if what not in answers:
            raise Refused(f"node {self.work.number} does not know what to do about '{what}'")
        if parcel.head.get("run") not in (self.work.run, None):
            raise Refused(
                f"node {self.work.number} takes part in {self.work.run}, not in {parcel.head.get('run')}: "
                "server and node have different configurations"
            )
        try:
            answer = answers[what](parcel)
        except OutOfRange:  # its words hold a value
            raise Refused(
                f"node {self.work.number}: its metadata exceed scheme.bound; raise that for everybody"
            ) from None
        except StoreError as problem:  # its words hold a path
            raise Refused(f"node {self.work.number}: its own folder cannot be used; see its log") from problem
        about = {key: parcel.head.get(key) for key in ("run", "round", "attempt", "stage")}
        return replace(answer, head={**about, "number": self.work.number, **answer.head})

    def _hello(self, parcel: Parcel) -> Parcel:
        work = self.work
        metadata = self._metadata(str(parcel.head.get("instance", "")))
        if not np.isfinite(metadata.phi).all():
            raise DataError(f"node {work.number}: its metadata {NOT_FINITE}")
        return Parcel(
            {
                "what": "hello", "run": work.run, "version": __version__, "size": work.size(),
                "fingerprint": work.fingerprint, "blocks": list(metadata.phi.shape[1:]),
            }
        )  # fmt: skip

    def _round(self, parcel: Parcel) -> Parcel:
        """Replay the round with the answers so far, up to the next question or its end."""
        opening, log = self._remembered(parcel)
        if opening is None or log is None:
            return Parcel({"what": "lack"})
        link = Link(self.work.number, log)
        world = self._world(link, opening, parcel)
        world.ledger.round = int(opening.head["round"])
        try:
            method = self._method(world, opening)
            self._take_members(method, opening)
            if opening.head["finish"]:
                said, kept = self._finish(method)
            else:
                kept = {}
                participants = np.array(opening.head["participants"], np.int64)
                said = {"reclustered": bool(method.round(int(opening.head["round"]), participants))}
        except Paused as pause:
            return self._paused(pause, link, method, parcel)
        except Missing as missing:
            return Parcel({"what": "need", "names": missing.names})
        except Unreadable:
            return Parcel({"what": "unreadable"})
        models: Any = method.models
        said |= {"names": list(models.names), "assignment": method.assignment.tolist(), "notes": world.notes}
        said["clusters"] = method.clusters
        said["opened"] = [asdict(opening) for opening in world.ledger.openings]
        self.site.write_last(
            {"run": self.work.run, "round": opening.head["round"],
             "cluster": int(method.assignment[self.work.number])}
        )  # fmt: skip
        sealed = self._sealed(method, int(opening.head["round"]))
        return _reply("done", link, said, {"state": from_bytes(sealed), **kept})

    def _paused(self, pause: Paused, link: Link, method: Method, parcel: Parcel) -> Parcel:
        """Hand in what the question needs of this node; a vector to be masked opens a session instead."""
        question, part = pause.question, dict(pause.part)
        if question["kind"] == "masked":
            part = begin_session(self.site, parcel.head["nonce"], question, part, self.work.number)
        reply = _reply("paused", link, question, part)
        nearest, models = getattr(getattr(method, "cohort", None), "nearest", None), method.models
        if nearest is not None and isinstance(models, Names) and hasattr(method, "model_of"):
            reply.head["wants"] = [models.names[int(method.model_of(np.array([nearest]))[0])]]
        return reply

    def _remembered(self, parcel: Parcel) -> tuple[Parcel | None, list[Parcel] | None]:
        """Keep what is new of a round on disk; give how it began and the answers so far."""
        head = parcel.head
        if "participants" in head:  # it begins, or is told again from its beginning
            before, same = self.site.opening, ("run", "instance", "round")
            if before is None or any(before.head.get(key) != head[key] for key in same):
                self.site.forget("trained.")
            arrays = {key: value for key, value in parcel.arrays.items() if key == "state"}
            self.site.begin_round(Parcel(head, arrays))
        opening = self.site.opening
        now = ("run", "instance", "round", "attempt")
        if opening is None or any(opening.head.get(key) != head[key] for key in now):
            return None, None
        for number in range(int(head["from"]), int(head["stage"])):
            answer = Parcel(head["answers"][number - head["from"]], parcel.part(f"answer/{number}"))
            self.site.add_answer(number, answer)
        return opening, self.site.log(int(head["stage"]))

    def _step(self, parcel: Parcel) -> Parcel:
        return Parcel({"what": "step"}, take_step(self.site, parcel))

    def _evaluate(self, parcel: Parcel) -> Parcel:
        """Score the model that serves this client on its test samples."""
        link = Alone(self.work.number)
        world = self._world(link, parcel, parcel)
        try:
            method = self._method(world, parcel)
            row = int(method.serving()[self.work.number])
            models: Any = method.models
            own = self._fetch(parcel)([models.names[row]])
        except Missing as missing:
            return Parcel({"what": "need", "names": missing.names})
        except Unreadable:
            return Parcel({"what": "unreadable"})
        loss, accuracy = self._own_trainer().judge(
            own, np.zeros(1, np.int64), np.array([self.work.number]), "test"
        )
        score = {"accuracy": float(accuracy[0]), "loss": float(loss[0]), "row": row}
        return Parcel({"what": "score", **_finite(score)})

    def _finish(self, method: Method) -> tuple[dict[str, Any], Arrays]:
        """Play the end of a run; keep here what newcomers need, and give it to a server that may read it."""
        outcome = method.finish()
        kept: Arrays = {}
        if outcome.keep:
            arrays = self.work.keepsake(dict(outcome.keep))
            self.site.keep_clusters(self.work.config, arrays)
            kept = {} if self.work.box else {"keep": from_bytes(npz_bytes(arrays))}
        final = None if outcome.assignment is None else outcome.assignment.tolist()
        numbers = {"dbi": float(outcome.dbi), "ch": float(outcome.ch)}
        return {"final": final, **_finite(numbers)}, kept

    def _world(self, link: Link, opening: Parcel, parcel: Parcel) -> ReplicaWorld:
        work = self.work
        fetch = self._fetch(parcel)
        sizes = np.zeros(work.clients, np.int64)
        trainer: Any = ReplicaTrainer(link, fetch, self._own_trainer, work.plan, sizes)
        return ReplicaWorld(
            clients=work.clients,
            rounds=work.rounds,
            seed=work.seed,
            trainer=trainer,
            ledger=Ledger(work.clients),
            scheme=work.scheme,
            extract=self._everybody,
            samples=lambda: _refuse_samples(),
            group=np.zeros(work.clients, np.int64),
            min_cluster=work.min_cluster,
            noise=work.noise,
            link=link,
            held=bool(opening.head.get("held")),
            train_own=lambda name, round: self._train(fetch, name, round),
        )

    def _method(self, world: ReplicaWorld, opening: Parcel) -> Method:
        """Build the method as it was after the round before."""
        method = self.work.method(world)
        expected = len(method.models)
        sealed = opening.arrays.get("state")
        if sealed is not None and sealed.size:
            data, about = sealed.tobytes(), self._about(int(opening.head["since"]))
            try:
                arrays = npz_arrays(self.work.box.open(data, about) if self.work.box else data)
                method.restore(Parcel({}, arrays).part("method"))
                names: Any = Names(tuple(arrays["names"].tolist()))
                method.models, method.assignment = names, arrays["assignment"].astype(np.int64)
            except (SealError, Refused, LookupError, ValueError, TypeError) as problem:
                raise Unreadable from problem
            known = len(method.assignment) == self.work.clients and all(map(is_name, names.names))
            if not known or len(names) != max(expected, method.clusters):
                raise Unreadable
        return method

    def _take_members(self, method: Method, opening: Parcel) -> None:
        """Tell the method who belongs to the federation now."""
        if not isinstance(method, Flameche | FlamecheSketch):
            return
        there = np.isin(np.arange(self.work.clients), opening.head["members"])
        if (come := np.flatnonzero(method.left & there)).size:
            method.join(come)
        if (gone := np.flatnonzero(~method.left & ~there)).size:
            method.leave(gone, vanished=True)

    def _sealed(self, method: Method, round: int) -> bytes:
        """Close what clients know after a round, for whoever takes part in the next."""
        models: Any = method.models
        arrays: Arrays = prefixed("method", method.state())
        arrays |= {"names": np.array(models.names), "assignment": method.assignment}
        data = npz_bytes(arrays)
        return self.work.box.seal(data, self._about(round)) if self.work.box else data

    def _about(self, round: int) -> bytes:
        return f"{self.work.run} after round {round}".encode()

    def _everybody(self) -> Metadata:
        """Give all clients' metadata as this one knows them: its own row."""
        own = self._metadata()
        phi = np.zeros((self.work.clients, *own.phi.shape[1:]))
        counts = np.zeros((self.work.clients, own.counts.shape[1]), np.int64)
        phi[self.work.number], counts[self.work.number] = own.phi[0], own.counts[0]
        return Metadata(phi, counts)

    def _metadata(self, instance: str | None = None) -> Metadata:
        """Give this client's metadata, kept on its disk; a run that begins anew has them computed anew.

        Not so with noise: whoever made a node draw it often would average it out.
        """
        if self.work.noise:
            instance = None
        kept = self.site.arrays("metadata.npz")
        if (
            kept is None
            or str(kept.get("run")) != self.work.run
            or (instance is not None and str(kept.get("instance")) != instance)
        ):
            found, names = self.work.metadata(), {"run": self.work.run, "instance": instance or ""}
            kept = {"phi": found.phi, "counts": found.counts, **{k: np.array(v) for k, v in names.items()}}
            self.site.write_arrays("metadata.npz", kept)
        return Metadata(kept["phi"], kept["counts"])

    def _own_trainer(self) -> Trainer:
        if self._trainer is None:
            self._trainer = self.work.trainer()
        return self._trainer

    def _fetch(self, parcel: Parcel) -> Fetch:
        return fetcher(parcel, self._own_trainer)

    def _train(self, fetch: Fetch, name: str, round: int) -> Arrays:
        """Train a model on this client's samples; a round that is told again finds it on disk."""
        file = f"trained.{round}.{name}"
        kept = self.site.arrays(file)
        if kept is None:
            me = np.array([self.work.number])
            trained = self._own_trainer().train(fetch([name]), np.zeros(1, np.int64), me, round)
            kept = {key: rows[0] for key, rows in trained.to_arrays().items()}
            self.site.write_arrays(file, kept)
        return kept


def _reply(what: str, link: Link, said: dict[str, Any], part: Arrays) -> Parcel:
    """Put what a node gives and what it asks or reports into one message."""
    arrays = prefixed("ask", part)
    for number, (_, given) in enumerate(link.gives):
        arrays |= prefixed(f"give/{number}", given)
    return Parcel({"what": what, "gives": [about for about, _ in link.gives], "said": said}, arrays)


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity by None: messages have neither."""
    return {key: value if np.isfinite(value) else None for key, value in numbers.items()}


def _refuse_samples() -> Any:
    raise FlamecheError("this method summarises samples in a way of its own, which does not run on a network")
