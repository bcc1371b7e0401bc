"""What the server knows: its setup, the round in progress, and the federation's state between rounds."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flameche.errors import FlamecheError
from flameche.network.aggregator import AggregationRules
from flameche.network.message import (
    Arrays,
    Message,
    RejectedMessage,
    bytes_array,
    npz_arrays,
    with_prefix,
)
from flameche.network.replay import question_id
from flameche.protocol.ledger import Ledger

ANSWERS_WITH_SUMS = ("totals", "once", "exchange", "masked")
BUNDLE_ARRAYS = {"theta", "mass", "label", "spread", "shape", "classes"}
STATE_COPIES = 3  # a copy that nobody can decrypt must not end a run


class TooFewNodes(FlamecheError):
    """There are not enough nodes to continue; the run can be resumed later with the same command."""


@dataclass(frozen=True)
class ServerSetup:
    """How the server runs a federation; of the method it knows only which models a round starts with."""

    run: str  # identifies configuration and seed, the same on every node
    rules: AggregationRules
    rounds: int
    seed: int
    participants: int  # in a round
    fingerprint: str = ""  # of the key
    session: int = 0  # participants of a round until clusters are known: those of a clustering session
    evaluate_every: int = 1
    preload: Literal["none", "own", "all"] = "none"  # models that nodes get with the first message of a round
    least_nodes: int = 2  # in a round
    timeout: float = 600.0  # seconds to wait for a reply
    patience: float = 120.0  # seconds to wait for nodes to come online
    removed: tuple[int, ...] = ()  # clients that no longer belong to the federation


@dataclass
class RoundState:
    """A round in progress: who was drawn, who is still active, and the answers so far."""

    number: int
    drawn: list[int]
    members: list[int]  # of the federation, online or not
    finish: bool = False  # the last exchange, after all rounds
    attempt: int = 1
    lost: dict[int, str] = field(default_factory=dict)  # every node that was excluded at some time, and why
    team: list[int] = field(default_factory=list)  # the nodes that run the round now
    excluded: set[int] = field(default_factory=set)
    draws: int = 1
    log: list[Message] = field(default_factory=list)
    answers_sent: dict[int, int] = field(default_factory=dict)  # to each node; absent: not even the start
    wanted_models: dict[int, list[str]] = field(default_factory=dict)  # models that a node will need next
    nonce: str = ""  # of the secure aggregation session that the next question may open

    def __post_init__(self) -> None:
        self.team = self.team or list(self.drawn)
        self._renew_nonce()

    @property
    def released(self) -> bool:
        """Tell whether the server has already released a sum in this round."""
        return any(answer.head["kind"] in ANSWERS_WITH_SUMS for answer in self.log)

    def _renew_nonce(self) -> None:
        self.nonce = secrets.token_bytes(16).hex()

    def add_answer(self, question: dict[str, Any], answer: Message) -> None:
        """Append an answer to the log, with the hash of its question."""
        self.log.append(Message({**answer.head, "asked": question_id(question)}, answer.arrays))
        self._renew_nonce()

    def exclude(self, number: int, reason: str) -> None:
        """Exclude a node from the round."""
        self.lost[number] = reason
        self.excluded.add(number)

    def restart(self, drawn: list[int] | None = None) -> None:
        """Start the round again without excluded nodes, or with other participants."""
        self.drawn = [i for i in self.drawn if i not in self.excluded] if drawn is None else drawn
        self.team, self.attempt, self.excluded = list(self.drawn), self.attempt + 1, set()
        self.log, self.answers_sent, self.wanted_models = [], {}, {}
        self._renew_nonce()

    def hand_over(self, numbers: list[int]) -> None:
        """Let other nodes continue the round when its own are gone; the log is all they need."""
        self.team, self.answers_sent, self.wanted_models = numbers, {}, {}
        self.excluded -= set(numbers)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the log, for a checkpoint; counts of draws start again after a resume."""
        kept = ("number", "drawn", "members", "finish", "attempt", "lost", "team")
        return {key: getattr(self, key) for key in kept}

    def to_arrays(self) -> Arrays:
        """Return the log, for a checkpoint."""
        return {f"log/{at}": bytes_array(answer.to_bytes()) for at, answer in enumerate(self.log)}

    @classmethod
    def from_checkpoint(cls, stored: dict[str, Any], log: Arrays) -> RoundState:
        """Restore what `to_json` and `to_arrays` returned; nodes will be sent everything again."""
        lost = {int(i): reason for i, reason in stored["lost"].items()}
        current = cls(**{**stored, "lost": lost})
        current.log = [Message.from_bytes(log[f"log/{at}"].tobytes()) for at in range(len(log))]
        return current


