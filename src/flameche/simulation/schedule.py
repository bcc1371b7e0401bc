"""Who takes part when: drawn from the seed alone, the same for every method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flameche.rng import stream


def draw_participants(
    seed: int, round: int, clients: int, participants: int, present: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Draw the clients of one round, without replacement, in ascending order.

    Of those `present`, where not all are; as many as ever, while there are so many.
    """
    there = np.arange(clients) if present is None else present
    count = min(participants, len(there))
    chosen = stream(seed, "schedule", round).choice(len(there), size=count, replace=False)
    return np.sort(there[chosen]).astype(np.int64)
