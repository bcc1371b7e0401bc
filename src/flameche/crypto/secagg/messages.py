"""The bytes that pass between clients and server: versioned, length-checked, of one session and one client.

    magic "FSA1" · kind · session, 16 bytes of its hash · client · bytes of the body · CRC-32 · body

The checksum finds damage, not malice: an encrypted channel to the server (TLS) is assumed, as in the paper.
`client` is the sender on the way up and the addressee on the way down. Most bodies are tables: rows of a
client's index and a field of fixed width, in rising order, so that no client can be named twice.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from enum import IntEnum

from flameche.crypto.secagg import shamir
from flameche.crypto.secagg.session import Session
from flameche.errors import SealError

HEADER = struct.Struct("<4sB16sIQI")
MAGIC = b"FSA1"
KEY = 32
SEALED = 2 * shamir.SHARE + 16  # two shares and AES-GCM's tag
DROPPED, SURVIVED = b"\0", b"\1"


class Kind(IntEnum):
    """The seven messages, in the order of the protocol."""

    ADVERT = 1
    ROSTER = 2
    SHARES = 3
    INBOX = 4
    MASKED = 5
    REQUEST = 6
    REVEAL = 7


def pack(session: Session, kind: Kind, client: int, body: bytes) -> bytes:
    """Write a message."""
    return HEADER.pack(MAGIC, kind, session.context[:16], client, len(body), zlib.crc32(body)) + body


def unpack(session: Session, kind: Kind, client: int, data: bytes, size: int | None = None) -> bytes:
    """Read the body of a message of this session, kind and client; SealError says what does not fit."""
    name = title(kind, client)
    if len(data) < HEADER.size:
        raise SealError(f"{name} is cut short: {len(data)} bytes, its header alone has {HEADER.size}")
    magic, found, context, sender, length, checksum = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SealError(f"{name} is not a message of a version that is known here")
    if context != session.context[:16]:
        raise SealError(
            f"{name} belongs to another session, label or set of parameters: a replay, or a mix-up"
        )
    if found != kind:
        known = Kind(found).name.lower() if found in set(Kind) else f"kind {found}"
        raise SealError(f"{name} is of the wrong kind: {known}")
    if sender != client:
        raise SealError(f"{name} carries the name of client {sender}")
    if len(data) != HEADER.size + length:
        raise SealError(f"{name} is damaged: {len(data) - HEADER.size} bytes of body, expected {length}")
    body = bytes(data[HEADER.size :])
    if zlib.crc32(body) != checksum:
        raise SealError(f"{name} is damaged: its checksum is wrong")
    if size is not None and length != size:
        raise SealError(f"{name} has {length} bytes, expected {size}")
    return body


def title(kind: Kind, client: int) -> str:
    """Name a message in an error."""
    return f"the {kind.name.lower()} of client {client}"


def pack_table(rows: Mapping[int, bytes]) -> bytes:
    """Write rows of a client's index and its field, in rising order."""
    return b"".join(client.to_bytes(4, "little") + rows[client] for client in sorted(rows))


def unpack_table(session: Session, body: bytes, width: int, name: str) -> dict[int, bytes]:
    """Read rows whose fields have `width` bytes."""
    step = 4 + width
    if len(body) % step:
        raise SealError(f"{name} is damaged: {len(body)} bytes are no whole number of rows of {step}")
    rows: dict[int, bytes] = {}
    last = -1
    for start in range(0, len(body), step):
        client = int.from_bytes(body[start : start + 4], "little")
        if client <= last:
            raise SealError(f"{name} names client {client} twice or out of order")
        rows[client] = body[start + 4 : start + step]
        last = client
    if last >= session.clients:
        raise SealError(f"{name} names client {last} of {session.clients}")
    return rows
