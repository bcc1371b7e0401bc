"""Sends messages over Flower: how they become Flower's records, and the server's transport over its Grid.

Heads and small arrays go into a ConfigRecord, large arrays into an ArrayRecord. Flower transfers each array
of an ArrayRecord separately, in a dozen requests between server, node and app, so small arrays, which are
mostly encrypted sums, are bundled.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, RecordDict
from flwr.app import Message as FlowerMessage
from numpy.typing import NDArray

from flameche.errors import FlamecheError
from flameche.network.message import Arrays, Message, NoReply

if TYPE_CHECKING:
    from flwr.serverapp import Grid

VERSION = 1  # of the record format; server and nodes must have the same
# Added to a site's number, an error code that Flower does not use: something at that site must be corrected.
SITE_ERROR = 200
HEAD, ARRAYS = "flameche", "arrays"
SMALL, BUNDLE = 1 << 20, 1 << 22  # bytes, at most: of an array that is bundled, and of a bundle
MIN_INTERVAL, MAX_INTERVAL, GROWTH = 0.05, 1.0, 1.5  # seconds between polls for replies
EXTRA_LIFETIME = 300.0  # seconds that a message outlives its timeout: the sites' clocks differ
MESSAGE_TYPES = {"hello": MessageType.QUERY, "evaluate": MessageType.EVALUATE}
FLOWER_ERRORS = {
    3: "its message expired, or the node left",
    4: "its reply expired",
    5: "the node is offline",
    7: "the node does not trust this app",
    8: "the app's process on the node died",
}
EXCEPTION_TEXT = re.compile(r"^<class '[\w.]+'>:<'(.*)'>$", re.DOTALL)  # how Flower reports an exception


class Packer:
    """Converts messages to records; an array that goes to many nodes is serialised and sent once."""

    def __init__(self) -> None:
        self._packed: dict[int, tuple[NDArray[Any], Array]] = {}  # keeps arrays alive, so ids are not reused

    def pack(self, message: Message) -> RecordDict:
        """Convert a message to records."""
        small = _choose_bundled(message.arrays)
        large = [name for name in message.arrays if name not in small]
        content = {"head": message.head, "small": small, "large": large, "order": list(message.arrays)}
        head: dict[str, Any] = {
            "version": VERSION,
            "words": json.dumps(content, allow_nan=False),
            "bundle": _bundle([message.arrays[name] for name in small]),
        }
        records = RecordDict({HEAD: ConfigRecord(head)})
        if large:
            packed = {str(at): self._array(message.arrays[name]) for at, name in enumerate(large)}
            records[ARRAYS] = ArrayRecord(packed)
        return records

    def _array(self, array: NDArray[Any]) -> Array:
        if id(array) not in self._packed:
            self._packed[id(array)] = (array, Array(array))
        return self._packed[id(array)][1]


def pack(message: Message) -> RecordDict:
    """Convert one message to records."""
    return Packer().pack(message)


def unpack(records: RecordDict) -> Message:
    """Convert records to a message; FlamecheError if they are not valid."""
    head, arrays = records.get(HEAD), records.get(ARRAYS, ArrayRecord())
    if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise FlamecheError(f"the message is not flameche's: it has no record '{HEAD}'")
    if (version := head.get("version")) != VERSION:
        raise FlamecheError(
            f"the message has version {repr(version)[:40]}, this flameche reads {VERSION}; "
            "install the same flameche on the server and on every node"
        )
    content = _parse_head(head.get("words"))
    try:
        found: Arrays = {name: arrays[str(at)].numpy() for at, name in enumerate(content["large"])}
        found |= zip(content["small"], _unbundle(head["bundle"], len(content["small"])), strict=True)
        return Message(content["head"], {name: found[name] for name in content["order"]})
    except Exception as problem:  # numpy raises many kinds for bytes that it did not write
        raise FlamecheError("the message's arrays cannot be read") from problem


def _parse_head(text: object) -> dict[str, Any]:
    try:
        content = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("head"), dict):
        raise FlamecheError("the message's head is not a JSON object")
    names = [content.get(key) for key in ("small", "large", "order")]
    if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
        raise FlamecheError("the message does not name its arrays")
    return content


def _choose_bundled(arrays: Arrays) -> list[str]:
    """Choose the arrays that are sent in one bundle."""
    chosen, room = [], BUNDLE
    for name, array in arrays.items():
        if array.nbytes < SMALL and array.nbytes <= room:
            chosen.append(name)
            room -= array.nbytes
    return chosen


def _bundle(arrays: Iterable[NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _unbundle(data: Any, count: int) -> list[NDArray[Any]]:
    file = io.BytesIO(data)
    found = [np.load(file, allow_pickle=False) for _ in range(count)]
    if file.read(1):
        raise ValueError("there are more bytes than arrays")
    return found


class GridTransport:
    """Sends messages to Flower's nodes and collects their replies; addresses are Flower's node ids."""

    def __init__(
        self,
        grid: Grid,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self._clock, self._sleep = grid, clock, sleep

    def nodes(self) -> list[int]:
        """List the ids of the nodes that are online."""
        return sorted(self.grid.get_node_ids())

    def exchange(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | NoReply]:
        """Send each node its message, and wait at most `timeout` seconds for all replies."""
        end = self._clock() + timeout
        replies: dict[int, Message | NoReply] = {}
        waiting = self._push(messages, timeout, replies)
        interval = MIN_INTERVAL
        while waiting and self._clock() < end:
            before = len(waiting)
            for received in self.grid.pull_messages(list(waiting)):
                address = waiting.pop(received.metadata.reply_to_message_id, None)
                if address is not None:  # else a reply to no message of ours
                    replies[address] = self._read(address, received)
            interval = MIN_INTERVAL if len(waiting) < before else min(interval * GROWTH, MAX_INTERVAL)
            if waiting:
                self._sleep(min(interval, max(end - self._clock(), 0.0)))
        for address in waiting.values():
            replies[address] = NoReply(f"no reply within {timeout:g} s")
        return replies

    def _push(
        self, messages: Mapping[int, Message], timeout: float, replies: dict[int, Message | NoReply]
    ) -> dict[str, int]:
        """Send all messages; return their addresses by message id, and note those that were not sent."""
        packer = Packer()
        outgoing = [_flower_message(packer, address, one, timeout) for address, one in messages.items()]
        ids = list(self.grid.push_messages(outgoing)) if outgoing else []
        ids += [""] * (len(outgoing) - len(ids))  # a shorter list: Flower refused them all
        waiting = {}
        for address, message_id in zip(messages, ids, strict=True):
            if message_id:
                waiting[message_id] = address
            else:
                replies[address] = NoReply("Flower could not send the message: the node is not registered")
        return waiting

    def _read(self, address: int, received: FlowerMessage) -> Message | NoReply:
        if received.has_error():
            code = received.error.code
            site = code - SITE_ERROR if code >= SITE_ERROR else None
            return NoReply(_error_text(code, received.error.reason), site)
        if received.metadata.src_node_id != address:
            return NoReply("the reply came from another node")
        try:
            return unpack(received.content)
        except FlamecheError as problem:
            return NoReply(f"its reply cannot be used: {problem}")


def _flower_message(packer: Packer, address: int, message: Message, timeout: float) -> FlowerMessage:
    kind = MESSAGE_TYPES.get(str(message.head.get("what")), MessageType.TRAIN)
    group = str(message.head.get("round", ""))
    return FlowerMessage(packer.pack(message), address, kind, ttl=timeout + EXTRA_LIFETIME, group_id=group)


def _error_text(code: int, reason: Any) -> str:
    """Describe an error in one line."""
    if code in FLOWER_ERRORS:
        return FLOWER_ERRORS[code]
    text = EXCEPTION_TEXT.sub(r"\1", str(reason or "").strip())
    lines = ["".join(filter(str.isprintable, line)) for line in text.splitlines()]
    return lines[0][:300] if lines else f"the node failed (Flower's code {code})"
