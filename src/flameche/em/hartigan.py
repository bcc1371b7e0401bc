"""The E-step with a client's own part taken out: which cluster it would join at the least cost.

Hartigan, "Clustering Algorithms", 1975: a point moves where the sum of squares within clusters falls. To
join n others costs n / (n + 1) of the squared distance to their mean. Without this factor a client of a
small cluster would lean towards a large one, whose mean is less noisy.
"""

from __future__ import annotations

import numpy as np

from flameche.em.spherical import NOISE, Centroids, Floats


def joining_cost(phi: Floats, weight: Floats, centroids: Centroids, inside: Floats | None = None) -> Floats:
    """Compute what it costs each client to be in each cluster: phi [C B F], weight [C B] -> [C K].

    inside [C K] is one where a cluster's sum holds the client's own term. A block that nobody else in a
    cluster has is taken from all other clients. An empty cluster costs infinitely much; who is alone in
    one, nothing.
    """
    mass = np.where(centroids.mass > NOISE, centroids.mass, 0.0)
    total = mass[:, :, None] * centroids.theta
    own = np.zeros((len(phi), len(centroids))) if inside is None else inside
    square = np.einsum("cbf,cbf->cb", phi, phi)

    def cost(sum_: Floats, behind: Floats, mine: Floats) -> tuple[Floats, Floats]:
        """Give the cost block by block, and the weight of the others behind it: both [C B]."""
        part = mine[:, None] * weight
        left = np.maximum(behind - part, 0.0)
        known = left > NOISE
        scale = np.divide(1.0, left, out=np.zeros_like(left), where=known)
        dots = np.einsum("cbf,bf->cb", phi, sum_) - part * square
        length = np.einsum("bf,bf->b", sum_, sum_) - 2 * part * (dots + part * square) + part**2 * square
        gap = np.maximum(square - 2 * dots * scale + length * scale**2, 0.0)
        return np.where(known, weight * left / np.maximum(left + weight, NOISE) * gap, 0.0), left

    everybody, company = cost(total.sum(axis=0), mass.sum(axis=0), own.sum(axis=1))
    costs = np.empty((len(phi), len(centroids)))
    for k in range(len(centroids)):
        blocks, left = cost(total[k], mass[k], own[:, k])
        alone = (left <= NOISE).all(axis=1)
        lent = (left <= NOISE) & (company > NOISE)
        costs[:, k] = np.where(lent, everybody, blocks).sum(axis=1)
        costs[alone, k] = np.where(own[alone, k] > 0, 0.0, np.inf)
    return costs
