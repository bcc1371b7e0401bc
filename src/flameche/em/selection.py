"""How many clusters there are: which mergers the clients that had no part in the clustering object to.

A clustering with many clusters is merged pair by pair (`ward.py`), down to one. For each merger, clients that
were left out of the fit say by how much their error grows: g_i = e_i(after) - e_i(before). Where two clusters
are one group, g_i is noise around zero or below (the merged mean knows more); where they are two, all their
clients lose. A merger is refused if both hold (three sums decide it):

    sum g > SURE * sqrt(sum g^2)      the growth is no accident of few clients,
    sum g > AGREED * sum |g|          and nearly all of it goes one way.

The second tells a broad group from two groups: halving a broad one helps held-out clients too, but not all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flameche.em.spherical import Floats

SURE, AGREED = 2.0, 0.87
CLEAR = 0.1  # by which the agreement of every merger stays away from AGREED

Clear = Literal["clear", "close", "no structure"]


@dataclass(frozen=True)
class Merger:
    """What held-out clients say of going from k + 1 clusters to k."""

    k: int
    gain: float  # sums over clients of g, g^2, |g|
    squares: float
    absolute: float

    @property
    def sureness(self) -> float:
        """Give sum g / sqrt(sum g^2): about a number of standard errors."""
        return self.gain / float(np.sqrt(self.squares)) if self.squares > 0 else 0.0

    @property
    def agreement(self) -> float:
        """Give sum g / sum |g|: 1 if every client loses, -1 if every client wins."""
        return self.gain / self.absolute if self.absolute > 0 else 0.0

    @property
    def refused(self) -> bool:
        """Tell whether the two clusters are to stay apart."""
        return self.sureness > SURE and self.agreement > AGREED


def merger_terms(errors: Floats, scale: float, cut: float) -> Floats:
    """Write each client's part in the sums: errors [C T], from most clusters to one -> [C 3 (T - 1)].

    g is scaled and cut, so that fixed point holds it, its square and its magnitude.
    """
    grown = np.clip(np.diff(errors, axis=1) * scale, -cut, cut)
    return np.concatenate([grown, grown**2, np.abs(grown)], axis=1)


def mergers(totals: Floats, counts: Sequence[int]) -> list[Merger]:
    """Read the sums of `merger_terms` [3 (T - 1)] of steps with so many clusters [T], from most to one.

    A step that loses several clusters at once speaks for the number it began with.
    """
    gain, squares, absolute = totals.reshape(3, -1)
    return [
        Merger(k - 1, float(gain[i]), float(squares[i]), float(absolute[i]))
        for i, k in enumerate(counts[:-1])
    ]


def recommend(judged: list[Merger]) -> int:
    """Choose K: merge from the most clusters down, and stop before the first merger that is refused."""
    for merger in sorted(judged, key=lambda m: -m.k):
        if merger.refused:
            return merger.k + 1
    return 1


def clearness(judged: list[Merger], chosen: int) -> Clear:
    """Say how clear a choice is: whether the mergers around it are far from the border between yes and no."""
    kept = [m for m in judged if m.k == chosen - 1]
    made = [m for m in judged if m.k >= chosen and m.sureness > SURE / 2]
    far = all(m.agreement >= min(AGREED + CLEAR, 0.95) and m.sureness > 1.25 * SURE for m in kept)
    far = far and all(m.agreement <= AGREED - CLEAR for m in made)
    if not far:
        return "close"
    return "clear" if chosen > 1 else "no structure"
