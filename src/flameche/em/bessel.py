"""Bessel functions for directions in many dimensions, in logarithms: no overflow, no underflow.

Abramowitz and Stegun, "Handbook of Mathematical Functions", 9.7.7, for large orders, where exp(-x) I(x)
underflows; scipy elsewhere.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ive

from flameche.em.spherical import Floats

LEAST = 1e-6  # of a concentration: as good as uniform
NEWTON = 50  # steps at most; a handful do


def log_i(order: float, x: Floats) -> Floats:
    """Compute log I_order(x) for x > 0."""
    scaled = ive(order, x)
    fits = scaled > 1e-290
    plain = np.log(np.where(fits, scaled, 1.0)) + x
    return plain if fits.all() else np.where(fits, plain, _large_order(order, x))


def _large_order(order: float, x: Floats) -> Floats:
    """Expand log I_order(x) uniformly in x, to the third power of 1 / order."""
    n = max(order, 1.0)  # only large orders underflow
    root = np.hypot(1.0, x / n)
    t = 1.0 / root
    eta = root + np.log(x / n) - np.log1p(root)
    u1 = (3 * t - 5 * t**3) / 24
    u2 = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    u3 = (30375 * t**3 - 369603 * t**5 + 765765 * t**7 - 425425 * t**9) / 414720
    series = 1 + u1 / n + u2 / n**2 + u3 / n**3
    logs: Floats = n * eta - 0.5 * np.log(2 * np.pi * n * root) + np.log(series)
    return logs


def mean_length(dimension: int, kappa: Floats) -> Floats:
    """Compute A_p(kappa), the length of the mean of unit vectors with concentration kappa."""
    order = dimension / 2 - 1
    low, high = ive(order, kappa), ive(order + 1, kappa)
    fits = (low > 1e-290) & (high > 1e-290)
    ratio: Floats = np.divide(high, low, out=np.zeros_like(low), where=fits)
    if fits.all():
        return ratio
    return np.where(fits, ratio, np.exp(_large_order(order + 1, kappa) - _large_order(order, kappa)))


def concentration(dimension: int, length: Floats) -> Floats:
    """Find the kappa that unit vectors have whose mean is this long: A_p(kappa) = length, in [0, 1).

    Newton's method, as Sra, "A short note on parameter approximation for von Mises-Fisher distributions",
    Computational Statistics 27, 2012, begun where Banerjee et al., JMLR 6, 2005, end.
    """
    p = dimension
    kappa = np.maximum(length * (p - length**2) / (1 - length**2), LEAST)
    for _ in range(NEWTON):
        there = mean_length(p, kappa)
        slope = 1 - there**2 - (p - 1) / kappa * there
        step = np.divide(there - length, slope, out=np.zeros_like(kappa), where=slope > 0)
        after = np.maximum(kappa - step, np.maximum(kappa / 2, LEAST))
        done = np.abs(after - kappa) <= 1e-12 * kappa
        kappa = after
        if done.all():
            break
    return kappa


def log_normaliser(dimension: int, kappa: Floats) -> Floats:
    """Compute log c_p(kappa), with which exp(kappa mu . x) integrates to one over the sphere."""
    order = dimension / 2 - 1
    logs: Floats = order * np.log(kappa) - dimension / 2 * np.log(2 * np.pi) - log_i(order, kappa)
    return logs
