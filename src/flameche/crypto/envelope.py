"""The byte form of everything sealed: versioned, length-checked, naming scheme, parameters and terms.

    magic "FLM1" · scheme, 12 bytes · fingerprint, 8 bytes · terms · numbers · bytes of the body ·
    checksum of the body, 8 bytes · body

The fingerprint is a hash of the scheme's public parameters and of the key's public name: bytes that were
sealed under another key, codec or parameter set are refused by name, never added or opened to nonsense.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

from flameche.errors import SealError

HEADER = struct.Struct("<4s12s8sIIQ8s")
MAGIC = b"FLM1"


@dataclass(frozen=True)
class Envelope:
    """A sealed vector's outside: which scheme and key, how many terms and numbers, and the body."""

    terms: int
    numbers: int
    body: bytes


def fingerprint(scheme: str, **parameters: Any) -> bytes:
    """Name a scheme's parameters by eight bytes of their hash."""
    text = json.dumps([scheme, parameters], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()[:8]


def pack(scheme: str, mark: bytes, envelope: Envelope) -> bytes:
    """Write an envelope."""
    name = scheme.encode().ljust(12, b"\0")
    size, check = len(envelope.body), _checksum(envelope.body)
    return HEADER.pack(MAGIC, name, mark, envelope.terms, envelope.numbers, size, check) + envelope.body


def unpack(data: bytes, scheme: str, mark: bytes) -> Envelope:
    """Read an envelope; SealError says what does not fit."""
    if len(data) < HEADER.size:
        raise SealError(
            f"a sealed vector is cut short: {len(data)} bytes, its header alone has {HEADER.size}"
        )
    magic, name, theirs, terms, numbers, size, check = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SealError("these bytes are not a sealed vector of a version that is known here")
    found = name.rstrip(b"\0").decode(errors="replace")
    if found != scheme:
        raise SealError(f"a vector sealed under scheme '{found}' was given to scheme '{scheme}'")
    if theirs != mark:
        raise SealError(
            f"a vector sealed under other keys or parameters of '{scheme}': {theirs.hex()}, here {mark.hex()}"
        )
    if len(data) != HEADER.size + size:
        raise SealError(
            f"a sealed vector is damaged: {len(data) - HEADER.size} bytes of body, expected {size}"
        )
    if _checksum(data[HEADER.size :]) != check:
        raise SealError("a sealed vector is damaged: its checksum does not match")
    if terms < 1:
        raise SealError("a sealed vector that sums no terms")
    return Envelope(terms, numbers, bytes(data[HEADER.size :]))


def numbers_of(data: bytes) -> int:
    """Tell how long the vector is that was sealed, of an envelope that was read before."""
    return int(HEADER.unpack_from(data)[4])


def terms_of(data: bytes) -> int:
    """Tell how many terms were added into a sealed vector, by its outside; opening it compares the inside."""
    if len(data) < HEADER.size:
        raise SealError(f"a sealed vector is cut short: {len(data)} bytes")
    return int(HEADER.unpack_from(data)[3])


def _checksum(body: bytes) -> bytes:
    """Hash a body, against damage on the way; whoever means harm can make another."""
    return hashlib.sha256(body).digest()[:8]
