"""Keys for two, and the streams that blind a vector.

X25519 (RFC 7748) between two clients, HKDF-SHA256 (RFC 5869) salted with the session's hash, and AES-256 in
counter mode as the generator: each key is used for one stream, so its counter starts at zero.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from flameche.crypto.secagg.session import Session
from flameche.errors import SealError

Words = NDArray[np.unsignedinteger[Any]]
PAIR, SEAL, SELF = b"flameche secagg pair mask", b"flameche secagg share seal", b"flameche secagg self mask"
START = bytes(16)


def agree(
    session: Session,
    purpose: bytes,
    key: X25519PrivateKey,
    mine: tuple[int, bytes],
    theirs: tuple[int, bytes],
) -> bytes:
    """Derive the key [32 bytes] of two clients, each an index and a public key; the same for either."""
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(theirs[1]))
    except ValueError:  # a point of low order: the secret would be known to all
        raise SealError(f"the public key of client {theirs[0]} is not a key") from None
    (low, first), (high, second) = sorted((mine, theirs))
    return _derive(session, purpose + struct.pack("<II", low, high) + first + second, shared)


def usable(public: bytes, probe: X25519PrivateKey) -> bool:
    """Tell a key from the few points with which every secret agrees on zero (RFC 7748, 6.1)."""
    try:
        probe.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def self_key(session: Session, client: int, seed: bytes) -> bytes:
    """Derive the key of a client's own mask from its seed."""
    return _derive(session, SELF + struct.pack("<I", client), seed)


def commitment(session: Session, client: int, seed: bytes) -> bytes:
    """Hash a seed [32 random bytes], which hides it and fixes it."""
    return hashlib.sha256(
        b"flameche secagg seed" + session.context + struct.pack("<I", client) + seed
    ).digest()


def _derive(session: Session, info: bytes, secret: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=session.context, info=info).derive(secret)


def apply(total: Words, plus: Iterable[bytes], minus: Iterable[bytes]) -> None:
    """Add the streams of some keys to words [S] and take those of others away, in place, mod 2^w."""
    size = total.nbytes
    zeros = bytes(size)
    room = np.empty(size + 16, np.uint8)  # update_into wants a block to spare
    stream = room[:size].view(total.dtype)
    for keys, add in ((plus, np.add), (minus, np.subtract)):
        for key in keys:
            Cipher(algorithms.AES(key), modes.CTR(START)).encryptor().update_into(zeros, room.data)
            add(total, stream, out=total)
    room.fill(0)
