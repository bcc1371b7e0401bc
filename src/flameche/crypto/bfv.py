"""BFV: exact sums on a lattice, the default.

Brakerski, CRYPTO 2012; Fan and Vercauteren, ePrint 2012/144; on TenSEAL (Microsoft SEAL). Numbers are fixed
point in the slots of a plaintext ring. Degree 4096 with a 108-bit modulus is within the 128-bit limit of 109;
half of it is SEAL's special prime, 54 bits remain for plaintext and noise.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import KeyInfo
from flameche.crypto.codec import PLAIN_MODULUS, FixedPoint, exact_codec
from flameche.crypto.envelope import Envelope, pack, unpack
from flameche.crypto.lattice import (
    LatticeAdder,
    LatticeSecret,
    Ring,
    chunks_for,
    read_chunks,
    read_key,
    write_chunks,
)
from flameche.errors import SealError

NAME = "bfv"
RINGS = {36: Ring(4096, (54, 54), plain=PLAIN_MODULUS[36]), 44: Ring(8192, (60, 60), plain=PLAIN_MODULUS[44])}
# Symmetric fresh noise has standard deviation 3.2; that of n independent ciphertexts grows with sqrt(n). The
# rings leave 17 and 15 bits for it: at six standard deviations room for 2**25 and 2**21 terms.


class BfvKey:
    """A client's half."""

    def __init__(self, secret: LatticeSecret, codec: FixedPoint) -> None:
        self._secret, self._codec = secret, codec

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """Encode and encrypt a vector [S]."""
        import tenseal as ts

        ring, values = self._secret.ring, self._codec.encode(vector)
        chunks = []
        for part in np.array_split(values, chunks_for(len(values), ring.slots)):
            chunks.append(ts.bfv_vector(self._secret.context, [1, *part.tolist()]).serialize())
        return pack(NAME, self._secret.mark, Envelope(1, len(values), write_chunks(chunks)))

    def open(self, data: bytes) -> NDArray[np.float64]:
        """Decrypt and decode a sum [S]."""
        envelope, ring = unpack(data, NAME, self._secret.mark), self._secret.ring
        self._codec.check_terms(envelope.terms)
        parts = []
        for chunk in read_chunks(envelope.body, chunks_for(envelope.numbers, ring.slots)):
            opened = np.array(ring.load_vector(self._secret.context, chunk).decrypt(), np.int64)
            if len(opened) == 0 or opened[0] != envelope.terms:
                raise SealError("a sealed sum does not open: it was altered, or sealed under another key")
            parts.append(opened[1:])
        total = np.concatenate(parts)
        if len(total) != envelope.numbers:
            raise SealError(f"a sealed sum opens to {len(total)} numbers, expected {envelope.numbers}")
        return self._codec.decode(total)

    def __repr__(self) -> str:
        return repr(self._secret)


class Bfv:
    """Exact sums; opened by clients, who share one secret key."""

    name = NAME
    opened_by: Literal["server", "clients"] = "clients"

    def __init__(self, secret: LatticeSecret, codec: FixedPoint) -> None:
        self._secret, self.codec = secret, codec

    @classmethod
    def generate(cls, *, max_terms: int, bound: float = 64.0) -> Bfv:
        """Draw a key for sums of up to max_terms vectors of values up to bound.

        The small ring serves while it leaves 20 fraction bits; otherwise the large one.
        """
        codec, bits = exact_codec(bound, max_terms)
        return cls(LatticeSecret.fresh(NAME, RINGS[bits], codec.__dict__), codec)

    @classmethod
    def from_bytes(cls, data: bytes) -> Bfv:
        """Read a secret key that `secret_bytes` wrote."""
        ring, settings, name, context, public = read_key(data, NAME, secret=True)
        return cls(LatticeSecret(NAME, ring, settings, name, context, public), FixedPoint(**settings))

    @property
    def info(self) -> KeyInfo:
        """Tell what anybody may know of the key."""
        return self._secret.info

    def secret_bytes(self) -> bytes:
        """Write the clients' key."""
        return self._secret.to_bytes()

    def public_bytes(self) -> bytes:
        """Write the server's part."""
        return self._secret.public_bytes()

    def adder(self) -> LatticeAdder:
        """Deal the server's half."""
        return _adder(self._secret.ring, self._secret.mark, self._secret.public, self.codec.max_terms)

    def client_key(self) -> BfvKey:
        """Deal a client's half."""
        return BfvKey(self._secret, self.codec)


def adder_from_bytes(data: bytes) -> LatticeAdder:
    """Make the server's half from its part of a key."""
    ring, settings, name, _, public = read_key(data, NAME, secret=False)
    mark = LatticeSecret(NAME, ring, settings, name, None, public).mark
    return _adder(ring, mark, public, settings["max_terms"])


def _adder(ring: Ring, mark: bytes, public: bytes, max_terms: int) -> LatticeAdder:
    return LatticeAdder(NAME, ring, mark, public, max_terms)
