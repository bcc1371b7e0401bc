"""Fixed point: floats to integers whose sums are exact, with the room for every sum set aside beforehand.

A codec declares the largest magnitude of a value, the largest number of terms in a sum, and the bits of a
slot. The fraction takes what is left. A value out of range, or a sum of more terms than declared, is
refused before sealing: decoded sums equal the integer sums, always.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flameche.errors import OutOfRange, OverflowBudget, SealError

LEAST_FRACTION = 10  # bits; below, rounding could move a client to another cluster
MOST_FRACTION = 40
# BFV's plaintext moduli by the bits of a slot: the largest primes below 2**36 and 2**44 that are 1 mod twice
# the ring's degree, 4096 and 8192, so that slots exist.
PLAIN_MODULUS = {36: 68719403009, 44: 17592186028033}
WANTED_FRACTION = 20  # bits; where the small ring leaves fewer, the large one serves


@dataclass(frozen=True)
class FixedPoint:
    """x -> round(x * 2**fraction_bits), |x| <= bound, sums of at most max_terms."""

    bound: float
    max_terms: int
    fraction_bits: int

    @classmethod
    def fitting(cls, bound: float, max_terms: int, slot_bits: int, limit: int | None = None) -> FixedPoint:
        """Choose the finest fraction for which sums of max_terms values stay within signed slots.

        `limit` is the largest sum that a slot holds, where that is not 2**(slot_bits - 1) - 1.
        """
        most = 2 ** (slot_bits - 1) - 1 if limit is None else limit
        for fraction in range(MOST_FRACTION, LEAST_FRACTION - 1, -1):
            made = cls(bound, max_terms, fraction)
            if made.largest_sum <= most:
                return made
        raise OverflowBudget(
            f"sums of {max_terms} terms up to {bound:g} leave fewer than {LEAST_FRACTION} fraction bits of "
            f"{slot_bits}; lower scheme.bound or take a scheme with wider slots"
        )

    @property
    def largest_sum(self) -> int:
        """Tell the largest magnitude of a sum, as an integer, rounding included."""
        return math.ceil(self.bound * 2.0**self.fraction_bits + 0.5) * self.max_terms

    @property
    def slot_bits(self) -> int:
        """Count the bits that a signed sum may need."""
        return self.largest_sum.bit_length() + 1

    @property
    def tolerance(self) -> float:
        """Bound the error of one decoded term: half a unit in the last place."""
        return 0.5 * 2.0**-self.fraction_bits

    def encode(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Round to integers [S]; OverflowBudget names the value that does not fit."""
        check_range(x, self.bound)
        return np.rint(x * 2.0**self.fraction_bits).astype(np.int64)

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Read integer sums [S] back as floats."""
        return total.astype(np.float64) * 2.0**-self.fraction_bits

    def check_terms(self, terms: int) -> None:
        """Refuse a sum of more terms than the slots were made for."""
        if terms > self.max_terms:
            raise OverflowBudget(
                f"a sum of {terms} terms, but slots were made for {self.max_terms}; "
                "make the scheme for as many clients as there are"
            )


def check_range(x: NDArray[np.float64], bound: float) -> None:
    """Refuse, before sealing, values [S] that are no numbers or exceed the declared bound."""
    if not np.isfinite(x).all():
        raise SealError("a vector with NaN or infinite values cannot be sealed; check the client's data")
    if len(x) and (largest := float(np.abs(x).max())) > bound:
        raise OutOfRange(f"a value of magnitude {largest:.6g} exceeds the declared bound {bound:g}")


def exact_codec(bound: float, max_terms: int) -> tuple[FixedPoint, int]:
    """Choose the codec that BFV, Paillier and secure aggregation share, and its slot bits in BFV.

    One codec for all of them, so that they add the same integers.
    """
    for bits, modulus in PLAIN_MODULUS.items():
        try:
            codec = FixedPoint.fitting(bound, max_terms, bits, limit=(modulus - 1) // 2)
        except OverflowBudget:
            if bits == max(PLAIN_MODULUS):
                raise
            continue
        if codec.fraction_bits >= WANTED_FRACTION or bits == max(PLAIN_MODULUS):
            return codec, bits
    raise AssertionError("PLAIN_MODULUS is empty")
