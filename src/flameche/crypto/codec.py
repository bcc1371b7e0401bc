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

from flameche.errors import OverflowBudget, SealError

LEAST_FRACTION = 10  # bits; below, rounding could move a client to another cluster
MOST_FRACTION = 40


@dataclass(frozen=True)
class FixedPoint:
    """x -> round(x * 2**fraction_bits), |x| <= bound, sums of at most max_terms."""

    bound: float
    max_terms: int
    fraction_bits: int

    @classmethod
    def fitting(cls, bound: float, max_terms: int, slot_bits: int) -> FixedPoint:
        """Choose the finest fraction for which sums of max_terms values stay within signed slots."""
        room = slot_bits - 1 - math.ceil(math.log2(bound * max_terms + 1))
        if room < LEAST_FRACTION:
            raise OverflowBudget(
                f"sums of {max_terms} terms up to {bound:g} leave {room} fraction bits of {slot_bits}, "
                f"at least {LEAST_FRACTION} are needed; lower scheme.bound or take a scheme with wider slots"
            )
        return cls(bound, max_terms, min(room, MOST_FRACTION))

    @property
    def slot_bits(self) -> int:
        """Count the bits that a signed sum may need."""
        return self.fraction_bits + 1 + math.ceil(math.log2(self.bound * self.max_terms + 1))

    @property
    def tolerance(self) -> float:
        """Bound the error of one decoded term: half a unit in the last place."""
        return 0.5 * 2.0**-self.fraction_bits

    def encode(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Round to integers [S]; OverflowBudget names the value that does not fit."""
        if not np.isfinite(x).all():
            raise SealError("a vector with NaN or infinite values cannot be sealed; check the client's data")
        if len(x) and (largest := float(np.abs(x).max())) > self.bound:
            raise OverflowBudget(
                f"a value of magnitude {largest:.6g} exceeds the declared bound {self.bound:g}; "
                "raise scheme.bound on all clients, or scale the metadata (method.unit_norm = true)"
            )
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
