"""A box for what clients leave with the server between rounds: AES-256-GCM under a key of their own secret.

What clients know together (centroids, above all) has to reach whoever takes part next, through a server that
must not read it. Its key comes from the clients' key file by HKDF-SHA256 (RFC 5869), so that nobody has to
hand out another.
"""

from __future__ import annotations

import secrets
from typing import NoReturn, SupportsIndex

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flameche.errors import SealError

NONCE = 12
PURPOSE = b"flameche: state between rounds, 1"


class Box:
    """Seals and opens with a key that all clients have, and the server has not."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(HKDF(SHA256(), 32, salt=None, info=PURPOSE).derive(secret))

    def __repr__(self) -> str:
        return "<Box …>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a box holds a secret and is neither pickled nor copied")

    def seal(self, data: bytes, about: bytes) -> bytes:
        """Close data, bound to what they are about."""
        nonce = secrets.token_bytes(NONCE)
        return nonce + self._cipher.encrypt(nonce, data, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Read data that were sealed about the same; SealError where anything differs."""
        try:
            return self._cipher.decrypt(sealed[:NONCE], sealed[NONCE:], about)
        except (InvalidTag, ValueError):
            raise SealError(
                "the clients' state was sealed under another key, is of another round, or was altered"
            ) from None
