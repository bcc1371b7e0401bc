"""Parcels as Flower's records, and back.

Words and small arrays go into a ConfigRecord, large ones into an ArrayRecord: Flower carries every array by
itself, in a dozen requests between server, node and app, so small ones, mostly sealed sums, travel together.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flameche.errors import FlamecheError
from flameche.network.parcel import Arrays, Parcel

VERSION = 1  # of this form; server and nodes must agree
# None of Flower's codes: something at a site, such as its data, has to be corrected; its number is added.
SITE_ERROR = 200
HEAD, ARRAYS = "flameche", "arrays"
SMALL, BUNDLE = 1 << 20, 1 << 22  # bytes: of an array that travels with others, and of them together


class Packer:
    """Turns parcels into records; an array that goes to many nodes is written and sent once."""

    def __init__(self) -> None:
        self._packed: dict[int, tuple[NDArray[Any], Array]] = {}  # keeps arrays alive, so ids stay theirs

    def pack(self, parcel: Parcel) -> RecordDict:
        """Put a parcel into records."""
        small = _small(parcel.arrays)
        large = [name for name in parcel.arrays if name not in small]
        words = {"head": parcel.head, "small": small, "large": large, "order": list(parcel.arrays)}
        bundle = _bundled([parcel.arrays[name] for name in small])
        head: dict[str, Any] = {
            "version": VERSION,
            "words": json.dumps(words, allow_nan=False),
            "bundle": bundle,
        }
        records = RecordDict({HEAD: ConfigRecord(head)})
        if large:
            packed = {str(at): self._array(parcel.arrays[name]) for at, name in enumerate(large)}
            records[ARRAYS] = ArrayRecord(packed)
        return records

    def _array(self, array: NDArray[Any]) -> Array:
        if id(array) not in self._packed:
            self._packed[id(array)] = (array, Array(array))
        return self._packed[id(array)][1]


def pack(parcel: Parcel) -> RecordDict:
    """Put one parcel into records."""
    return Packer().pack(parcel)


def unpack(records: RecordDict) -> Parcel:
    """Take a parcel out of records; anything else is refused in one line."""
    head, arrays = records.get(HEAD), records.get(ARRAYS, ArrayRecord())
    if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise FlamecheError(f"the message is not flameche's: it has no record '{HEAD}'")
    if (version := head.get("version")) != VERSION:
        raise FlamecheError(
            f"the message has version {repr(version)[:40]}, this flameche speaks {VERSION}; "
            "install the same flameche on the server and on every node"
        )
    words = _words(head.get("words"))
    try:
        found: Arrays = {name: arrays[str(at)].numpy() for at, name in enumerate(words["large"])}
        found |= zip(words["small"], _unbundled(head["bundle"], len(words["small"])), strict=True)
        return Parcel(words["head"], {name: found[name] for name in words["order"]})
    except Exception as problem:  # whatever numpy makes of bytes that are not its own
        raise FlamecheError("the message's arrays cannot be read") from problem


def _words(text: object) -> dict[str, Any]:
    try:
        words = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict) or not isinstance(words.get("head"), dict):
        raise FlamecheError("the message's head is no JSON object")
    names = [words.get(key) for key in ("small", "large", "order")]
    if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
        raise FlamecheError("the message does not tell its arrays' names")
    return words


def _small(arrays: Arrays) -> list[str]:
    """Choose the arrays that travel together."""
    chosen, room = [], BUNDLE
    for name, array in arrays.items():
        if array.nbytes < SMALL and array.nbytes <= room:
            chosen.append(name)
            room -= array.nbytes
    return chosen


def _bundled(arrays: Iterable[NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _unbundled(data: Any, count: int) -> list[NDArray[Any]]:
    file = io.BytesIO(data)
    found = [np.load(file, allow_pickle=False) for _ in range(count)]
    if file.read(1):
        raise ValueError("more than was announced")
    return found
