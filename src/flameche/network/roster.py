"""Who is there: nodes by their number, met by a hello, refused where they do not fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flameche.network.job import Job
from flameche.network.meter import weigh_down, weigh_up
from flameche.network.parcel import Lost, Parcel, Transport
from flameche.network.relay import Relay
from flameche.protocol.ledger import Ledger

PAUSE = 1.0  # seconds between two looks at who is there


class Roster:
    """Numbers and addresses of nodes; all messages pass through here, and are weighed."""

    def __init__(
        self, transport: Transport, job: Job, relay: Relay, ledger: Ledger, say: Callable[[str], None]
    ) -> None:
        self._transport, self._job, self._relay, self._ledger, self._say = transport, job, relay, ledger, say
        self._address: dict[int, int] = {}  # by number, of nodes that are there
        self._refused: dict[int, str] = {}  # addresses that do not fit
        self.known: list[int] = []  # numbers of all nodes ever met
        self.blocks: list[int] | None = None  # the shape of everybody's metadata

    def meet(self) -> list[int]:
        """Look who is there, greet who is new, and list the numbers of those that fit."""
        online = set(self._transport.nodes())
        self._address = {n: a for n, a in self._address.items() if a in online}
        new = online - set(self._address.values()) - self._refused.keys()
        hello = Parcel({"what": "hello"})
        for address, reply in self._transport.exchange(
            dict.fromkeys(sorted(new), hello), self._job.timeout
        ).items():
            why = reply.why if isinstance(reply, Lost) else self._wrong(reply)
            if why is not None:
                self._say(f"a node is refused: {why}")
                if not isinstance(reply, Lost):  # who did not answer may do so the next time
                    self._refused[address] = why
                continue
            assert isinstance(reply, Parcel)
            number = int(reply.head["number"])
            self._address[number] = address
            self._relay.sizes[number] = int(reply.head["size"])
            self.blocks = list(reply.head["blocks"])
            if number not in self.known:
                self.known = sorted([*self.known, number])
        return self.here

    @property
    def here(self) -> list[int]:
        """List the numbers of nodes that belong and are there."""
        return sorted(n for n in self._address if n not in self._job.removed)

    @property
    def members(self) -> list[int]:
        """List the numbers of nodes that belong, there or not."""
        return [n for n in self.known if n not in self._job.removed]

    def wait_for(self, count: int, enough: int | None = None) -> list[int]:
        """Wait until so many are there, or for as long as patience lasts; then until `enough` are."""
        end = time.monotonic() + self._job.patience
        said = False
        while len(self.meet()) < count and time.monotonic() < end:
            if not said:
                self._say(f"waiting for nodes: {len(self.here)} of {count} are there")
                said = True
            time.sleep(PAUSE)
        return self.here

    def _wrong(self, reply: Parcel) -> str | None:
        """Tell why a node cannot take part; None if it can."""
        head, job = reply.head, self._job
        number = head.get("number")
        if not isinstance(number, int) or not 0 <= number < job.rules.clients:
            return f"it calls itself {number!r}, expected a number from 0 to {job.rules.clients - 1}"
        if head.get("run") != job.run:
            return f"node {number} has another configuration or seed ({head.get('run')}, not {job.run})"
        if head.get("fingerprint") != job.fingerprint:
            return f"node {number} has another key ({head.get('fingerprint')}, not {job.fingerprint})"
        if self.blocks is not None and head.get("blocks") != self.blocks:
            return f"node {number} has metadata of shape {head.get('blocks')}, the others {self.blocks}"
        if not isinstance(head.get("size"), int) or head["size"] < 1:
            return f"node {number} has {head.get('size')!r} training samples"
        if number in self._address:
            return f"there is a node {number} already; numbers are given out once"
        return None

    def exchange(self, parcels: Mapping[int, Parcel]) -> dict[int, Parcel | Lost]:
        """Send nodes their parcels, and collect their answers; by number, weighed both ways."""
        found: dict[int, Parcel | Lost] = {
            n: Lost("it is not there") for n in parcels if n not in self._address
        }
        sent = {self._address[n]: parcel for n, parcel in parcels.items() if n in self._address}
        replies = self._transport.exchange(sent, self._job.timeout) if sent else {}
        for n, parcel in parcels.items():
            if n not in self._address:
                continue
            weigh_down(self._ledger, n, parcel)
            reply = replies.get(self._address[n], Lost("no answer came"))
            if isinstance(reply, Parcel):
                weigh_up(self._ledger, n, reply)
                if reply.head.get("number") != n:
                    reply = Lost(f"it answers for node {reply.head.get('number')}")
            found[n] = reply
        return found
