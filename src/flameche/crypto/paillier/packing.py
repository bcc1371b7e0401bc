"""The public key: its modulus, and how encoded numbers lie in the slots of a plaintext."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field
from functools import cached_property

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from flameche.crypto.api import KeyInfo
from flameche.crypto.codec import LEAST_FRACTION, MOST_FRACTION, FixedPoint
from flameche.crypto.envelope import fingerprint
from flameche.errors import ConfigError, OverflowBudget, SealError

NAME = "paillier"
CHECK_BITS = 32  # of the count of terms, as in the envelope; nonsense passes once in 2^32
WIDEST_SLOT = 62  # bits; sums are read as int64


@dataclass(frozen=True)
class PaillierPublic:
    """What the server may know: the modulus n and how numbers lie in a plaintext."""

    n: mpz = field(repr=False)
    codec: FixedPoint

    def __post_init__(self) -> None:
        codec = self.codec
        if not (math.isfinite(codec.bound) and codec.bound > 0 and 1 <= codec.max_terms < 2**CHECK_BITS):
            raise ConfigError(f"a bound above 0 and 1 to 2^{CHECK_BITS} - 1 terms are needed, got {codec}")
        if not LEAST_FRACTION <= codec.fraction_bits <= MOST_FRACTION:
            raise ConfigError(f"{LEAST_FRACTION} to {MOST_FRACTION} fraction bits are needed, got {codec}")
        if self.slot_bits > WIDEST_SLOT or self.slots < 1:
            raise OverflowBudget(
                f"sums of {codec.max_terms} terms up to {codec.bound:g} need slots of {self.slot_bits} bits, "
                f"at most {min(WIDEST_SLOT, self.key_bits - 1 - CHECK_BITS)} are possible; lower scheme.bound"
            )

    @property
    def key_bits(self) -> int:
        """Count the bits of n."""
        return int(self.n.bit_length())

    @cached_property
    def square(self) -> mpz:
        """Square n, which gives the modulus of ciphertexts."""
        return self.n * self.n

    @cached_property
    def key_name(self) -> str:
        """Name the key in public."""
        return name_of(self.n)

    @cached_property
    def mark(self) -> bytes:
        """Name key and codec together, as sealed vectors do."""
        return fingerprint(NAME, version=1, key=self.key_name, **asdict(self.codec))

    def info(self, secret: bool) -> KeyInfo:
        """Tell what anybody may know of this key's secret or public part."""
        bits, codec = self.key_bits, self.codec
        words = f"modulus of {bits} bits"
        return KeyInfo(NAME, secret, codec.max_terms, codec.bound, words, self.mark.hex(), bits)

    @property
    def largest(self) -> int:
        """The largest magnitude of an encoded value."""
        return round(math.ldexp(self.codec.bound, self.codec.fraction_bits))

    @property
    def offset(self) -> int:
        """What makes every value nonnegative: the next power of two."""
        return 1 << max(self.largest - 1, 0).bit_length()

    @cached_property
    def slot_bits(self) -> int:
        """Count the bits that the largest sum of max_terms values with their offsets needs."""
        return (self.codec.max_terms * (self.offset + self.largest)).bit_length()

    @cached_property
    def slots(self) -> int:
        """Count the numbers in one ciphertext."""
        return (self.key_bits - 1 - CHECK_BITS) // self.slot_bits

    @property
    def width(self) -> int:
        """Count the bytes of one ciphertext."""
        return -(-2 * self.key_bits // 8)

    def used(self, numbers: int) -> list[int]:
        """Spread numbers over ciphertexts; an empty vector has one, which still counts its terms."""
        full, rest = divmod(numbers, self.slots)
        return [self.slots] * full + ([rest] if rest or not full else [])

    def to_plaintexts(self, values: NDArray[np.int64]) -> list[mpz]:
        """Pack encoded values [S] and the count of one term."""
        used = self.used(len(values))
        bits = np.zeros((len(used) * self.slots, self.slot_bits), np.uint8)
        octets = (values + self.offset).astype("<u8").view(np.uint8).reshape(-1, 8)
        bits[: len(values)] = np.unpackbits(octets, axis=1, count=self.slot_bits, bitorder="little")
        rows = np.packbits(bits.reshape(len(used), -1), axis=1, bitorder="little")
        return [
            mpz.from_bytes(row.tobytes(), "little") + (mpz(1) << k * self.slot_bits)
            for row, k in zip(rows, used, strict=True)
        ]

    def from_plaintexts(self, plaintexts: list[mpz], terms: int, numbers: int) -> NDArray[np.int64]:
        """Unpack the sums [S] of `terms` encoded values; SealError if the count or a slot cannot be."""
        used = self.used(numbers)
        size = (self.slots * self.slot_bits + 7) // 8
        rows = bytearray()
        for plaintext, k in zip(plaintexts, used, strict=True):
            if plaintext >> k * self.slot_bits != terms:
                raise SealError("a sum that does not count its terms: altered or sealed under another key")
            rows += gmpy2.f_mod_2exp(plaintext, k * self.slot_bits).to_bytes(size, "little")
        octets = np.frombuffer(rows, np.uint8).reshape(len(used), size)
        bits = np.unpackbits(octets, axis=1, count=self.slots * self.slot_bits, bitorder="little")
        wide = np.zeros((numbers, 64), np.uint8)
        wide[:, : self.slot_bits] = bits.reshape(-1, self.slot_bits)[:numbers]
        sums = np.packbits(wide, axis=1, bitorder="little").reshape(-1).view("<i8") - terms * self.offset
        if numbers and int(np.abs(sums).max()) > terms * self.largest:
            raise SealError("a sum that its terms cannot reach: altered or sealed under another key")
        return sums.astype(np.int64)


def name_of(n: mpz) -> str:
    """Name a key in public: half of a hash of its n."""
    return hashlib.sha256(f"{n:x}".encode()).hexdigest()[:32]
