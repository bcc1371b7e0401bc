"""The nodes that are online: they are greeted, checked, and numbered; every message to them is counted."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from flameche.network.aggregator import Aggregator
from flameche.network.message import Message, NoReply, Transport
from flameche.network.server_state import ServerSetup
from flameche.network.validation import format_problem
from flameche.protocol.ledger import Ledger

POLL_INTERVAL = 1.0  # seconds between two looks at who is online
RETRY_AFTER = 30.0  # seconds until a node that was refused or did not reply is greeted again
HELLO_TIMEOUT = 60.0  # seconds to wait for the reply to a hello
# What the ledger counts an array as: by the kind of upload, of question, and of answer.
UPLOAD_TRAFFIC = {"store": "metadata", "average": "model"}
QUESTION_TRAFFIC = {"tell": "assignment", "once": "exchange", "masked": "secagg"}
ANSWER_TRAFFIC = {"tell": "assignment", "totals": "centroids", "once": "exchange", "masked": "exchange"}


class NodeRegistry:
    """Numbers and addresses of nodes; all messages pass through here, are counted, and validated."""

    def __init__(
        self,
        transport: Transport,
        setup: ServerSetup,
        aggregator: Aggregator,
        ledger: Ledger,
        log: Callable[[str], None],
    ) -> None:
        self._transport, self._setup, self._aggregator = transport, setup, aggregator
        self._ledger, self._log = ledger, log
        self.instance = secrets.token_hex(8)  # distinguishes this run from another with the same name
        self._address: dict[int, int] = {}  # of the nodes that are online, by number
        self._retry_at: dict[int, float] = {}  # addresses that are not greeted before this time
        self._refused: dict[int, NoReply] = {}  # addresses of nodes that cannot take part, and why
        self.known: list[int] = []  # numbers of all nodes that were ever accepted
        self.blocks: list[int] | None = None  # the shape of everybody's metadata
        self.shape_is_fixed = False  # because it has been used
        self._reported_shapes: dict[int, tuple[int, ...]] = {}

    def refresh(self) -> list[int]:
        """Look who is online, greet new nodes, and return the numbers of those that can take part."""
        online, now = set(self._transport.nodes()), time.monotonic()
        self._address = {n: a for n, a in self._address.items() if a in online}
        self._retry_at = {a: t for a, t in self._retry_at.items() if a in online and t > now}
        self._refused = {a: reason for a, reason in self._refused.items() if a in online}
        new = online - set(self._address.values()) - self._retry_at.keys()
        hello = dict.fromkeys(sorted(new), Message({"what": "hello", "instance": self.instance}))
        timeout = min(HELLO_TIMEOUT, self._setup.timeout)
        replies = self._transport.exchange(hello, timeout) if hello else {}
        valid = {a: r for a, r in replies.items() if isinstance(r, Message) and self._is_hello(r)}
        self._choose_shape(reply for reply in valid.values() if self._mismatch(reply) is None)
        for address in sorted(new):
            reply, reason = valid.get(address), None
            if reply is None:
                failed = replies.get(address)
                reason = failed.reason if isinstance(failed, NoReply) else "its hello is not valid"
            else:
                reason = self._mismatch(reply) or self._shape_mismatch(reply)
            if reply is None or reason is not None:
                self._refuse(address, reason or "", replies.get(address))
            else:
                self._refused.pop(address, None)
                self._accept(address, reply)
        return self.online

    def _refuse(self, address: int, reason: str, reply: Message | NoReply | None) -> None:
        """Greet a node again later; log the reason, but not again while it stays the same."""
        before = self._refused.get(address)
        if before is None or before.reason != reason:
            self._log(f"a node is refused: {reason}")
        self._refused[address] = NoReply(reason, site=reply.site if isinstance(reply, NoReply) else None)
        self._retry_at[address] = time.monotonic() + RETRY_AFTER

    @property
    def refused_sites(self) -> int:
        """Count the absent sites that must correct something before they can take part.

        Sites are counted, not addresses: a refused node may be no site's, or one that is online elsewhere.
        """
        absent = set(range(self._setup.rules.clients)) - set(self._setup.removed) - self._address.keys()
        return len(absent & {reason.site for reason in self._refused.values()})

    @property
    def shortage_reason(self) -> str:
        """Explain, after a wait, why there are not more nodes."""
        if self.refused_sites:
            return f"{self.refused_sites} were refused for the reasons above: correct these at the sites"
        return f"also after {self._setup.patience:g} s"

    def _choose_shape(self, replies: Iterable[Message]) -> None:
        """Choose the metadata shape that most nodes report; refuse others, also if accepted before."""
        self._reported_shapes |= {int(reply.head["number"]): tuple(reply.head["blocks"]) for reply in replies}
        if self.shape_is_fixed or not self._reported_shapes:
            return
        self.blocks = list(Counter(self._reported_shapes.values()).most_common(1)[0][0])
        for n in [n for n in self._address if list(self._reported_shapes[n]) != self.blocks]:
            self._retry_at[self._address.pop(n)] = time.monotonic() + RETRY_AFTER
            self.known.remove(n)
            self._log(f"node {n} is refused after all: most nodes have metadata of shape {self.blocks}")

    def _accept(self, address: int, reply: Message) -> None:
        number = int(reply.head["number"])
        self._address[number] = address
        self._aggregator.sizes[number] = int(reply.head["size"])
        if number not in self.known:
            self.known = sorted([*self.known, number])
        assert self.blocks is not None  # an accepted reply has a shape
        self._aggregator.term_length = self.blocks[0] * self.blocks[1] + self.blocks[0] + 1

    @property
    def online(self) -> list[int]:
        """List the members that are online."""
        return sorted(n for n in self._address if n not in self._setup.removed)

    @property
    def members(self) -> list[int]:
        """List the members of the federation, online or not."""
        return [n for n in self.known if n not in self._setup.removed]

    def wait_for(self, count: int, numbers: Collection[int] = ()) -> list[int]:
        """Wait until `count` nodes are online, these among them, or until the time is up.

        Refused sites are not waited for: once all others are online, the wait ends.
        """
        end = time.monotonic() + self._setup.patience
        logged = False
        while len(online := self.refresh()) < count or not set(numbers) <= set(online):
            everybody = self._setup.rules.clients - len(self._setup.removed)
            nobody_missing = self.refused_sites and len(online) + self.refused_sites >= everybody
            if time.monotonic() >= end or nobody_missing:
                break
            if not logged:
                self._log(f"waiting for nodes: {len(online)} of {max(count, len(numbers))} are online")
                logged = True
            time.sleep(POLL_INTERVAL)
        return self.online

    def _is_hello(self, reply: Message) -> bool:
        return format_problem(reply, self._setup.rules.clients) is None and reply.head["what"] == "hello"

    def _mismatch(self, reply: Message) -> str | None:
        """Explain why a node cannot take part; None if it can."""
        head, setup = reply.head, self._setup
        number = head.get("number")
        if type(number) is not int or not 0 <= number < setup.rules.clients:
            return f"its number is not one from 0 to {setup.rules.clients - 1}"
        if head["run"] != setup.run:
            return f"node {number} has another configuration or seed ({head['run'][:40]}, not {setup.run})"
        if head["fingerprint"] != setup.fingerprint:
            return f"node {number} has another key ({head['fingerprint'][:40]}, not {setup.fingerprint})"
        if number in self._address:
            return f"there is a node {number} already; every node needs a number of its own"
        return None

    def _shape_mismatch(self, reply: Message) -> str | None:
        number, blocks = reply.head["number"], reply.head["blocks"]
        if blocks == self.blocks:
            return None
        return f"node {number} has metadata of shape {blocks}, the others {self.blocks}"

    def exchange(self, messages: Mapping[int, Message]) -> dict[int, Message | NoReply]:
        """Send messages to nodes by number, collect and validate the replies, count the bytes of both.

        A node that does not reply is greeted again before it takes part in anything else.
        """
        online = {n: self._address[n] for n in messages if n in self._address}
        sent = {address: messages[n] for n, address in online.items()}
        replies = self._transport.exchange(sent, self._setup.timeout) if sent else {}
        found: dict[int, Message | NoReply] = {}
        for n, message in messages.items():
            if n not in online:
                found[n] = NoReply("it is not online")
                continue
            _count_bytes(self._ledger.received, n, message, _traffic_to_node)
            reply = replies.get(online[n], NoReply("no reply came"))
            if isinstance(reply, Message):
                if (problem := format_problem(reply, self._setup.rules.clients)) is not None:
                    reply = NoReply(problem)
                elif reply.head.get("number") != n:
                    reply = NoReply("it replies under another node's number")
                else:
                    _count_bytes(self._ledger.sent, n, reply, _traffic_from_node)
            if isinstance(reply, NoReply):
                self._address.pop(n, None)
            found[n] = reply
        return found


def _count_bytes(
    count: Any, number: int, message: Message, kind: Callable[[str, Mapping[str, Any]], str]
) -> None:
    """Enter a message's bytes into the ledger, each array under what it is."""
    client = np.array([number])
    count("words", client, len(json.dumps(message.head)))
    for name, array in message.arrays.items():
        count(kind(name, message.head), client, array.nbytes)


def _traffic_to_node(name: str, head: Mapping[str, Any]) -> str:
    first, _, rest = name.partition("/")
    if first == "answer":
        number = int(rest.partition("/")[0]) - int(head["from"])
        return ANSWER_TRAFFIC.get(head["answers"][number]["kind"], "exchange")
    return {"model": "model", "message": "secagg"}.get(first, "state")


def _traffic_from_node(name: str, head: Mapping[str, Any]) -> str:
    first, _, rest = name.partition("/")
    if first == "give":
        return UPLOAD_TRAFFIC.get(head["gives"][int(rest.partition("/")[0])]["kind"], "exchange")
    if first == "ask":
        return "state" if head["what"] == "done" else QUESTION_TRAFFIC.get(head["said"]["kind"], "exchange")
    return "secagg"
