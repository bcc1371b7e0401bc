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
    theta, mass = centroids.theta, centroids.mass
    both = mass[:, None] + mass[None]
    weight = np.divide(mass[:, None] * mass[None], both, out=np.zeros_like(both), where=both > 0)
    squares = np.einsum("rbf,rbf->rb", theta, theta)
    dots = np.einsum("rbf,sbf->rsb", theta, theta)
    apart = np.maximum(squares[:, None] + squares[None] - 2 * dots, 0.0)
    cost: Floats = (weight * apart).sum(axis=2)
    np.fill_diagonal(cost, np.inf)
    return cost


def join(centroids: Centroids, label: Ints, count: int) -> Centroids:
    """Join clusters by label [R], as their members' sums would be joined: `count` centroids."""
    mass, total = np.zeros((count, centroids.mass.shape[1])), np.zeros((count, *centroids.theta.shape[1:]))
    np.add.at(mass, label, centroids.mass)
    np.add.at(total, label, centroids.theta * centroids.mass[:, :, None])
    theta = np.divide(total, mass[:, :, None], out=np.zeros_like(total), where=mass[:, :, None] > 0)
    return Centroids(theta, mass)


def joined(own: Floats | None, label: Ints) -> Floats | None:
    """Join what sums hold of each client [C R] by label [R], as many columns as before."""
    if own is None:
        return None
    total = np.zeros_like(own)
    np.add.at(total.T, label, own.T)
    return total


def merge_down(centroids: Centroids, count: int) -> Ints:
    """Merge the cheapest pair until `count` clusters are left; tell which each of the R is in [R].

    Empty clusters cost nothing and go first. Ties go to the lower indices, so that every client agrees.
    """
    label = np.arange(len(centroids))
    while len(np.unique(label)) > count:
        kept, label = np.unique(label, return_inverse=True)
        cost = merge_cost(join(centroids, label, len(kept)))
        i, j = sorted(divmod(int(cost.argmin()), len(kept)))
        label[label == j] = i
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
