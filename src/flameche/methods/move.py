"""A split-merge move on its way: what has to be known of it from one round to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flameche.em.spherical import Floats, Ints
from flameche.methods.base import Arrays

TURNING, PARTING, TESTING = range(3)  # its stages
KEPT = ("direction", "before", "halves", "side", "fitted", "pairs", "verdict")


@dataclass
class Move:
    """A split of `cluster` and a merger, on its way through the stages."""

    cluster: int
    direction: Floats  # [D]
    before: Floats  # [D], the power iteration's sums of earlier rounds
    halves: Floats  # [2 S], sums of statistics of earlier rounds
    side: Ints  # [C], 0 or 1 for members that were parted, else -1
    fitted: Ints  # [C], 1 for clients that had a part in making it
    stage: int = TURNING
    heard: int = 0
    waited: int = 0  # rounds in this stage
    pairs: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # [P 2], mergers to choose from
    verdict: Floats = field(default_factory=lambda: np.zeros(1))  # [2 P + 1]

    def arrays(self) -> Arrays:
        """Give all of it, for a checkpoint."""
        arrays: Arrays = {f"move/{name}": getattr(self, name) for name in KEPT}
        arrays["move/numbers"] = np.array([self.cluster, self.stage, self.heard, self.waited])
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Move | None:
        """Take back what `arrays` gave, if there was a move; those of earlier versions had one pair each."""
        if "move/pairs" not in arrays:
            return None
        cluster, stage, heard, waited = (int(n) for n in arrays["move/numbers"])
        kept: dict[str, Any] = {name: arrays[f"move/{name}"].copy() for name in KEPT}
        return cls(cluster=cluster, stage=stage, heard=heard, waited=waited, **kept)
