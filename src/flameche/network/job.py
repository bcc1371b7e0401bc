"""What the server of a federation has to do, and a round that is under way."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

from flameche.errors import FlamecheError
from flameche.network.link import digest
from flameche.network.parcel import Arrays, Parcel, from_bytes
from flameche.network.relay import Rules

RELEASES = ("totals", "once", "exchange", "masked")  # answers that hold sums


class TooFew(FlamecheError):
    """Not enough nodes are left to go on; nothing is lost, the same command goes on."""


@dataclass(frozen=True)
class Job:
    """A federation's rounds; of the method the server knows only which models a round begins with."""

    run: str  # names configuration and seed, the same on every node
    rules: Rules
    rounds: int
    seed: int
    participants: int  # a round
    fingerprint: str = ""  # of the key
    session: int = 0  # nodes in a round as long as no client has a cluster: for a clustering session
    evaluate_every: int = 1
    preload: Literal["none", "own", "all"] = "none"  # models that nodes get when a round begins
    least_nodes: int = 2  # for a round
    timeout: float = 600.0  # seconds for an answer
    patience: float = 120.0  # seconds to wait for nodes
    removed: tuple[int, ...] = ()  # who does not belong any more


@dataclass
class Round:
    """A round under way: who was drawn, who still answers, and the answers so far."""

    number: int
    drawn: list[int]
    members: list[int]  # of the federation, there or not
    finish: bool = False  # the last words after all rounds
    attempt: int = 1
    lost: dict[int, str] = field(default_factory=dict)  # whoever was out at some time, and why
    team: list[int] = field(default_factory=list)
    out: set[int] = field(default_factory=set)  # who is out now
    draws: int = 1
    log: list[Parcel] = field(default_factory=list)
    informed: dict[int, int] = field(default_factory=dict)  # node -> answers that it has; absent: not begun
    wants: dict[int, list[str]] = field(default_factory=dict)  # models that a node will need next
    nonce: str = ""  # of the session that the next question may open

    def __post_init__(self) -> None:
        self.team = self.team or list(self.drawn)
        self.next_nonce()

    @property
    def released(self) -> bool:
        """Tell whether a sum has left the server."""
        return any(answer.head["kind"] in RELEASES for answer in self.log)

    def next_nonce(self) -> None:
        """Draw the name of the next session."""
        self.nonce = secrets.token_bytes(16).hex()

    def answered(self, question: dict[str, Any], answer: Parcel) -> None:
        """Add an answer to the log, with the name of its question."""
        self.log.append(Parcel({**answer.head, "asked": digest(question)}, answer.arrays))
        self.next_nonce()

    def lose(self, number: int, why: str) -> None:
        """Take a node out."""
        self.lost[number] = why
        self.out.add(number)

    def begin_again(self, drawn: list[int] | None = None) -> None:
        """Start afresh without those who are out, or with others."""
        self.drawn = [i for i in self.drawn if i not in self.out] if drawn is None else drawn
        self.team, self.attempt, self.out = list(self.drawn), self.attempt + 1, set()
        self.log, self.informed, self.wants = [], {}, {}
        self.next_nonce()

    def hand_over(self, numbers: list[int]) -> None:
        """Let others go on where a round's own nodes are gone; its log is all that it takes."""
        self.team, self.informed, self.wants = numbers, {}, {}
        self.out -= set(numbers)

    def words(self) -> dict[str, Any]:
        """Give all but the log, for a checkpoint; who goes on from it may draw as often as anybody."""
        kept = ("number", "drawn", "members", "finish", "attempt", "lost", "team")
        return {key: getattr(self, key) for key in kept}

    def arrays(self) -> Arrays:
        """Give the log, for a checkpoint."""
        return {f"log/{at}": from_bytes(answer.to_bytes()) for at, answer in enumerate(self.log)}

    @classmethod
    def restored(cls, words: dict[str, Any], log: Arrays) -> Round:
        """Read back what `words` and `arrays` gave; nodes are told everything again."""
        lost = {int(i): why for i, why in words["lost"].items()}
        now = cls(**{**words, "lost": lost})
        now.log = [Parcel.from_bytes(log[f"log/{at}"].tobytes()) for at in range(len(log))]
        return now
