"""Who takes part when: drawn from the seed alone, the same for every method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flameche.rng import stream


def draw_participants(seed: int, round: int, clients: int, participants: int) -> NDArray[np.int64]:
    """Draw the clients of one round, without replacement, in ascending order."""
    chosen = stream(seed, "schedule", round).choice(clients, size=participants, replace=False)
    return np.sort(chosen).astype(np.int64)
