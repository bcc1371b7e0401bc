"""The paper's rule against empty clusters: the worst cluster shares its clients with the empty ones.

Algorithm 1, lines 23-30. Which clusters count as empty is the caller's choice (over all seen clients, as
printed, or over this round's participants, which works better).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import Floats, Ints


def worst_cluster(error_sum: Floats, count: Floats, empty: Ints) -> int:
    """Find the non-empty cluster with the highest average error.

    error_sum [K], count [K] -> k*. Ties go to the lower index.
    """
    mean = np.divide(error_sum, count, out=np.full(len(count), -np.inf), where=count > 0)
    mean[empty] = -np.inf
    return int(mean.argmax())


def redistribute(members: Ints, targets: Ints, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a new cluster for each member, uniformly and independently among the targets."""
    return targets[rng.integers(len(targets), size=len(members))]
