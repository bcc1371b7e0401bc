"""What a benchmark of encryption measures: sizes, repeats, the vectors, and what counts as a right sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.errors import SealError
from flameche.rng import stream

BOUND = 64.0  # the default of scheme.bound

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]  # what, done, of how many
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Sizes and time limits; `dims` are the metadata of LeNet-5 and of ResNet-18, and LeNet-5 itself."""

    dims: tuple[int, ...] = (840, 5120, 61706)
    clients: int = 100
    repeats: int = 7
    budget: float = 12.0  # seconds for one figure; what does not fit is repeated less often
    phe_sample: int = 50  # elements
    round_clients: int = 20
    round_runs: int = 7
    large_paillier: bool = True

    @classmethod
    def quick(cls) -> Plan:
        """Measure in about half a minute."""
        return cls(dims=(840, 5120), repeats=3, budget=1.5, phe_sample=10, round_runs=3, large_paillier=False)


def random_vectors(clients: int, d: int) -> Floats:
    """Draw vectors [clients d] of the size of metadata."""
    return stream(0, "bench", d).uniform(-1.0, 1.0, (clients, d))


def checked_error(what: str, opened: Floats, expected: Floats, allowed: float) -> float:
    """Return the largest error of an opened sum [d]; SealError if it is more than the scheme states."""
    error = float(np.abs(opened - expected).max())
    if not error <= allowed + 1e-12:  # the plain sum is rounded too
        raise SealError(f"{what}: an opened sum is off by {error:.3g}, at most {allowed:.3g} is right")
    return error
