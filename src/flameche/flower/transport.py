"""Carries parcels over Flower's Grid: a message for each node, answers as they come, losses as they are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from flameche.errors import FlamecheError
from flameche.flower.records import SITE_ERROR, Packer, unpack
from flameche.network.parcel import Lost, Parcel

SHORTEST, LONGEST, GROWTH = 0.05, 1.0, 1.5  # seconds between looks for answers
GRACE = 300.0  # a message lives that much longer than it is waited for: sites' clocks differ
KINDS = {"hello": MessageType.QUERY, "evaluate": MessageType.EVALUATE}
GONE = {
    3: "its message expired, or the node left",
    4: "its answer expired",
    5: "the node is offline",
    7: "the node does not trust this app",
    8: "the app's process on the node died",
}
RAISED = re.compile(r"^<class '[\w.]+'>:<'(.*)'>$", re.DOTALL)  # how Flower tells that an app raised


class GridTransport:
    """Carries parcels between the server and Flower's nodes; addresses are Flower's node ids."""

    def __init__(
        self,
        grid: Grid,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self._clock, self._sleep = grid, clock, sleep

    def nodes(self) -> list[int]:
        """List the ids of the nodes that are there now."""
        return sorted(self.grid.get_node_ids())

    def exchange(self, parcels: Mapping[int, Parcel], timeout: float) -> dict[int, Parcel | Lost]:
        """Send each node its parcel and wait, so many seconds at most, for all answers."""
        end = self._clock() + timeout
        answers: dict[int, Parcel | Lost] = {}
        waiting = self._push(parcels, timeout, answers)
        pause = SHORTEST
        while waiting and self._clock() < end:
            before = len(waiting)
            for message in self.grid.pull_messages(list(waiting)):
                address = waiting.pop(message.metadata.reply_to_message_id, None)
                if address is not None:  # else an answer to nothing that was asked
                    answers[address] = self._open(address, message)
            pause = SHORTEST if len(waiting) < before else min(pause * GROWTH, LONGEST)
            if waiting:
                self._sleep(min(pause, max(end - self._clock(), 0.0)))
        for address in waiting.values():
            answers[address] = Lost(f"no answer in {timeout:g} s")
        return answers

    def _push(
        self, parcels: Mapping[int, Parcel], timeout: float, answers: dict[int, Parcel | Lost]
    ) -> dict[str, int]:
        """Send all parcels; return which message went where, and note what could not be sent."""
        packer = Packer()
        messages = [_message(packer, address, parcel, timeout) for address, parcel in parcels.items()]
        ids = list(self.grid.push_messages(messages)) if messages else []
        ids += [""] * (len(messages) - len(ids))  # a list too short: Flower refused them all
        waiting = {}
        for address, known in zip(parcels, ids, strict=True):
            if known:
                waiting[known] = address
            else:
                answers[address] = Lost("Flower could not send it: the node is not registered")
        return waiting

    def _open(self, address: int, message: Message) -> Parcel | Lost:
        if message.has_error():
            code = message.error.code
            site = code - SITE_ERROR if code >= SITE_ERROR else None
            return Lost(_reason(code, message.error.reason), site)
        if message.metadata.src_node_id != address:
            return Lost("the answer came from another node")
        try:
            return unpack(message.content)
        except FlamecheError as problem:
            return Lost(f"its answer cannot be used: {problem}")


def _message(packer: Packer, address: int, parcel: Parcel, timeout: float) -> Message:
    kind = KINDS.get(str(parcel.head.get("what")), MessageType.TRAIN)
    group = str(parcel.head.get("round", ""))
    return Message(packer.pack(parcel), address, kind, ttl=timeout + GRACE, group_id=group)


def _reason(code: int, reason: Any) -> str:
    """Say in one line why there is no answer."""
    if code in GONE:
        return GONE[code]
    text = RAISED.sub(r"\1", str(reason or "").strip())
    lines = ["".join(filter(str.isprintable, line)) for line in text.splitlines()]
    return lines[0][:300] if lines else f"the node failed (Flower's code {code})"
