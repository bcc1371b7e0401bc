"""A node: one client of a federation, which answers the server's messages, each perhaps in a new process.

hello     returns the node's number, the fingerprint of its key, and the shape of its metadata
round     starts or continues a round: the node replays its method with the answers so far
step      takes a step of secure aggregation
evaluate  scores its cluster's model on its own test samples
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from flameche.network.aggregator import MODEL_ARRAYS, SHAPE_HINT
from flameche.network.message import (
    Arrays,
    Message,
    RejectedMessage,
    bytes_array,
    npz_arrays,
    npz_bytes,
    with_prefix,
)
from flameche.network.node_storage import NodeStorage
from flameche.network.replay import Paused, Replay, SoloReplay
from flameche.network.replica import GetModels, ModelNames, ReplicaTrainer, ReplicaWorld
from flameche.network.secure_aggregation import begin_session, take_step
from flameche.network.validation import is_model_name
from flameche.protocol.ledger import Ledger
from flameche.training.models import Models, stacked
from flameche.training.trainer import Trainer, TrainingPlan


class StateUnreadable(Exception):
    """The clients' state, as the server sent it, cannot be decrypted; another node's copy may be readable."""


class ModelsMissing(Exception):
    """The server must first send the models in `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(*names)
        self.names = list(dict.fromkeys(names))


@dataclass(frozen=True)
class NodeSetup:
    """What one node needs to take part in an experiment: its client, data, key and method."""

    run: str  # identifies configuration and seed, the same on every node
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
    box: Box | None = None  # encrypts the clients' state where the server must not read it
    newcomer_bundle: Callable[[Arrays], Arrays] = lambda keep: keep  # completes what the method keeps
    noise: float = 0.0  # in everybody's metadata, as in `World`
    config: str = ""  # the experiment, stored beside the newcomers' bundle


class Node:
    """One client of a federation, with its own storage."""

    def __init__(self, setup: NodeSetup, storage: NodeStorage) -> None:
        self.setup, self.storage = setup, storage
        self._trainer: Trainer | None = None

    def handle(self, message: Message) -> Message:
        """Answer one message; a FlamecheError says in one line why that is not possible."""
        what = message.head.get("what")
        handlers: dict[Any, Callable[[Message], Message]] = {
            "hello": self._hello,
            "round": self._round,
            "step": self._step,
            "evaluate": self._evaluate,
        }
        if what not in handlers:
            raise RejectedMessage(f"node {self.setup.number} does not understand the message '{what}'")
        if message.head.get("run") not in (self.setup.run, None):
            raise RejectedMessage(
                f"node {self.setup.number} takes part in {self.setup.run}, not in {message.head.get('run')}: "
                "server and node have different configurations"
            )
        try:
            reply = handlers[what](message)
        except OutOfRange:  # its text contains a value
            raise RejectedMessage(
                f"node {self.setup.number}: its metadata exceed scheme.bound; raise that for everybody"
            ) from None
        except StoreError as problem:  # its text contains a path
            raise RejectedMessage(
                f"node {self.setup.number}: its own folder cannot be used; see its log"
            ) from problem
        echoed = {key: message.head.get(key) for key in ("run", "round", "attempt", "stage")}
        return replace(reply, head={**echoed, "number": self.setup.number, **reply.head})

    def _hello(self, message: Message) -> Message:
        setup = self.setup
        metadata = self._metadata(str(message.head.get("instance", "")))
        if not np.isfinite(metadata.phi).all():
            raise DataError(f"node {setup.number}: its metadata {NOT_FINITE}")
        return Message(
            {
                "what": "hello", "run": setup.run, "version": __version__, "size": setup.size(),
                "fingerprint": setup.fingerprint, "blocks": list(metadata.phi.shape[1:]),
            }
        )  # fmt: skip

    def _round(self, message: Message) -> Message:
        """Replay the round with the answers so far, up to the next question or its end."""
        start, log = self._stored_round(message)
        if start is None or log is None:
            return Message({"what": "lack"})
        replay = Replay(self.setup.number, log)
        world = self._world(replay, start, message)
        world.ledger.round = int(start.head["round"])
        try:
            method = self._restored_method(world, start)
            self._update_members(method, start)
            if start.head["finish"]:
                said, bundle = self._finish(method)
            else:
                bundle = {}
                participants = np.array(start.head["participants"], np.int64)
                said = {"reclustered": bool(method.round(int(start.head["round"]), participants))}
        except Paused as pause:
            return self._paused_reply(pause, replay, method, message)
        except ModelsMissing as missing:
            return Message({"what": "need", "names": missing.names})
        except StateUnreadable:
            return Message({"what": "unreadable"})
        models: Any = method.models
        said |= {"names": list(models.names), "assignment": method.assignment.tolist(), "notes": world.notes}
        said["clusters"] = method.clusters
        said["opened"] = [asdict(opening) for opening in world.ledger.openings]
        self.storage.write_last(
            {"run": self.setup.run, "round": start.head["round"],
             "cluster": int(method.assignment[self.setup.number])}
        )  # fmt: skip
        state = self._client_state(method, int(start.head["round"]))
        return _round_reply("done", replay, said, {"state": bytes_array(state), **bundle})

    def _paused_reply(self, pause: Paused, replay: Replay, method: Method, message: Message) -> Message:
        """Send the question with this node's arrays; for a masked sum, open a session instead."""
        question, arrays = pause.question, dict(pause.arrays)
        if question["kind"] == "masked":
            nonce = message.head["nonce"]
            arrays = begin_session(self.storage, nonce, question, arrays, self.setup.number)
        reply = _round_reply("paused", replay, question, arrays)
        nearest, models = getattr(getattr(method, "cohort", None), "nearest", None), method.models
        if nearest is not None and isinstance(models, ModelNames) and hasattr(method, "model_of"):
            reply.head["wants"] = [models.names[int(method.model_of(np.array([nearest]))[0])]]
        return reply

    def _stored_round(self, message: Message) -> tuple[Message | None, list[Message] | None]:
        """Store what a message adds to the round; return the round's start and the answers so far."""
        head, storage = message.head, self.storage
        if "participants" in head:  # the round starts, or is sent again from its start
            before, same = storage.round_start, ("run", "instance", "round")
            if before is None or any(before.head.get(key) != head[key] for key in same):
                storage.delete("trained.")
            arrays = {key: value for key, value in message.arrays.items() if key == "state"}
            storage.begin_round(Message(head, arrays))
        start = storage.round_start
        current = ("run", "instance", "round", "attempt")
        if start is None or any(start.head.get(key) != head[key] for key in current):
            return None, None
        for number in range(int(head["from"]), int(head["stage"])):
            answer = Message(head["answers"][number - head["from"]], message.section(f"answer/{number}"))
            storage.add_answer(number, answer)
        return start, storage.answers(int(head["stage"]))

    def _step(self, message: Message) -> Message:
        return Message({"what": "step"}, take_step(self.storage, message))

    def _evaluate(self, message: Message) -> Message:
        """Score the model that serves this client on its test samples."""
        world = self._world(SoloReplay(self.setup.number), message, message)
        try:
            method = self._restored_method(world, message)
            row = int(method.serving()[self.setup.number])
            models: Any = method.models
            own = self._model_getter(message)([models.names[row]])
        except ModelsMissing as missing:
            return Message({"what": "need", "names": missing.names})
        except StateUnreadable:
            return Message({"what": "unreadable"})
        loss, accuracy = self._local_trainer().judge(
            own, np.zeros(1, np.int64), np.array([self.setup.number]), "test"
        )
        score = {"accuracy": float(accuracy[0]), "loss": float(loss[0]), "row": row}
        return Message({"what": "score", **_nan_to_none(score)})

    def _finish(self, method: Method) -> tuple[dict[str, Any], Arrays]:
        """Finish the run; store the newcomers' bundle, and send it to a server that may read it."""
        outcome = method.finish()
        sent: Arrays = {}
        if outcome.keep:
            bundle = self.setup.newcomer_bundle(dict(outcome.keep))
            self.storage.write_newcomer_bundle(self.setup.config, bundle)
            sent = {} if self.setup.box else {"keep": bytes_array(npz_bytes(bundle))}
        final = None if outcome.assignment is None else outcome.assignment.tolist()
        numbers = {"dbi": float(outcome.dbi), "ch": float(outcome.ch)}
        return {"final": final, **_nan_to_none(numbers)}, sent

    def _world(self, replay: Replay, start: Message, message: Message) -> ReplicaWorld:
        setup = self.setup
        get_models = self._model_getter(message)
        trainer: Any = ReplicaTrainer(
            replay,
            get_models,
            self._local_trainer,
            lambda name, round: self._train(get_models, name, round),
            setup.plan,
            np.zeros(setup.clients, np.int64),
        )
        return ReplicaWorld(
            clients=setup.clients,
            rounds=setup.rounds,
            seed=setup.seed,
            trainer=trainer,
            ledger=Ledger(setup.clients),
            scheme=setup.scheme,
            extract=self._all_metadata,
            samples=_refuse_samples,
            group=np.zeros(setup.clients, np.int64),
            min_cluster=setup.min_cluster,
            noise=setup.noise,
            replay=replay,
            term_is_stored=bool(start.head.get("held")),
        )

    def _restored_method(self, world: ReplicaWorld, start: Message) -> Method:
        """Build the method with its state after the previous round."""
        method = self.setup.method(world)
        expected = len(method.models)
        sealed = start.arrays.get("state")
        if sealed is not None and sealed.size:
            data, context = sealed.tobytes(), self._state_context(int(start.head["since"]))
            try:
                arrays = npz_arrays(self.setup.box.open(data, context) if self.setup.box else data)
                method.restore(Message({}, arrays).section("method"))
                names: Any = ModelNames(tuple(arrays["names"].tolist()))
                method.models, method.assignment = names, arrays["assignment"].astype(np.int64)
            except (SealError, RejectedMessage, LookupError, ValueError, TypeError) as problem:
                raise StateUnreadable from problem
            valid = len(method.assignment) == self.setup.clients and all(map(is_model_name, names.names))
            if not valid or len(names) != max(expected, method.clusters):
                raise StateUnreadable
        return method

    def _update_members(self, method: Method, start: Message) -> None:
        """Tell the method which clients have joined or left the federation."""
        if not isinstance(method, Flameche | FlamecheSketch):
            return
        present = np.isin(np.arange(self.setup.clients), start.head["members"])
        if (joined := np.flatnonzero(method.left & present)).size:
            method.join(joined)
        if (gone := np.flatnonzero(~method.left & ~present)).size:
            method.leave(gone, vanished=True)

    def _client_state(self, method: Method, round: int) -> bytes:
        """Serialise, and encrypt where there is a key, the clients' state for the next participants."""
        models: Any = method.models
        arrays: Arrays = with_prefix("method", method.state())
        arrays |= {"names": np.array(models.names), "assignment": method.assignment}
        data = npz_bytes(arrays)
        return self.setup.box.seal(data, self._state_context(round)) if self.setup.box else data

    def _state_context(self, round: int) -> bytes:
        """Name the run and round to which an encrypted state is bound."""
        return f"{self.setup.run} after round {round}".encode()

    def _all_metadata(self) -> Metadata:
        """Return the metadata of all clients as this one knows them: its own row, else zeros."""
        own = self._metadata()
        phi = np.zeros((self.setup.clients, *own.phi.shape[1:]))
        counts = np.zeros((self.setup.clients, own.counts.shape[1]), np.int64)
        phi[self.setup.number], counts[self.setup.number] = own.phi[0], own.counts[0]
        return Metadata(phi, counts)

    def _metadata(self, instance: str | None = None) -> Metadata:
        """Return this client's metadata, from its disk; they are computed again when a run is restarted.

        Metadata with noise are not: a server that made a node draw it often could average it out.
        """
        if self.setup.noise:
            instance = None
        stored = self.storage.read_arrays("metadata.npz")
        if (
            stored is None
            or str(stored.get("run")) != self.setup.run
            or (instance is not None and str(stored.get("instance")) != instance)
        ):
            found, names = self.setup.metadata(), {"run": self.setup.run, "instance": instance or ""}
            stored = {"phi": found.phi, "counts": found.counts, **{k: np.array(v) for k, v in names.items()}}
            self.storage.write_arrays("metadata.npz", stored)
        return Metadata(stored["phi"], stored["counts"])

    def _local_trainer(self) -> Trainer:
        if self._trainer is None:
            self._trainer = self.setup.trainer()
        return self._trainer

    def _model_getter(self, message: Message) -> GetModels:
        """Return a function that finds models by name: in the message, or as initial models made here."""

        def get_models(names: Sequence[str]) -> Models:
            sent = {name: message.section(f"model/{name}") for name in names if not name.startswith("init.")}
            if missing := [name for name, found in sent.items() if not found]:
                raise ModelsMissing(missing)
            trainer = self._local_trainer()
            shared = trainer.initial(0)
            size = [shared.params.shape[1], shared.buffers.shape[1]]
            rows = []
            for name in names:
                own = sent.get(name, {})
                if "params" in own:
                    if [own[key].size for key in MODEL_ARRAYS if key in own] != size:
                        raise RejectedMessage(
                            f"model {name} does not have the size of this node's: {SHAPE_HINT}"
                        )
                    rows.append({key: own[key] for key in MODEL_ARRAYS})
                else:  # nobody has trained it yet
                    number = int(own["init"]) if own else int(name.removeprefix("init."))
                    initial = trainer.initial(number).to_arrays()
                    rows.append({key: array[0] for key, array in initial.items()})
            return stacked(rows)

        return get_models

    def _train(self, get_models: GetModels, name: str, round: int) -> Arrays:
        """Train a model on this client's samples; a replay of the round finds the result on disk."""
        file = f"trained.{round}.{name}"
        stored = self.storage.read_arrays(file)
        if stored is None:
            me = np.array([self.setup.number])
            trained = self._local_trainer().train(get_models([name]), np.zeros(1, np.int64), me, round)
            stored = {key: rows[0] for key, rows in trained.to_arrays().items()}
            self.storage.write_arrays(file, stored)
        return stored


def _round_reply(what: str, replay: Replay, said: dict[str, Any], arrays: Arrays) -> Message:
    """Combine a node's uploads with its question or result."""
    named = with_prefix("ask", arrays)
    for number, (_, uploaded) in enumerate(replay.uploads):
        named |= with_prefix(f"give/{number}", uploaded)
    return Message({"what": what, "gives": [fields for fields, _ in replay.uploads], "said": said}, named)


def _nan_to_none(numbers: dict[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity by None, because JSON has neither."""
    return {key: value if np.isfinite(value) else None for key, value in numbers.items()}


def _refuse_samples() -> Any:
    raise FlamecheError("this method extracts metadata of its own kind, which does not run on a network")
