"""How good a clustering is, without the truth: Davies-Bouldin, Calinski-Harabasz, from sums.

Davies and Bouldin, "A cluster separation measure", IEEE PAMI 1, 1979; Calinski and Harabasz, "A dendrite
method for cluster analysis", Communications in Statistics 3, 1974. Euclidean, on unit-norm metadata: that
reading fits the paper's DBI best. A client's term is its distance and squared distance to its cluster's mean;
the ratios are taken after the addition.
"""

from __future__ import annotations

import numpy as np

from flameche.em.spherical import Centroids, Floats, Ints


def spread_terms(phi: Floats, weight: Floats, assignment: Ints, means: Centroids) -> Floats:
    """Write each client's term: distance to its own cluster's mean, squared distance, a one.

    phi [C B F], weight [C B], assignment [C] -> [C 3]. Only blocks that both have are compared.
    """
    shared = (weight > 0) & (means.mass[assignment] > 0)
    gap = (phi - means.theta[assignment]) * shared[:, :, None]
    squared = np.einsum("cbf,cbf->c", gap, gap)
    return np.stack([np.sqrt(squared), squared, np.ones(len(phi))], axis=1)


def davies_bouldin(means: Centroids, spread: Floats) -> float:
    """Average, over the non-empty clusters, the worst ratio of widths to separation; lower is better.

    spread [K 3], the sums of `spread_terms`. NaN with fewer than two non-empty clusters.
    """
    alive = np.flatnonzero(spread[:, 2] > 0.5)
    if len(alive) < 2:
        return float("nan")
    width = spread[alive, 0] / spread[alive, 2]
    centres = means.theta[alive].reshape(len(alive), -1)
    apart = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(-1))
    np.fill_diagonal(apart, np.inf)
    with np.errstate(divide="ignore"):
        return float(((width[:, None] + width[None]) / apart).max(axis=1).mean())


def calinski_harabasz(means: Centroids, spread: Floats) -> float:
    """Compare the scatter between clusters with the scatter within; higher is better.

    spread [K 3], the sums of `spread_terms`. NaN where it is undefined: one cluster, or all singletons.
    """
    alive = np.flatnonzero(spread[:, 2] > 0.5)
    count = spread[alive, 2]
    if len(alive) < 2 or count.sum() <= len(alive):
        return float("nan")
    centres = means.theta[alive].reshape(len(alive), -1)
    centre = (count[:, None] * centres).sum(0) / count.sum()
    between = (count * ((centres - centre) ** 2).sum(1)).sum() / (len(alive) - 1)
    within = spread[alive, 1].sum() / (count.sum() - len(alive))
    return float(between / within) if within > 0 else float("inf")


def from_widths(centres: Floats, squares: Floats, count: Floats) -> tuple[float, float]:
    """Compute both from clusters' centres [K D], mean squared distances to them [K], and sizes [K].

    Davies-Bouldin takes widths as root mean squares here. NaN with one cluster.
    """
    k, n = len(count), float(count.sum())
    if k < 2:
        return float("nan"), float("nan")
    apart = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(-1))
    np.fill_diagonal(apart, np.inf)
    width = np.sqrt(np.maximum(squares, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        dbi = ((width[:, None] + width[None]) / apart).max(axis=1).mean()
    between = (count * ((centres - count @ centres / n) ** 2).sum(axis=1)).sum() / (k - 1)
    within = float(count @ squares) / (n - k) if n > k else float("nan")
    return float(dbi), float(between / within) if within > 0 else float("nan")
