"""Whether a cell agrees with the paper: the one rule, for tables, remarks, the page and the documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["within", "outside", "untold"]
ROUNDING = 0.005  # half a unit of the second digit, to which the paper prints
FEWEST = 3  # seeds of a mean that is compared

RULE = (
    "A cell is within the paper's spread if the mean of our seeds is no further from the paper's mean than "
    f"the standard deviation that the paper prints, {ROUNDING} granted for rounding to two digits; else it "
    f"is outside. Where we ran fewer than {FEWEST} seeds, or the paper prints no standard deviation, there "
    "are too few runs to tell."
)


@dataclass(frozen=True)
class Verdict:
    """How a cell stands to the paper's; beyond: its difference is larger than the paper's spread anyway."""

    state: State
    difference: float
    beyond: bool


def judge(ours: float, seeds: int, paper: float, sd: float | None) -> Verdict:
    """Compare a mean of ours with what the paper printed.

    This describes and tests nothing: the paper's five seeds, and ours, are too few for a test to find any but
    large differences, so that "no significant difference" would pass for agreement where spreads are wide. A
    single seed is one draw, of which a third would lie outside even if nothing differed; of two, the spread
    is as good as unknown. Three are the fewest that the paper itself averages (its reclustering table). Where
    settings are pooled, seeds are those of the setting that has the fewest.

    Args:
        ours: the mean of our runs.
        seeds: how many seeds it is the mean of.
        paper: the mean that the paper printed.
        sd: the standard deviation that it printed, None if it did not.

    Returns:
        "within" or "outside" the paper's spread, or "untold" where there are too few runs to tell.
    """
    difference = ours - paper
    beyond = abs(difference) > (sd or 0.0) + ROUNDING
    if seeds < FEWEST or sd is None:
        return Verdict("untold", difference, beyond)
    return Verdict("outside" if beyond else "within", difference, beyond)


def counted(verdicts: Iterable[Verdict]) -> str:
    """Say how many cells are in each state."""
    states = Counter(verdict.state for verdict in verdicts)
    within = f"{states['within']} of {states.total()} cells within the paper's spread"
    return f"{within}, {states['outside']} outside, {states['untold']} with too few runs to tell"
