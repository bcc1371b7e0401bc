"""CKKS: approximate sums on a lattice, as in the paper; and with parameters for a server that only adds.

Cheon, Kim, Kim and Song, ASIACRYPT 2017; on TenSEAL (Microsoft SEAL). `ckks-paper` has the paper's
parameters: degree 16384, moduli (60, 50, 50, 60), scale 2**50, sealed under a public key. `ckks` drops the
levels that a sum does not need: degree 4096, moduli (54, 54), a twelfth of the bytes. Both are within the
128-bit limits. Values are scaled by the declared bound, so that sums stay inside the modulus.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import KeyInfo
from flameche.crypto.codec import check_range
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
from flameche.errors import OverflowBudget, SealError

PAPER = Ring(16384, (60, 50, 50, 60), scale=50, symmetric=False)
FIRST_PRIME = 54
MOST_SCALE = 44
LEAST_SCALE = 26  # leaves ten bits above the error of a term
MOST_TERMS = 2**32 - 1  # that an envelope counts


class CkksKey:
    """A client's half."""

    def __init__(self, secret: LatticeSecret) -> None:
        self._secret = secret
        self._bound = secret.settings["bound"]

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """Scale to [-1, 1] and encrypt a vector [S]."""
        import tenseal as ts

        check_range(vector, self._bound)
        chunks = []
        for part in np.array_split(vector / self._bound, chunks_for(len(vector), self._secret.ring.slots)):
            chunks.append(ts.ckks_vector(self._secret.context, np.concatenate([[1.0], part])).serialize())
        return pack(self._secret.scheme, self._secret.mark, Envelope(1, len(vector), write_chunks(chunks)))

    def open(self, data: bytes) -> NDArray[np.float64]:
        """Decrypt a sum [S]; it carries the scheme's small error."""
        ring = self._secret.ring
        envelope = unpack(data, self._secret.scheme, self._secret.mark)
        parts = []
        for chunk in read_chunks(envelope.body, chunks_for(envelope.numbers, ring.slots)):
            opened = np.array(ring.load_vector(self._secret.context, chunk).decrypt())
            if len(opened) == 0 or not abs(opened[0] - envelope.terms) < 1e-3:
                raise SealError("a sealed sum does not open: it was altered, or sealed under another key")
            parts.append(opened[1:])
        total = np.concatenate(parts)
        if len(total) != envelope.numbers:
            raise SealError(f"a sealed sum opens to {len(total)} numbers, expected {envelope.numbers}")
        scaled: NDArray[np.float64] = total * self._bound
        return scaled

    def __repr__(self) -> str:
        return repr(self._secret)


class Ckks:
    """Approximate sums; opened by clients, who share one secret key."""

    opened_by: Literal["server", "clients"] = "clients"

    def __init__(self, secret: LatticeSecret) -> None:
        self.name = secret.scheme
        self._secret = secret

    @classmethod
    def generate(cls, *, max_terms: int, bound: float = 64.0, paper: bool = False) -> Ckks:
        """Draw a key for sums of up to max_terms vectors of values up to bound."""
        settings: dict[str, Any] = {"bound": bound, "max_terms": max_terms}
        scale = min(MOST_SCALE, FIRST_PRIME - 2 - math.ceil(math.log2(max_terms + 1)))
        if max_terms > MOST_TERMS or (scale < LEAST_SCALE and not paper):
            most = MOST_TERMS if paper else 2 ** (FIRST_PRIME - 2 - LEAST_SCALE) - 1
            raise OverflowBudget(f"sums of {max_terms} terms have no room under CKKS; at most {most} have")
        if paper:
            return cls(LatticeSecret.fresh("ckks-paper", PAPER, settings))
        return cls(LatticeSecret.fresh("ckks", Ring(4096, (54, 54), scale=scale), settings))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "ckks") -> Ckks:
        """Read a secret key that `secret_bytes` wrote."""
        ring, settings, key, context, public = read_key(data, name, secret=True)
        return cls(LatticeSecret(name, ring, settings, key, context, public))

    @property
    def tolerance(self) -> float:
        """Bound the error of one opened term: 2**16 units of the scale, times the bound."""
        return float(self._secret.settings["bound"] * 2.0 ** (16 - self._secret.ring.scale))

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
        return adder_from_bytes(self.public_bytes(), self.name)

    def client_key(self) -> CkksKey:
        """Deal a client's half."""
        return CkksKey(self._secret)


def adder_from_bytes(data: bytes, name: str = "ckks") -> LatticeAdder:
    """Make the server's half from its part of a key."""
    ring, settings, key, _, public = read_key(data, name, secret=False)
    mark = LatticeSecret(name, ring, settings, key, None, public).mark
    return LatticeAdder(name, ring, mark, public, settings["max_terms"])
