"""Whether two means differ by more than their spreads allow: Welch's t-test from what is printed of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy import stats

ALPHA = 0.05
ROUNDING = 0.005  # half a unit of the second digit, to which the paper prints

JUDGED = (
    f"Welch's t-test at {ALPHA:.0%}, from both means, standard deviations (n - 1) and numbers of seeds; the "
    "paper's are 5, times 3 where it pools settings, and 3 for reclustering. It prints two digits, so half a "
    "unit of the last one is granted to its mean and is the least that its deviation can be. One seed of "
    "ours is judged as a further draw from the paper's. A value without a deviation in the paper, or of "
    f"other settings than the paper's, is not judged. Of cells that do not differ, {ALPHA:.0%} are "
    "coloured by chance."
)


@dataclass(frozen=True)
class Sample:
    """A mean, the standard deviation behind it (None: not known), and of how many values it is."""

    mean: float
    sd: float | None
    count: int


@dataclass(frozen=True)
class Verdict:
    """How ours stands to theirs: the difference of means, and p where it could be judged."""

    kind: Literal["higher", "lower", "same", "open"]
    difference: float
    p: float | None = None


def judge(ours: Sample, theirs: Sample, rounding: float = ROUNDING, alpha: float = ALPHA) -> Verdict:
    """Compare two means; `rounding` is what theirs may be off, in mean and deviation, by being printed."""
    difference = ours.mean - theirs.mean
    if theirs.sd is None or theirs.count < 2 or ours.count < 1 or (ours.count > 1 and ours.sd is None):
        return Verdict("open", difference)
    gap = max(0.0, abs(difference) - rounding)
    p = _two_sided(gap, ours, Sample(theirs.mean, max(theirs.sd, rounding), theirs.count))
    kind: Literal["higher", "lower", "same"] = "higher" if difference > 0 else "lower"
    return Verdict(kind if p < alpha else "same", difference, p)


def _two_sided(gap: float, ours: Sample, theirs: Sample) -> float:
    """Give the probability of a gap at least as large between two draws from one distribution."""
    b = (theirs.sd or 0.0) ** 2 / theirs.count
    if ours.count == 1:
        error, freedom = (theirs.sd or 0.0) ** 2 + b, theirs.count - 1.0
    else:
        a = (ours.sd or 0.0) ** 2 / ours.count
        error = a + b
        weights = a**2 / (ours.count - 1) + b**2 / (theirs.count - 1)
        freedom = error**2 / weights if weights else math.inf
    if error == 0:
        return 1.0 if gap == 0 else 0.0
    return float(2 * stats.t.sf(gap / math.sqrt(error), freedom))
