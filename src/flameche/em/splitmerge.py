"""Moves out of a local optimum: split a cluster along its widest direction, and merge two.

Those two may be other clusters, or another and a half: a part of a group may be with the wrong one, for the
classes that it has. Which two is tried out: some pairs are judged at once.
Ward, "Hierarchical grouping to optimize an objective function", JASA 58, 1963, for the pair; the direction is
the first principal axis of a cluster's members, by power iterations whose step is a sum over clients:
v <- sum_i (x_i . v) x_i, with x_i a client's weighted distance from the centroid. A move is kept if clients
that had no part in making it are, pair by pair, nearer to their centroids after it than before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import NOISE, Centroids, Floats, Ints, m_step
from flameche.em.ward import merge_cost

Bools = NDArray[np.bool_]
CONVINCING = 2.0  # standard errors by which a move must pay
LEAST = 4  # clients in a group, in large federations
STEP = 0.5  # of the way towards the halves
PAIRS, HALF_PAIRS = 6, 3  # mergers that are judged at once: of other clusters, of each half with another
MANY = 40  # clients that can be expected to show that


def pairs(centroids: Centroids, cluster: int, halves: Floats, sizes: Floats) -> Ints:
    """List mergers that may make up for splitting a cluster: pairs a < b [P 2], the cheapest by Ward.

    The halves, sums [2 S], count as clusters: the first has the split one's number, the second comes after
    all others. An empty cluster costs nothing to merge.
    """
    count, two = len(centroids), moved_apart(centroids, cluster, halves, 1.0)
    mass, held = np.where(sizes[:, None] > 0, centroids.mass, 0.0), _held(halves, centroids.mass.shape[1])
    theta, mass = np.concatenate([centroids.theta, two.theta[1:]]), np.concatenate([mass, held[1:]])
    theta[cluster], mass[cluster] = two.theta[0], held[0]
    cost = merge_cost(Centroids(theta, mass))
    others = [k for k in range(count) if k != cluster]
    found = _cheapest([(i, j) for at, i in enumerate(others) for j in others[at + 1 :]], cost, PAIRS)
    for half in (cluster, count):
        found += _cheapest([(min(k, half), max(k, half)) for k in others], cost, HALF_PAIRS)
    return np.array(found, np.int64).reshape(-1, 2)


def _cheapest(some: list[tuple[int, int]], cost: Floats, most: int) -> list[tuple[int, int]]:
    return sorted(some, key=lambda pair: (cost[pair], pair))[:most]


def moved_apart(centroids: Centroids, cluster: int, halves: Floats, step: float = STEP) -> Centroids:
    """Part a centroid in two: half the way from it towards the halves of its members, sums [2 S].

    Few clients made the halves, so their means are noisy where the cluster's is not. What the two have in
    common is left to that, and of what tells them apart, half: three quarters of what a right split gains,
    for a sixth of the noise. A block that one half lacks stays.
    """
    own = Centroids(centroids.theta[[cluster]], centroids.mass[[cluster]])
    both = m_step(halves.sum(axis=0, keepdims=True), own)
    twice = Centroids(np.repeat(both.theta, 2, axis=0), np.repeat(both.mass, 2, axis=0))
    two = m_step(halves, twice)
    return Centroids(own.theta + step * (two.theta - both.theta), two.mass)


def places(count: int, cluster: int, a: int, b: int) -> tuple[int, Ints]:
    """Tell where the merger of `pairs` a < b goes, and where the halves of a cluster go [2]."""
    if cluster in (a, b):
        kept = a + b - cluster
        return kept, np.array([kept, cluster])
    return a, np.array([cluster, a if b == count else b])


@dataclass(frozen=True)
class Options:
    """Centroids [R] before and after each of some moves: rows before [R], rows after each [P R].

    A half's centroid is that of its cluster, moved; so whoever is in the cluster has its part in both halves'
    (`rows.own`), though the sums of the halves do not hold it (`held` [C R]).
    """

    rows: Centroids
    before: Bools
    after: Bools
    held: Floats | None = None


def options(centroids: Centroids, cluster: int, halves: Floats, some: Ints, sizes: Floats) -> Options:
    """Lay out what splitting a cluster and merging each of some pairs [P 2] makes of the centroids.

    A half that stays alone is moved apart half the way. One that is merged counts in full, and for its share
    of the cluster: few have made it, but others will follow. An empty cluster still has the centroid of those
    who left it, which must not pull at the other's.
    """
    count, apart = len(centroids), moved_apart(centroids, cluster, halves)
    whole, held = moved_apart(centroids, cluster, halves, 1.0), _held(halves, centroids.mass.shape[1])
    share = held / np.maximum(held.sum(axis=0), NOISE)
    theta = np.concatenate([centroids.theta, whole.theta])
    mass = np.concatenate([centroids.mass * (sizes > 0)[:, None], share * centroids.mass[cluster]])
    place = np.append(np.arange(count), count + 1)  # of clusters and the second half
    place[cluster] = count
    a, b = place[some].T
    joined = mass[a] + mass[b]
    total = theta[a] * mass[a][:, :, None] + theta[b] * mass[b][:, :, None]
    mean = np.divide(total, joined[:, :, None], out=theta[a].copy(), where=joined[:, :, None] > 0)
    own = np.zeros((0, count)) if centroids.own is None else centroids.own * (sizes > 0)
    mine, alone = own[:, [cluster]], np.pad(own, ((0, 0), (0, 2)))
    parted = np.concatenate([own, mine * share.mean(axis=1)], axis=1)  # halves are made of the cluster's mean
    rows = Centroids(
        np.concatenate([centroids.theta, apart.theta, mean]),
        np.concatenate([centroids.mass, centroids.mass[[cluster, cluster]], joined]),
        np.concatenate([own, mine, mine, parted[:, a] + parted[:, b]], axis=1),
    )
    held = np.concatenate([alone, alone[:, a] + alone[:, b]], axis=1)
    each = np.arange(len(some))
    after = np.zeros((len(some), len(rows)), bool)
    after[:, : count + 2] = True
    after[:, cluster] = after[each, a] = after[each, b] = False
    after[each, count + 2 + each] = True
    return Options(rows, np.arange(len(rows)) < count, after, held)


def made(centroids: Centroids, options: Options, chosen: int, kept: int, halves: Ints) -> Centroids:
    """Put the halves [2] and the merged centroid of an option in their places."""
    rows, place = options.rows, np.append(halves, kept)  # the merged one last: a half may be in it
    row = int(options.before.sum()) + np.array([0, 1, 2 + chosen])
    own = None
    if centroids.own is not None and options.held is not None:
        own = centroids.own.copy()
        own[:, place] = options.held[:, row]
    theta, mass = centroids.theta.copy(), centroids.mass.copy()
    theta[place], mass[place] = rows.theta[row], rows.mass[row]
    return Centroids(theta, mass, own)


def _held(halves: Floats, blocks: int) -> Floats:
    """Read off sums [2 S] what weight is behind each block [2 B]; none where no member has it."""
    mass = halves[:, -1 - blocks : -1]
    return np.where(mass > NOISE, mass, 0.0)


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
