"""From many small clusters to few: Ward's merging, from the clusters' sums alone.

Ward, "Hierarchical grouping to optimize an objective function", JASA 58, 1963. Two clusters merge at the cost
by which the squared distances within clusters grow; block by block, since clients may lack classes.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from flameche.em.spherical import Centroids, Floats, Ints


def merge_cost(centroids: Centroids) -> Floats:
    """Compute what merging each pair of clusters costs [R R]; infinite for one with itself."""
    cost: Floats = by_block(centroids, centroids).sum(axis=2)
    np.fill_diagonal(cost, np.inf)
    return cost


def by_block(some: Centroids, others: Centroids) -> Floats:
    """Compute what merging each of some clusters with each of others costs, in each block [A R B]."""
    both = some.mass[:, None] + others.mass[None]
    weight = np.divide(some.mass[:, None] * others.mass[None], both, out=np.zeros_like(both), where=both > 0)
    squares, theirs = (np.einsum("rbf,rbf->rb", each.theta, each.theta) for each in (some, others))
    dots = np.matmul(some.theta.transpose(1, 0, 2), others.theta.transpose(1, 2, 0)).transpose(1, 2, 0)
    cost: Floats = weight * np.maximum(squares[:, None] + theirs[None] - 2 * dots, 0.0)
    return cost


def join(centroids: Centroids, label: Ints, count: int) -> Centroids:
    """Join clusters by label [R], as their members' sums would be joined: `count` centroids."""
    mass, total = np.zeros((count, centroids.mass.shape[1])), np.zeros((count, *centroids.theta.shape[1:]))
    np.add.at(mass, label, centroids.mass)
    np.add.at(total, label, centroids.theta * centroids.mass[:, :, None])
    theta = np.divide(total, mass[:, :, None], out=np.zeros_like(total), where=mass[:, :, None] > 0)
    return Centroids(theta, mass)


def merge_down(centroids: Centroids, count: int) -> Ints:
    """Merge the cheapest pair until `count` clusters are left; tell which each of the R is in [R].

    Empty clusters cost nothing and go first. Ties go to the lower indices, so that every client agrees.
    """
    label = np.arange(len(centroids))
    now, gone = join(centroids, label, len(label)), np.zeros(len(label), bool)
    cost = merge_cost(now)
    for _ in range(len(label) - count):
        i, j = sorted(divmod(int(cost.argmin()), len(label)))
        label[label == j], gone[j] = i, True
        mine = label == i
        one = join(Centroids(centroids.theta[mine], centroids.mass[mine]), np.zeros(mine.sum(), np.int64), 1)
        now.theta[i], now.mass[i], now.mass[j] = one.theta[0], one.mass[0], 0.0
        cost[i] = cost[:, i] = np.where(gone, np.inf, by_block(one, now)[0].sum(axis=1))
        cost[i, i], cost[j], cost[:, j] = np.inf, np.inf, np.inf
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


def keep_names(label: Ints, before: Ints, sizes: Floats) -> Ints:
    """Rename labels [R] so that they agree with earlier ones as far as they can, by members [R]."""
    count = int(max(label.max(), before.max())) + 1
    shared = np.zeros((count, count))
    np.add.at(shared, (label, before), sizes)
    new, old = linear_sum_assignment(-shared)
    names = np.zeros(count, np.int64)
    names[new] = old
    return names[label]