@dataclass
class ServerState:
    """The federation between two rounds: the assignment, model names, and the clients' encrypted state."""

    assignment: NDArray[np.int64]  # [C], -1 where unknown
    accuracy: NDArray[np.float64]  # [C], from the last evaluation
    names: list[str] = field(default_factory=list)  # of the models, cluster by cluster
    clusters: int = 1
    notes: list[str] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)  # after all rounds
    copies: list[NDArray[np.uint8]] = field(
        default_factory=list, repr=False
    )  # of the state, by several nodes
    since: int = 0  # the round after which the copies were made
    newcomer_bundle: Arrays = field(default_factory=dict, repr=False)  # after all rounds

    @classmethod
    def empty(cls, clients: int) -> ServerState:
        """Return the state before the first round."""
        return cls(np.full(clients, -1), np.full(clients, np.nan))

    @property
    def client_state(self) -> Arrays:
        """Return the clients' state as arrays of a message."""
        return {"state": self.copies[0]} if self.copies else {}

    def expected_models(self, number: int, preload: str) -> list[str]:
        """Predict which models a node will request in a round."""
        if preload == "all":
            return self.names
        known = preload == "own" and self.names and self.assignment[number] >= 0
        return [self.names[self.assignment[number]]] if known else []

    def discard_copy(self) -> None:
        """Drop the first copy of the clients' state, and use the next node's."""
        self.copies = self.copies[1:]

    def update(self, current: RoundState, replies: Sequence[Message]) -> bool:
        """Take over the nodes' results at the end of a round; return whether clients were reclustered."""
        said = replies[0].head["said"]
        self.names, self.clusters = said["names"], said["clusters"]
        self.assignment = np.array(said["assignment"], np.int64)
        self.notes = list(dict.fromkeys([*self.notes, *said["notes"]]))
        if current.finish:
            self.outcome = {key: said.get(key) for key in ("final", "dbi", "ch")}
            self.newcomer_bundle = _majority_bundle(replies)
            return False
        self.copies = [reply.arrays["ask/state"] for reply in replies[:STATE_COPIES]]
        self.since = current.number
        return bool(said.get("reclustered"))

    def round_record(self, current: RoundState, reclustered: bool, ledger: Ledger) -> dict[str, Any]:
        """Describe a round with the simulator's keys, and the nodes that were lost in it."""
        known = self.assignment[self.assignment >= 0]
        scored = self.accuracy[~np.isnan(self.accuracy)]
        return {
            "round": current.number,
            "accuracy": float(scored.mean()) if len(scored) else float("nan"),
            "ari": float("nan"),  # the true groups are unknown
            "sizes": np.bincount(known, minlength=self.clusters).tolist(),
            "participants": current.drawn,
            "assignment": self.assignment.tolist(),
            "reclustered": reclustered,
            "bytes_up": int(ledger.per_client("up").sum()),
            "bytes_down": int(ledger.per_client("down").sum()),
            "seconds": ledger.seconds_by_part(),
            "lost": {str(i): reason for i, reason in current.lost.items()},
            "exchanges": len(current.log) + 1,
        }

    def to_json(self) -> dict[str, Any]:
        """Return what is text or counts, for a checkpoint."""
        return {key: getattr(self, key) for key in ("names", "clusters", "notes", "outcome", "since")}

    def to_arrays(self) -> Arrays:
        """Return what is arrays, for a checkpoint."""
        own = {"assignment": self.assignment, "accuracy": self.accuracy}
        own |= with_prefix("keep", self.newcomer_bundle)
        return {**own, **{f"copy/{at}": copy for at, copy in enumerate(self.copies)}}

    @classmethod
    def from_checkpoint(cls, stored: dict[str, Any], arrays: Arrays) -> ServerState:
        """Restore what `to_json` and `to_arrays` returned."""
        return cls(
            arrays["assignment"].astype(np.int64),
            arrays["accuracy"].astype(np.float64),
            **{key: stored[key] for key in ("names", "clusters", "notes", "outcome", "since")},
            copies=[arrays[f"copy/{at}"] for at in range(STATE_COPIES) if f"copy/{at}" in arrays],
            newcomer_bundle=Message({}, arrays).section("keep"),
        )


def _majority_bundle(replies: Sequence[Message]) -> Arrays:
    """Read the newcomers' bundle that most nodes sent; empty if the server may not have it."""
    given = Counter(reply.arrays["ask/keep"].tobytes() for reply in replies if "ask/keep" in reply.arrays)
    for data, _ in given.most_common():
        try:
            arrays = npz_arrays(data)
        except RejectedMessage:
            continue
        if arrays.keys() >= BUNDLE_ARRAYS and all(array.dtype.kind in "fiu" for array in arrays.values()):
            return arrays
    return {}
