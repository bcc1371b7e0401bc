"""Who is there: nodes by their number, met by a hello, refused where they do not fit."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from flameche.network.forms import misfit
from flameche.network.job import Job
from flameche.network.meter import weigh_down, weigh_up
from flameche.network.parcel import Lost, Parcel, Transport
from flameche.network.relay import Relay
from flameche.protocol.ledger import Ledger

PAUSE = 1.0  # seconds between two looks at who is there
AGAIN = 30.0  # seconds after which a node that did not fit or did not answer is greeted again
GREETING = 60.0  # seconds for the answer to a hello


class Roster:
    """Numbers and addresses of nodes; all messages pass through here, are weighed, and looked at."""

    def __init__(
        self, transport: Transport, job: Job, relay: Relay, ledger: Ledger, say: Callable[[str], None]
    ) -> None:
        self._transport, self._job, self._relay, self._ledger, self._say = transport, job, relay, ledger, say
        self.instance = secrets.token_hex(8)  # tells this run from another of the same name
        self._address: dict[int, int] = {}  # by number, of nodes that are there
        self._later: dict[int, float] = {}  # addresses that are not greeted before this time
        self._refused: dict[int, Lost] = {}  # addresses of nodes that cannot take part, and why
        self.known: list[int] = []  # numbers of all nodes ever met
        self.blocks: list[int] | None = None  # the shape of everybody's metadata
        self.settled = False  # that shape is used already
        self._claims: dict[int, tuple[int, ...]] = {}  # the shapes that nodes told

    def meet(self) -> list[int]:
        """Look who is there, greet who is new, and list the numbers of those that fit."""
        online, now = set(self._transport.nodes()), time.monotonic()
        self._address = {n: a for n, a in self._address.items() if a in online}
        self._later = {a: t for a, t in self._later.items() if a in online and t > now}
        self._refused = {a: why for a, why in self._refused.items() if a in online}
        new = online - set(self._address.values()) - self._later.keys()
        hello = dict.fromkeys(sorted(new), Parcel({"what": "hello", "instance": self.instance}))
        timeout = min(GREETING, self._job.timeout)
        replies = self._transport.exchange(hello, timeout) if hello else {}
        fits = {a: r for a, r in replies.items() if isinstance(r, Parcel) and not self._misfit(r, "hello")}
        self._compare(reply for reply in fits.values() if self._wrong(reply) is None)
        for address in sorted(new):
            reply = fits.get(address)
            why = _no_hello(replies.get(address)) if reply is None else self._wrong(reply) or self._odd(reply)
            if reply is None or why is not None:
                self._refuse(address, why or "", replies.get(address))
            else:
                self._refused.pop(address, None)
                self._welcome(address, reply)
        return self.here

    def _refuse(self, address: int, why: str, reply: Parcel | Lost | None) -> None:
        """Greet a node again later; say why it is refused, once, or again if the reason has changed."""
        before = self._refused.get(address)
        if before is None or before.why != why:
            self._say(f"a node is refused: {why}")
        self._refused[address] = Lost(why, site=reply.site if isinstance(reply, Lost) else None)
        self._later[address] = time.monotonic() + AGAIN

    @property
    def unusable(self) -> int:
        """Count the sites that cannot take part until they have corrected something.

        Addresses do not count: a node may be no site's at all, or a site that is there under another address.
        """
        absent = set(range(self._job.rules.clients)) - set(self._job.removed) - self._address.keys()
        return len(absent & {why.site for why in self._refused.values()})

    @property
    def why_few(self) -> str:
        """Say why there are no more nodes, after a wait."""
        if self.unusable:
            return f"{self.unusable} were refused for the reasons above: correct these at the sites"
        return f"also after {self._job.patience:g} s"

    def _compare(self, replies: Iterable[Parcel]) -> None:
        """Find the shape of most nodes' metadata; who has another is refused, also if it came first."""
        self._claims |= {int(reply.head["number"]): tuple(reply.head["blocks"]) for reply in replies}
        if self.settled or not self._claims:
            return
        self.blocks = list(Counter(self._claims.values()).most_common(1)[0][0])
        for n in [n for n in self._address if list(self._claims[n]) != self.blocks]:
            self._later[self._address.pop(n)] = time.monotonic() + AGAIN
            self.known.remove(n)
            self._say(f"node {n} is refused after all: most have metadata of shape {self.blocks}")

    def _welcome(self, address: int, reply: Parcel) -> None:
        number = int(reply.head["number"])
        self._address[number] = address
        self._relay.sizes[number] = int(reply.head["size"])
        if number not in self.known:
            self.known = sorted([*self.known, number])
        assert self.blocks is not None  # it had some
        self._relay.length = self.blocks[0] * self.blocks[1] + self.blocks[0] + 1

    @property
    def here(self) -> list[int]:
        """List the numbers of nodes that belong and are there."""
        return sorted(n for n in self._address if n not in self._job.removed)

    @property
    def members(self) -> list[int]:
        """List the numbers of nodes that belong, there or not."""
        return [n for n in self.known if n not in self._job.removed]

    def wait_for(self, count: int, numbers: Collection[int] = ()) -> list[int]:
        """Wait until so many are there, these among them, or for as long as patience lasts.

        Nobody waits for unusable sites: once all others are there, nobody else can come.
        """
        end = time.monotonic() + self._job.patience
        said = False
        while len(here := self.meet()) < count or not set(numbers) <= set(here):
            everybody = self._job.rules.clients - len(self._job.removed)
            if time.monotonic() >= end or (self.unusable and len(here) + self.unusable >= everybody):
                break
            if not said:
                self._say(f"waiting for nodes: {len(here)} of {max(count, len(numbers))} are there")
                said = True
            time.sleep(PAUSE)
        return self.here

    def _misfit(self, reply: Parcel, *whats: str) -> str | None:
        wrong = misfit(reply, self._job.rules.clients)
        if wrong is None and whats and reply.head["what"] not in whats:
            return f"answers '{reply.head['what']}' to '{whats[0]}'"
        return wrong

    def _wrong(self, reply: Parcel) -> str | None:
        """Tell why a node cannot take part; None if it can."""
        head, job = reply.head, self._job
        number = head.get("number")
        if type(number) is not int or not 0 <= number < job.rules.clients:
            return f"its number is not one from 0 to {job.rules.clients - 1}"
        if head["run"] != job.run:
            return f"node {number} has another configuration or seed ({head['run'][:40]}, not {job.run})"
        if head["fingerprint"] != job.fingerprint:
            return f"node {number} has another key ({head['fingerprint'][:40]}, not {job.fingerprint})"
        if number in self._address:
            return f"there is a node {number} already; numbers are given out once"
        return None

    def _odd(self, reply: Parcel) -> str | None:
        number, blocks = reply.head["number"], reply.head["blocks"]
        same = blocks == self.blocks
        return None if same else f"node {number} has metadata of shape {blocks}, the others {self.blocks}"

    def exchange(self, parcels: Mapping[int, Parcel]) -> dict[int, Parcel | Lost]:
        """Send nodes their parcels, and collect their answers; by number, looked at, weighed both ways.

        Who does not answer is greeted again before it takes part in anything else.
        """
        there = {n: self._address[n] for n in parcels if n in self._address}
        sent = {address: parcels[n] for n, address in there.items()}
        replies = self._transport.exchange(sent, self._job.timeout) if sent else {}
        found: dict[int, Parcel | Lost] = {}
        for n, parcel in parcels.items():
            if n not in there:
                found[n] = Lost("it is not there")
                continue
            weigh_down(self._ledger, n, parcel)
            reply = replies.get(there[n], Lost("no answer came"))
            if isinstance(reply, Parcel):
                if (wrong := self._misfit(reply)) is not None:
                    reply = Lost(wrong)
                elif reply.head.get("number") != n:
                    reply = Lost("it answers for another node")
                else:
                    weigh_up(self._ledger, n, reply)
            if isinstance(reply, Lost):
                self._address.pop(n, None)
            found[n] = reply
        return found


def _no_hello(reply: Parcel | Lost | None) -> str:
    return reply.why if isinstance(reply, Lost) else "its hello cannot be understood"
