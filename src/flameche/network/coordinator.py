"""The server's rounds: which nodes take part, what happens when some fail, how a run resumes after a crash.

A round is a series of exchanges. In each, all of the round's nodes replay their method, and either ask the
same question, which the server answers, or report that they are done. A node that fails, does not reply or
sends an invalid reply is excluded from the round:
- before the server has released any sum, the round restarts without it, as if it had not been drawn;
- afterwards the round continues without it, because a released sum cannot be taken back.
A checkpoint is written after each answer that holds a sum, and after each round; a server that is started
again resumes from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from flameche.errors import FlamecheError
from flameche.network.aggregator import Aggregator, InvalidContributions, missing_clients
from flameche.network.message import Arrays, Message, NoReply, Transport, with_prefix
from flameche.network.node_registry import NodeRegistry
from flameche.network.secure_aggregation import INCOMPLETE, run_session
from flameche.network.server_state import RoundState, ServerSetup, ServerState, TooFewNodes
from flameche.network.validation import check_round_reply, disagreeing_nodes
from flameche.protocol.ledger import Ledger, read_opening
from flameche.simulation.engine import Checkpoint, Recorder
from flameche.simulation.schedule import draw_participants

CANCELLED = "a sum is left out: its ciphertexts cancel each other, so it would not be encrypted any more"
MAX_EXCHANGES = 1000  # in a round
MAX_RESENDS = 4  # messages to a node for one answer
MAX_DRAWS = 3  # of a round's nodes
SUBSTITUTES = 3  # nodes that finish a round when all of its own are gone


class Coordinator:
    """Runs all rounds with the nodes that are online."""

    def __init__(
        self,
        transport: Transport,
        setup: ServerSetup,
        recorder: Recorder,
        *,
        log: Callable[[str], None] = lambda line: None,
        on_round: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self.setup, self._recorder, self._log, self._on_round = setup, recorder, log, on_round
        self.ledger = Ledger(setup.rules.clients)
        self.aggregator = Aggregator(setup.rules, self.ledger)
        self.registry = NodeRegistry(transport, setup, self.aggregator, self.ledger, log)
        self.records: list[dict[str, Any]] = []
        self.state = ServerState.empty(setup.rules.clients)
        self._started = time.perf_counter()

    def run(self) -> list[dict[str, Any]]:
        """Run the remaining rounds, and return the records of all rounds."""
        current = self._resume()
        for record in self.records:
            self._on_round(record)
        for r in range(len(self.records) + 1, self.setup.rounds + 1):
            current = current or self._draw(r)
            reclustered = self._run_round(current)
            if r % self.setup.evaluate_every == 0 or r == self.setup.rounds:
                self._evaluate(r)
            self._record(current, reclustered)
            current = None
        if not self.state.outcome:
            if current is None:
                everybody = self.registry.wait_for(1, self.registry.members)
                current = RoundState(self.setup.rounds + 1, everybody, self.registry.members, finish=True)
            self._run_round(current)
            self._save(self.setup.rounds)
        return self.records

    @property
    def wall_s(self) -> float:
        """Return the seconds that the run has taken, earlier processes included."""
        return time.perf_counter() - self._started

    def _draw(self, r: int) -> RoundState:
        """Draw a round's participants among the nodes that are online; wait while there are too few."""
        setup = self.setup
        least = min(setup.least_nodes, setup.participants)
        online = self.registry.wait_for(setup.rules.clients - len(setup.removed) if r == 1 else least)
        if len(online) < least:
            raise TooFewNodes(
                f"round {r}: {len(online)} nodes are online and {least} are needed, "
                f"{self.registry.shortage_reason}; the same command resumes the run"
            )
        clustered = bool((self.state.assignment >= 0).any())
        count = setup.participants if clustered else max(setup.participants, setup.session)
        drawn = draw_participants(setup.seed, r, setup.rules.clients, count, np.array(online, np.int64))
        return RoundState(r, drawn.tolist(), self.registry.members)

    def _run_round(self, current: RoundState) -> bool:
        """Run a round to its end, with fewer nodes or restarted if need be; return if it reclustered."""
        self.ledger.round = current.number
        for _ in range(MAX_EXCHANGES):
            self._ensure_enough_nodes(current)
            replies = self._exchange(current)
            if self._drop_excluded(current) or not replies:
                continue
            head = replies[current.team[0]].head
            try:
                self._receive_uploads(head["gives"], replies)
                if head["what"] == "done":
                    for opened in head["said"]["opened"]:
                        self.ledger.note(read_opening(opened))
                    reclustered = self.state.update(current, [replies[i] for i in current.team])
                    self.aggregator.keep_models(self.state.names)
                    return reclustered
                answer = self._answer(current, head["said"], replies)
            except FlamecheError as problem:  # some sent invalid arrays, or all ask for the impossible
                reasons = dict.fromkeys(replies, str(problem))
                if isinstance(problem, InvalidContributions):
                    reasons = problem.nodes
                for number, reason in reasons.items():
                    self._exclude(current, number, reason)
                self._drop_excluded(current)
                continue
            if answer is None:
                current.restart()
                continue
            current.add_answer(head["said"], answer)
            current.team = [i for i in current.team if i not in current.excluded]
            if current.released:
                self._save(current.number - 1, current)
        raise self._cannot_finish(current)

    def _drop_excluded(self, current: RoundState) -> bool:
        """Remove excluded nodes from the round; return whether the last exchange must be repeated."""
        if not any(i in current.excluded for i in current.team):
            return False
        if current.released or current.finish:
            current.team = [i for i in current.team if i not in current.excluded]
        else:
            current.restart()
        return True

    def _ensure_enough_nodes(self, current: RoundState) -> None:
        """If too few nodes are left in a round, draw again, or let others finish it."""
        must_continue = current.released or current.finish
        least = 1 if must_continue else min(self.setup.least_nodes, self.setup.participants)
        too_many_attempts = current.attempt > len(current.lost) + MAX_DRAWS + 2
        if len(current.team) >= least and not too_many_attempts:
            return
        if too_many_attempts or current.draws >= MAX_DRAWS:
            raise self._cannot_finish(current)
        current.draws += 1
        if must_continue:
            online = self.registry.wait_for(1)
            if not online:
                raise self._cannot_finish(current)
            current.hand_over(sorted(online, key=lambda i: (i in current.lost, i))[:SUBSTITUTES])
            return
        self._log(
            f"round {current.number}: {len(current.team)} nodes are left, {least} are needed; drawing again"
        )
        try:
            again = self._draw(current.number)
        except TooFewNodes as problem:
            raise self._cannot_finish(current, str(problem)) from problem
        current.members = again.members
        current.restart(again.drawn)

    def _cannot_finish(self, current: RoundState, problem: str = "") -> TooFewNodes:
        lost = "; ".join(f"node {i}: {reason}" for i, reason in current.lost.items())
        problem = problem or f"round {current.number} cannot be finished; the same command resumes the run"
        return TooFewNodes(f"{problem} ({lost or 'too few nodes are online'})")

    def _exchange(self, current: RoundState) -> dict[int, Message]:
        """Send every node what it lacks until all have caught up; return the replies of the majority."""
        replies: dict[int, Message] = {}
        waiting, unreadable = list(current.team), list[int]()
        for _ in range(MAX_RESENDS):
            again = []
            messages = {i: self._round_message(current, i) for i in waiting}
            for i, found in self.registry.exchange(messages).items():
                reply = check_round_reply(current, found, self.aggregator.models)
                if isinstance(reply, NoReply):
                    self._exclude(current, i, reply.reason)
                    continue
                what = reply.head["what"]
                if what == "unreadable":
                    unreadable.append(i)
                elif what == "lack":
                    current.answers_sent.pop(i, None)
                    again.append(i)
                else:
                    current.answers_sent[i] = len(current.log)
                    current.wanted_models[i] = reply.head.get("names" if what == "need" else "wants", [])
                    if what == "need":
                        again.append(i)
                    else:
                        replies[i] = reply
            waiting = again
            if not waiting:
                break
        for i in waiting:
            self._exclude(
                current, i, "requests the same data again and again; perhaps its folder loses what it writes"
            )
        if unreadable and self._try_another_copy(current, unreadable):
            return {}
        for i in disagreeing_nodes(replies):
            self._exclude(
                current, i, "disagrees with most nodes: it has another version, configuration or state"
            )
            del replies[i]
        return replies

    def _try_another_copy(self, current: RoundState, nodes: list[int]) -> bool:
        """If most nodes cannot decrypt the clients' state, use the next copy; else exclude those nodes."""
        if 2 * len(nodes) > len(current.team) and len(self.state.copies) > 1:
            self._log(
                f"round {current.number}: the clients' state cannot be decrypted; using another node's copy"
            )
            self.state.discard_copy()
            current.answers_sent = {}
            return True
        for i in nodes:
            self._exclude(current, i, "cannot decrypt the clients' state: it has another key")
        return False

    def _exclude(self, current: RoundState, number: int, reason: str) -> None:
        current.exclude(number, reason)
        self._log(f"round {current.number}: node {number} is excluded: {reason}")

    def _round_message(self, current: RoundState, number: int) -> Message:
        """Compose what a node needs to continue: the round's start, the answers that it lacks, models."""
        starts = number not in current.answers_sent
        first = 0 if starts else current.answers_sent[number]
        head: dict[str, Any] = {
            "what": "round", "run": self.setup.run, "round": current.number, "attempt": current.attempt,
            "stage": len(current.log), "from": first, "answers": [a.head for a in current.log[first:]],
            "nonce": current.nonce, "instance": self.registry.instance,
        }  # fmt: skip
        arrays: Arrays = {}
        for at in range(first, len(current.log)):
            arrays |= with_prefix(f"answer/{at}", current.log[at].arrays)
        models = current.wanted_models.get(number, [])
        if starts:
            head |= {
                "participants": current.drawn, "members": current.members, "finish": current.finish,
                "held": self.aggregator.has_term(number), "since": self.state.since,
            }  # fmt: skip
            arrays |= self.state.client_state
            models = models or self.state.expected_models(number, self.setup.preload)
        return Message(head, {**arrays, **self._models(models)})

    def _models(self, names: list[str]) -> Arrays:
        arrays: Arrays = {}
        for name in names:
            arrays |= with_prefix(f"model/{name}", self.aggregator.models.get(name, {}))
        return arrays

    def _receive_uploads(self, uploads: list[dict[str, Any]], replies: dict[int, Message]) -> None:
        arrays = {i: [r.section(f"give/{at}") for at in range(len(uploads))] for i, r in replies.items()}
        self.aggregator.receive(uploads, arrays)

    def _answer(
        self, current: RoundState, question: dict[str, Any], replies: dict[int, Message]
    ) -> Message | None:
        """Answer a question; None if a secure aggregation session failed and the round must restart."""
        arrays = {i: reply.section("ask") for i, reply in replies.items()}
        if question["kind"] != "masked":
            cancelled_before = len(self.ledger.cancelled)
            answer = self.aggregator.answer(question, arrays)
            if question["kind"] == "exchange" and missing_clients(question, arrays):
                self._log(f"round {current.number}: {INCOMPLETE}")
            if len(self.ledger.cancelled) > cancelled_before:
                self._log(f"round {current.number}: {CANCELLED}")
            return answer
        adverts = {i: own["message"].tobytes() for i, own in arrays.items() if "message" in own}
        head = {
            "run": self.setup.run, "round": current.number, "attempt": current.attempt,
            "stage": len(current.log),
        }  # fmt: skip
        with self.ledger.clock("server", "encryption"):
            result = run_session(question, current.nonce, adverts, self.registry.exchange, head)
        for i, reason in result.lost.items():
            if i in current.team:  # else it was excluded before, with its reason
                self._exclude(current, i, reason)
        if result.reason:
            self._log(f"round {current.number}: {result.reason}")
        if result.total is None and not (current.released or current.finish):
            return None
        return Message({"kind": "masked"}, {} if result.total is None else {"total": result.total})

    def _evaluate(self, r: int) -> None:
        """Let every node that is online score its cluster's model on its own test samples."""
        state, waiting, requested = self.state, self.registry.refresh(), dict[int, list[str]]()
        state.accuracy = np.full(len(state.accuracy), np.nan)
        head = {"what": "evaluate", "run": self.setup.run, "round": r, "since": state.since}
        while waiting:
            messages = {}
            for i in waiting:
                row = state.assignment[i]
                names = requested.get(i) or ([state.names[row]] if row >= 0 else [])
                messages[i] = Message(head, {**state.client_state, **self._models(names)})
            waiting, unreadable = [], list[int]()
            for i, reply in self.registry.exchange(messages).items():
                what = "" if isinstance(reply, NoReply) else reply.head["what"]
                if isinstance(reply, NoReply):
                    self._log(f"round {r}: node {i} has not scored its model: {reply.reason}")
                elif what == "need" and i not in requested:  # it had to find its cluster first
                    requested[i], waiting = reply.head["names"], [*waiting, i]
                elif what == "unreadable":
                    unreadable.append(i)
                elif what == "score" and (accuracy := reply.head["accuracy"]) is not None:
                    state.accuracy[i] = accuracy if 0 <= accuracy <= 1 else np.nan
            if 2 * len(unreadable) > len(messages) and len(state.copies) > 1:
                state.discard_copy()
                waiting += unreadable
            elif unreadable:
                self._log(
                    f"round {r}: nodes {unreadable} cannot decrypt the clients' state; they did not score"
                )

    def _record(self, current: RoundState, reclustered: bool) -> None:
        """Store a round's record and a checkpoint."""
        record = self.state.round_record(current, reclustered, self.ledger)
        self.records.append(record)
        self._recorder.add_round(record)
        self._save(current.number)
        self._on_round(record)

    def _save(self, r: int, current: RoundState | None = None) -> None:
        """Write a checkpoint: the run after round r, or in the middle of the next round."""
        stored = {
            "standing": self.state.to_json(),
            "instance": self.registry.instance,
            "known": self.registry.known,
            "blocks": self.registry.blocks,
            "now": current.to_json() if current else None,
        }
        self.registry.shape_is_fixed = True
        arrays = with_prefix("relay", self.aggregator.state())
        arrays |= with_prefix("standing", self.state.to_arrays())
        arrays |= with_prefix("now", current.to_arrays()) if current else {}
        ledger = {**self.ledger.state(), "coordinator": stored}
        self._recorder.save(Checkpoint(r, arrays, ledger, self.wall_s))

    def _resume(self) -> RoundState | None:
        """Load the last checkpoint; return the round that was in progress, if any."""
        checkpoint, self.records = self._recorder.resume()
        if checkpoint is None:
            return None
        arrays, stored = Message({}, checkpoint.arrays), checkpoint.ledger["coordinator"]
        self.aggregator.restore(arrays.section("relay"))
        self.ledger.restore(checkpoint.ledger)
        self.state = ServerState.from_checkpoint(stored["standing"], arrays.section("standing"))
        self.registry.known, self.registry.blocks = stored["known"], stored["blocks"]
        self.registry.shape_is_fixed = self.registry.blocks is not None
        self.registry.instance = stored["instance"]
        self._started -= checkpoint.wall_s
        self._log(f"resuming after round {checkpoint.round}")
        if stored["now"] is None:
            return None
        current = RoundState.from_checkpoint(stored["now"], arrays.section("now"))
        team = [i for i in current.team if i not in self.setup.removed]
        self.registry.wait_for(len(team), team)
        return current
