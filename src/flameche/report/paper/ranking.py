"""Aligned ranks (Hodges and Lehmann, 1962) and Friedman's test, over blocks in which all methods were run.

Each block's mean is taken from its values; what is left is ranked over all blocks at once, 1 is best. The
test of aligned ranks, and the standard error of a difference of mean ranks, sqrt(k (n + 1) / 6), are as in
Garcia, Fernandez, Luengo and Herrera (Information Sciences 180, 2010).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range

Floats = NDArray[np.float64]
ALPHA = 0.05


@dataclass(frozen=True)
class Test:
    """A statistic and the probability of one as large if all methods were alike."""

    statistic: float
    p: float


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of k methods over n blocks, and what tells them apart."""

    aligned: Floats  # [k]
    plain: Floats  # [k], within blocks
    aligned_test: Test
    friedman: Test
    difference: float  # of mean aligned ranks, from which on two methods differ (Nemenyi, alpha = 0.05)


def rank(values: Floats) -> Ranking:
    """Rank values [n k], larger is better; at least two blocks and two methods."""
    blocks, methods = values.shape
    aligned = aligned_ranks(values)
    within = np.apply_along_axis(rankdata, 1, -values)
    quantile = float(studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    return Ranking(
        aligned.mean(axis=0),
        within.mean(axis=0),
        aligned_test(aligned),
        friedman(within),
        quantile * math.sqrt(methods * (blocks + 1) / 6),
    )


def aligned_ranks(values: Floats) -> Floats:
    """Rank [n k] all values together, 1 for the largest, after each block's mean is taken from its own."""
    # A constant added to a block must change nothing, not even ties: digits that rounding made are cut.
    aligned = np.round(values - values.mean(axis=1, keepdims=True), 9)
    return np.asarray(rankdata(-aligned), np.float64).reshape(values.shape)


def aligned_test(ranks: Floats) -> Test:
    """Test aligned ranks [n k]: by chance methods' sums are alike."""
    n, k = ranks.shape
    of_methods, of_blocks, total = ranks.sum(axis=0), ranks.sum(axis=1), n * k
    above = (k - 1) * (float((of_methods**2).sum()) - k * n**2 / 4 * (total + 1) ** 2)
    below = total * (total + 1) * (2 * total + 1) / 6 - float((of_blocks**2).sum()) / k
    return _by_chi_square(above / below if below > 0 else 0.0, k)


def friedman(ranks: Floats) -> Test:
    """Friedman's test of ranks within blocks [n k], corrected for ties."""
    n, k = ranks.shape
    spread = float(((ranks.sum(axis=0) - n * (k + 1) / 2) ** 2).sum())
    variance = float((ranks**2).sum()) - n * k * (k + 1) ** 2 / 4
    return _by_chi_square((k - 1) * spread / variance if variance > 0 else 0.0, k)


def alike(mean_ranks: Floats, difference: float) -> list[tuple[int, int]]:
    """Find the longest stretches of methods, in order of rank, that do not differ: (first, last) places."""
    ordered = np.sort(mean_ranks)
    found: list[tuple[int, int]] = []
    for first in range(len(ordered)):
        last = int(np.searchsorted(ordered, ordered[first] + difference, side="left")) - 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def _by_chi_square(statistic: float, methods: int) -> Test:
    return Test(statistic, float(chi2.sf(statistic, methods - 1)))
