"""Moves out of a local optimum: merge the two closest clusters, split one along its widest direction.

Ward, "Hierarchical grouping to optimize an objective function", JASA 58, 1963, for the pair; the direction is
the first principal axis of a cluster's members, by power iterations whose step is a sum over clients:
v <- sum_i (x_i . v) x_i, with x_i a client's weighted distance from the centroid. A move is kept if clients
that had no part in making it are, pair by pair, nearer to their centroids after it than before.
"""

from __future__ import annotations

import numpy as np

from flameche.em.spherical import Centroids, Floats, Ints, m_step

CONVINCING = 2.0  # standard errors by which a move must pay
LEAST = 4  # clients in a group, in large federations
STEP = 0.5  # of the way towards the halves
MANY = 40  # clients that can be expected to show that


def closest_pair(centroids: Centroids, sizes: Floats, spared: int) -> tuple[int, int] | None:
    """Find the two clusters i < j whose merger costs least (Ward), never `spared`; None if there are none.

    Only blocks that both have are compared. An empty cluster costs nothing to merge.
    """
    others = [k for k in range(len(centroids)) if k != spared]
    best: tuple[float, int, int] | None = None
    for at, i in enumerate(others):
        for j in others[at + 1 :]:
            shared = (centroids.mass[i] > 0) & (centroids.mass[j] > 0)
            apart = float(((centroids.theta[i] - centroids.theta[j])[shared] ** 2).sum())
            cost = apart * sizes[i] * sizes[j] / max(sizes[i] + sizes[j], 1.0)
            if best is None or cost < best[0]:
                best = (cost, i, j)
    return None if best is None else best[1:]


def merged(centroids: Centroids, i: int, j: int, sizes: Floats) -> tuple[Floats, Floats]:
    """Join two centroids as their members' sums would: theta [B F], mass [B].

    An empty cluster still has the centroid of those who left it, which must not pull at the other's.
    """
    if sizes[i] == 0 or sizes[j] == 0:
        full = i if sizes[j] == 0 else j
        return centroids.theta[full].copy(), centroids.mass[full].copy()
    mass = centroids.mass[i] + centroids.mass[j]
    total = centroids.theta[i] * centroids.mass[i][:, None] + centroids.theta[j] * centroids.mass[j][:, None]
    theta = np.divide(total, mass[:, None], out=np.zeros_like(total), where=mass[:, None] > 0)
    return theta, mass


def moved_apart(centroids: Centroids, cluster: int, halves: Floats) -> Centroids:
    """Part a centroid in two: half the way from it towards the halves of its members, sums [2 S].

    Few clients made the halves, so their means are noisy where the cluster's is not. What the two have in
    common is left to that, and of what tells them apart, half: three quarters of what a right split gains,
    for a sixth of the noise. A block that one half lacks stays.
    """
    own = Centroids(centroids.theta[[cluster]], centroids.mass[[cluster]])
    both = m_step(halves.sum(axis=0, keepdims=True), own)
    twice = Centroids(np.repeat(both.theta, 2, axis=0), np.repeat(both.mass, 2, axis=0))
    two = m_step(halves, twice)
    return Centroids(own.theta + STEP * (two.theta - both.theta), two.mass)


def offsets(phi: Floats, weight: Floats, centre: Floats) -> Floats:
    """Lay out how far each client lies from a centre [B F], weighted by its samples [n B F] -> [n D]."""
    away = (phi - centre) * np.sqrt(weight)[:, :, None]
    return away.reshape(len(phi), centre.size)


def turn_terms(phi: Floats, weight: Floats, centre: Floats, direction: Floats) -> Floats:
    """Write each client's part of one power iteration: (x . v) x, as [n D]."""
    x = offsets(phi, weight, centre)
    return (x @ direction)[:, None] * x


def sides(phi: Floats, weight: Floats, centre: Floats, direction: Floats) -> Ints:
    """Tell on which side of a centre each client lies along a direction: 0 or 1 [n]."""
    return (offsets(phi, weight, centre) @ direction > 0).astype(np.int64)


def convincing(gain: float, squares: float, clients: float) -> bool:
    """Judge a paired test over some clients: the sum of gains against the root of the sum of their squares.

    Only clients of the split cluster can gain, and n equal gains reach the square root of n at most; so fewer
    clients than `MANY` have to convince less.
    """
    wanted = CONVINCING * min(1.0, float(np.sqrt(clients / MANY)))
    return gain > wanted * float(np.sqrt(squares))


def least_group(clients: int, clusters: int, guard: int = 1) -> int:
    """Choose the smallest group that counts: a quarter of a cluster, two to four, what the guard asks."""
    return max(2, min(LEAST, clients // (4 * clusters)), guard)
