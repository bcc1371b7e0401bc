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


def from_spread(means: Centroids, spread: Floats) -> tuple[float, float]:
    """Compute both from the sums of `spread_terms` [K 3]; empty clusters do not count."""
    alive = np.flatnonzero(spread[:, 2] > 0.5)
    centres, count = means.theta.reshape(len(spread), -1)[alive], spread[alive, 2]
    return _both(centres, spread[alive, 0] / count, spread[alive, 1].sum(), count)


def from_widths(centres: Floats, squares: Floats, count: Floats) -> tuple[float, float]:
    """Compute both from clusters' centres [K D], mean squared distances to them [K], and sizes [K].

    Davies-Bouldin takes widths as root mean squares here.
    """
    return _both(centres, np.sqrt(np.maximum(squares, 0.0)), float(count @ squares), count)


def _both(centres: Floats, width: Floats, scatter: float, count: Floats) -> tuple[float, float]:
    """Average the worst ratios of widths to separation; divide the scatter between by that within clusters.

    NaN with one cluster, and Calinski-Harabasz of singletons alone; it is infinite without scatter within.
    """
    k, n = len(count), count.sum()
    if k < 2:
        return float("nan"), float("nan")
    apart = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(-1))
    np.fill_diagonal(apart, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        dbi = float(((width[:, None] + width[None]) / apart).max(axis=1).mean())
    if n <= k:
        return dbi, float("nan")
    centre = (count[:, None] * centres).sum(0) / n
    between = (count * ((centres - centre) ** 2).sum(1)).sum() / (k - 1)
    within = scatter / (n - k)
    return dbi, float(between / within) if within > 0 else float("inf")
