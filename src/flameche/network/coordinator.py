"""The server's rounds: whom it asks, what it does about nodes that are lost, where it goes on after a crash.

A round is a series of exchanges. In each, all of the round's nodes replay their method, and either ask the
same question, which the relay answers, or are done. A node that fails, stays silent or sends garbage is out
of the round:
- before any sum has left the server, the round begins again without it, as if it had not been drawn;
- afterwards it goes on without it: what was seen cannot be taken back.
After each answer that holds a sum, and after each round, everything is written down; a server that starts
again goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from flameche.errors import FlamecheError
from flameche.network.job import Job, Round, TooFew
from flameche.network.parcel import Arrays, Lost, Parcel, Transport, prefixed
from flameche.network.relay import Garbage, Relay, lacking
from flameche.network.replies import checked, others_than_most
from flameche.network.roster import Roster
from flameche.network.scoring import score
from flameche.network.secure import CLOSED, masked_total
from flameche.network.standing import Standing
from flameche.protocol.ledger import Ledger, read_opening
from flameche.simulation.engine import Checkpoint, Recorder
from flameche.simulation.schedule import draw_participants

CANCELLED = "a sum is left out: its ciphertexts cancel each other, and it would not be sealed any more"
MOST_EXCHANGES = 1000  # in a round
MOST_ASKED = 4  # messages to a node for one answer
MOST_DRAWS = 3  # of a round's nodes
STAND_INS = 3  # nodes that finish a round whose own are all gone


class Coordinator:
    """Plays all rounds with whoever is there."""

    def __init__(
        self,
        transport: Transport,
        job: Job,
        recorder: Recorder,
        *,
        say: Callable[[str], None] = lambda line: None,
        on_round: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self.job, self._recorder, self._say, self._on_round = job, recorder, say, on_round
        self.ledger = Ledger(job.rules.clients)
        self.relay = Relay(job.rules, self.ledger)
        self.roster = Roster(transport, job, self.relay, self.ledger, say)
        self.records: list[dict[str, Any]] = []
        self.standing = Standing.empty(job.rules.clients)
        self._started = time.perf_counter()

    def run(self) -> list[dict[str, Any]]:
        """Play what is left to play; give the rounds' records."""
        now = self._resume()
        for record in self.records:
            self._on_round(record)
        for r in range(len(self.records) + 1, self.job.rounds + 1):
            now = now or self._draw(r)
            reclustered = self._play(now)
            if r % self.job.evaluate_every == 0 or r == self.job.rounds:
                score(self.roster, self.standing, self._models, self.job.run, r, self._say)
            self._record(now, reclustered)
            now = None
        if not self.standing.outcome:
            if now is None:
                everybody = self.roster.wait_for(1, self.roster.members)
                now = Round(self.job.rounds + 1, everybody, self.roster.members, finish=True)
            self._play(now)
            self._save(self.job.rounds)
        return self.records

    @property
    def wall_s(self) -> float:
        """Count the seconds of all parts of the run."""
        return time.perf_counter() - self._started

    def _draw(self, r: int) -> Round:
        """Draw a round's nodes among those that are there; wait while they are too few."""
        job = self.job
        least = min(job.least_nodes, job.participants)
        here = self.roster.wait_for(job.rules.clients - len(job.removed) if r == 1 else least)
        if len(here) < least:
            raise TooFew(
                f"round {r}: {len(here)} nodes are there and {least} are needed, {self.roster.why_few}; "
                "the same command goes on from here"
            )
        there = np.array(here, np.int64)
        clustered = bool((self.standing.assignment >= 0).any())
        count = job.participants if clustered else max(job.participants, job.session)
        drawn = draw_participants(job.seed, r, job.rules.clients, count, there)
        return Round(r, drawn.tolist(), self.roster.members)

    def _play(self, now: Round) -> bool:
        """Play a round to its end, with fewer nodes or again where need be; tell if it moved clients."""
        self.ledger.round = now.number
        for _ in range(MOST_EXCHANGES):
            self._man(now)
            replies = self._exchange(now)
            if self._some_out(now) or not replies:
                continue
            said = replies[now.team[0]].head
            try:
                self._take(said["gives"], replies)
                if said["what"] == "done":
                    for told in said["said"]["opened"]:
                        self.ledger.note(read_opening(told))
                    reclustered = self.standing.take(now, [replies[i] for i in now.team])
                    self.relay.forget_models(self.standing.names)
                    return reclustered
                answer = self._answer(now, said["said"], replies)
            except FlamecheError as problem:  # garbage of some, or all say what cannot be
                guilty = (
                    problem.nodes if isinstance(problem, Garbage) else dict.fromkeys(replies, str(problem))
                )
                for number, why in guilty.items():
                    self._lose(now, number, why)
                self._some_out(now)
                continue
            if answer is None:
                now.begin_again()
                continue
            now.answered(said["said"], answer)
            now.team = [i for i in now.team if i not in now.out]
            if now.released:
                self._save(now.number - 1, now)
        raise self._hopeless(now)

    def _some_out(self, now: Round) -> bool:
        """Take those who are out from a round; tell if it has to be played on without an answer."""
        if not any(i in now.out for i in now.team):
            return False
        if now.released or now.finish:
            now.team = [i for i in now.team if i not in now.out]
        else:
            now.begin_again()
        return True

    def _man(self, now: Round) -> None:
        """See to it that enough nodes are in a round: draw again, or let others finish it."""
        late = now.released or now.finish
        least = 1 if late else min(self.job.least_nodes, self.job.participants)
        tries = now.attempt > len(now.lost) + MOST_DRAWS + 2
        if len(now.team) >= least and not tries:
            return
        if tries or now.draws >= MOST_DRAWS:
            raise self._hopeless(now)
        now.draws += 1
        if late:
            here = self.roster.wait_for(1)
            if not here:
                raise self._hopeless(now)
            now.hand_over(sorted(here, key=lambda i: (i in now.lost, i))[:STAND_INS])
            return
        self._say(f"round {now.number}: {len(now.team)} nodes are left, {least} are needed; drawing again")
        try:
            again = self._draw(now.number)
        except TooFew as problem:
            raise self._hopeless(now, str(problem)) from problem
        now.members = again.members
        now.begin_again(again.drawn)

    def _hopeless(self, now: Round, what: str = "") -> TooFew:
        lost = "; ".join(f"node {i}: {why}" for i, why in now.lost.items()) or "too few nodes are there"
        what = what or f"round {now.number} cannot be finished; the same command goes on from here"
        return TooFew(f"{what} ({lost})")

    def _exchange(self, now: Round) -> dict[int, Parcel]:
        """Send every node what is new, until all have caught up; give the replies that agree."""
        replies: dict[int, Parcel] = {}
        waiting, unreadable = list(now.team), list[int]()
        for _ in range(MOST_ASKED):
            again = []
            for i, found in self.roster.exchange({i: self._parcel(now, i) for i in waiting}).items():
                reply = checked(now, found, self.relay.models)
                if isinstance(reply, Lost):
                    self._lose(now, i, reply.why)
                    continue
                what = reply.head["what"]
                if what == "unreadable":
                    unreadable.append(i)
                elif what == "lack":
                    now.informed.pop(i, None)
                    again.append(i)
                else:
                    now.informed[i] = len(now.log)
                    now.wants[i] = reply.head.get("names" if what == "need" else "wants", [])
                    if what == "need":
                        again.append(i)
                    else:
                        replies[i] = reply
            waiting = again
            if not waiting:
                break
        for i in waiting:
            self._lose(
                now, i, "asks for the same things again and again; its folder may not keep what it writes"
            )
        if unreadable and self._another_copy(now, unreadable):
            return {}
        for i in others_than_most(replies):
            self._lose(now, i, "goes another way than the others: another version, configuration, state")
            del replies[i]
        return replies

    def _another_copy(self, now: Round, nodes: list[int]) -> bool:
        """Where most nodes cannot read the clients' state, take another's copy; else it is their fault."""
        if 2 * len(nodes) > len(now.team) and len(self.standing.copies) > 1:
            self._say(f"round {now.number}: the clients' state cannot be read; taking another node's copy")
            self.standing.next_copy()
            now.informed = {}
            return True
        for i in nodes:
            self._lose(now, i, "cannot read the clients' state: another key")
        return False

    def _lose(self, now: Round, number: int, why: str) -> None:
        now.lose(number, why)
        self._say(f"round {now.number}: node {number} is out: {why}")

    def _parcel(self, now: Round, number: int) -> Parcel:
        """Write what a node needs to go on: how the round began, the answers that it lacks, models."""
        begins = number not in now.informed
        first = 0 if begins else now.informed[number]
        head: dict[str, Any] = {
            "what": "round", "run": self.job.run, "round": now.number, "attempt": now.attempt,
            "stage": len(now.log), "from": first, "answers": [a.head for a in now.log[first:]],
            "nonce": now.nonce, "instance": self.roster.instance,
        }  # fmt: skip
        arrays: Arrays = {}
        for at in range(first, len(now.log)):
            arrays |= prefixed(f"answer/{at}", now.log[at].arrays)
        wants = now.wants.get(number, [])
        if begins:
            head |= {
                "participants": now.drawn, "members": now.members, "finish": now.finish,
                "held": self.relay.holds(number), "since": self.standing.since,
            }  # fmt: skip
            arrays |= self.standing.state
            wants = wants or self.standing.likely(number, self.job.preload)
        return Parcel(head, {**arrays, **self._models(wants)})

    def _models(self, names: list[str]) -> Arrays:
        arrays: Arrays = {}
        for name in names:
            arrays |= prefixed(f"model/{name}", self.relay.models.get(name, {}))
        return arrays

    def _take(self, gives: list[dict[str, Any]], replies: dict[int, Parcel]) -> None:
        parts = {i: [reply.part(f"give/{at}") for at in range(len(gives))] for i, reply in replies.items()}
        self.relay.take(gives, parts)

    def _answer(self, now: Round, question: dict[str, Any], replies: dict[int, Parcel]) -> Parcel | None:
        """Answer a question; None where a session lost somebody before anything was seen."""
        parts = {i: reply.part("ask") for i, reply in replies.items()}
        if question["kind"] != "masked":
            before = len(self.ledger.cancelled)
            answer = self.relay.answer(question, parts)
            if question["kind"] == "exchange" and lacking(question, parts):
                self._say(f"round {now.number}: {CLOSED}")
            if len(self.ledger.cancelled) > before:
                self._say(f"round {now.number}: {CANCELLED}")
            return answer
        adverts = {i: part["message"].tobytes() for i, part in parts.items() if "message" in part}
        head = {"run": self.job.run, "round": now.number, "attempt": now.attempt, "stage": len(now.log)}
        with self.ledger.clock("server", "encryption"):
            done = masked_total(question, now.nonce, adverts, self.roster.exchange, head)
        for i, why in done.lost.items():
            if i in now.team:  # else it was lost before, and why is known
                self._lose(now, i, why)
        if done.why:
            self._say(f"round {now.number}: {done.why}")
        if done.total is None and not (now.released or now.finish):
            return None
        return Parcel({"kind": "masked"}, {} if done.total is None else {"total": done.total})

    def _record(self, now: Round, reclustered: bool) -> None:
        """Write a round down, and everything that must survive a crash."""
        record = self.standing.record(now, reclustered, self.ledger)
        self.records.append(record)
        self._recorder.add_round(record)
        self._save(now.number)
        self._on_round(record)

    def _save(self, r: int, now: Round | None = None) -> None:
        """Write down where the run stands after round r, or in the middle of the next."""
        words = {
            "standing": self.standing.words(),
            "instance": self.roster.instance,
            "known": self.roster.known,
            "blocks": self.roster.blocks,
            "now": now.words() if now else None,
        }
        self.roster.settled = True
        arrays = {**prefixed("relay", self.relay.state()), **prefixed("standing", self.standing.arrays())}
        arrays |= prefixed("now", now.arrays()) if now else {}
        ledger = {**self.ledger.state(), "coordinator": words}
        self._recorder.save(Checkpoint(r, arrays, ledger, self.wall_s))

    def _resume(self) -> Round | None:
        """Take up what an earlier process left, and the round that it was in."""
        checkpoint, self.records = self._recorder.resume()
        if checkpoint is None:
            return None
        whole, words = Parcel({}, checkpoint.arrays), checkpoint.ledger["coordinator"]
        self.relay.restore(whole.part("relay"))
        self.ledger.restore(checkpoint.ledger)
        self.standing = Standing.restored(words["standing"], whole.part("standing"))
        self.roster.known, self.roster.blocks = words["known"], words["blocks"]
        self.roster.settled = self.roster.blocks is not None
        self.roster.instance = words["instance"]
        self._started -= checkpoint.wall_s
        self._say(f"going on after round {checkpoint.round}")
        if words["now"] is None:
            return None
        now = Round.restored(words["now"], whole.part("now"))
        team = [i for i in now.team if i not in self.job.removed]
        self.roster.wait_for(len(team), team)
        return now
