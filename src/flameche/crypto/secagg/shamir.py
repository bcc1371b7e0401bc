"""Shamir's secret sharing of 32 bytes (Shamir, *How to Share a Secret*, CACM 1979).

A random polynomial of degree t-1 over the integers mod P has the secret at 0 and a holder's share at the
holder's point: t shares determine it, t-1 say nothing.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence

from flameche.errors import SealError

P = 2**256 + 297  # the smallest prime above 2^256, so that any 32 bytes are an element
SECRET = 32
SHARE = 33


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """Share a secret [32 bytes] among distinct points >= 1, 33 bytes each; any `threshold` suffice."""
    if len(secret) != SECRET or not 1 <= threshold <= len(points) or min(points) < 1:
        raise ValueError(f"cannot share {len(secret)} bytes {threshold} of {len(points)}")
    coefficients = [secrets.randbelow(P) for _ in range(threshold - 1)] + [int.from_bytes(secret, "big")]
    return [evaluate(coefficients, point).to_bytes(SHARE, "big") for point in points]


def evaluate(coefficients: Iterable[int], point: int) -> int:
    """Evaluate a polynomial mod P, highest power first (Horner)."""
    value = 0
    for coefficient in coefficients:
        value = value * point + coefficient  # points are small: one reduction at the end is faster than t
    return value % P


def weights(points: Sequence[int]) -> list[int]:
    """Compute Lagrange's weights w_j = Π_m x_m / (x_m - x_j) mod P: weighted shares add up to the secret."""
    whole = math.prod(points)
    below = [x * math.prod(other - x for other in points if other != x) for x in points]
    common = math.lcm(*below)
    scale = whole * pow(common, -1, P) % P  # a single inversion for all weights
    return [common // part * scale % P for part in below]


def combine(by: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """Put a secret together from shares and the `weights` of their points; SealError if there is none."""
    values = [int.from_bytes(share, "big") for share in shares]
    if any(value >= P for value in values):
        raise SealError("a share lies outside the field")
    secret = sum(weight * value for weight, value in zip(by, values, strict=True)) % P
    if secret >> (8 * SECRET):
        raise SealError("the shares do not belong to one secret")
    return secret.to_bytes(SECRET, "big")
