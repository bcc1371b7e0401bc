"""Splitting clients into small clusters ("leaves") by a few openings, and joining these into K clusters.

A leaf is cut along the two directions in which it is widest, each where two means explain most of its
variance, read off a histogram (Otsu, "A threshold selection method from gray-level histograms", 1979). Cuts
are made freely, since leaves are joined again afterwards by Ward's criterion, from the same sums: joining
opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flameche.em.spherical import Centroids, Floats, Ints

AXES = 2  # directions along which a leaf is cut at once
FEWEST_BINS, MOST_BINS = 4, 16  # of a histogram
RANGE = 2.5  # standard deviations to both sides, beyond which clients count into the last bins


@dataclass(frozen=True)
class Leaves:
    """Means of sketches by leaf: count [R], mean [R q]; scatter [q q] within leaves, all leaves together."""

    count: Floats
    mean: Floats
    scatter: Floats

    def __len__(self) -> int:
        return len(self.count)

    def as_centroids(self) -> Centroids:
        """Give the means as centroids of a single block, for what is known of these."""
        return Centroids(self.mean[:, None, :], self.count[:, None])


@dataclass(frozen=True)
class Cuts:
    """How each leaf is looked at or cut: centre [R q], axes [R a q], width [R a], a standard deviation.

    bins [R]: of its histograms, no more than its members; at [R a]: where to cut, in widths from the centre,
    infinite where not at all.
    """

    centre: Floats
    axes: Floats
    width: Floats
    bins: Ints
    at: Floats

    def position(self, y: Floats, leaf: Ints) -> Floats:
        """Tell where clients [n] lie along the axes of their leaf, in widths [n a]."""
        along = np.einsum("naq,nq->na", self.axes[leaf], y - self.centre[leaf])
        position: Floats = along / np.maximum(self.width[leaf], 1e-12)
        return position


def root(variance: Floats, clients: int) -> Leaves:
    """Take all clients for one leaf: sketches are centred, with `variance` [q] along their axes."""
    return Leaves(np.array([float(clients)]), np.zeros((1, len(variance))), clients * np.diag(variance))


def read_leaves(sums: Floats, count: Floats, total: Floats) -> Leaves:
    """Turn sums of sketches [R q] over `count` clients [R] into leaves; total [q q]: all clients' scatter."""
    mean = sums / np.maximum(count, 1)[:, None]
    centre = sums.sum(axis=0) / max(count.sum(), 1)
    gap = mean - centre
    return Leaves(count, mean, total - np.einsum("r,rp,rq->pq", count, gap, gap))


def widest(leaves: Leaves, axes: int = AXES) -> Cuts:
    """Find the directions in which leaves are widest, on the average of all leaves."""
    size = leaves.mean.shape[1]
    count = min(axes, size)
    values, vectors = np.linalg.eigh(leaves.scatter / max(leaves.count.sum(), 1))
    along, width = vectors[:, ::-1][:, :count].T, np.sqrt(np.maximum(values[::-1][:count], 0.0))
    every = (len(leaves), count)
    bins = bins_for(leaves.count)
    return Cuts(
        leaves.mean, np.broadcast_to(along, (*every, size)), np.broadcast_to(width, every), bins,
        np.full(every, np.inf),
    )  # fmt: skip


def bins_for(count: Floats | Ints) -> Ints:
    """Tell how many bins histograms of so many clients have [R]: no more than clients."""
    bins: Ints = np.clip(count, FEWEST_BINS, MOST_BINS).astype(np.int64)
    return bins


def histogram_terms(cuts: Cuts, y: Floats, leaf: Ints) -> Floats:
    """Write each client's bins, one a direction, as zeros and ones [n a*MOST_BINS]."""
    bins = cuts.bins[leaf][:, None]
    place = np.floor((cuts.position(y, leaf) + RANGE) / (2 * RANGE) * bins)
    bin = np.clip(place, 0, bins - 1).astype(np.int64)
    return np.eye(MOST_BINS)[bin].reshape(len(y), -1)


def choose_cuts(cuts: Cuts, totals: Floats, least: int, most: int = AXES) -> Cuts:
    """Cut each leaf where two means explain most of its histogram [R a*MOST_BINS], `least` clients a side.

    Of more than `most` directions, along those where they explain the largest share of its variance.
    """
    at, share = np.full(cuts.width.shape, np.inf), np.zeros(cuts.width.shape)
    for r, a in np.ndindex(*cuts.width.shape):
        n = totals[r].reshape(-1, MOST_BINS)[a]
        if np.isfinite(n).all() and cuts.width[r, a] > 0:
            n = np.rint(n[: cuts.bins[r]])
            at[r, a], share[r, a] = best_cut(n, least), best_share(n, least)
    if (less := len(at[0]) - most) > 0:
        np.put_along_axis(at, np.argsort(share, axis=1, kind="stable")[:, :less], np.inf, axis=1)
    return Cuts(cuts.centre, cuts.axes, cuts.width, cuts.bins, at)


def best_cut(n: Floats, least: int) -> float:
    """Cut a histogram [bins] from -RANGE to RANGE where two means explain most; infinite if nowhere."""
    edges, gain = _gains(n, least)
    if gain.max() < 0:
        return float("inf")
    best = np.flatnonzero(gain >= gain.max() * (1 - 1e-9))
    return float((edges[1 + best[0]] + edges[1 + best[-1]]) / 2)  # the middle of a gap


def best_share(n: Floats, least: int) -> float:
    """Tell which share of a histogram's variance two means explain at most, `least` clients a side."""
    edges, gain = _gains(n, least)
    middle = (edges[1:] + edges[:-1]) / 2
    total = float(n @ (middle - n @ middle / max(n.sum(), 1.0)) ** 2)
    return max(float(gain.max()), 0.0) / total if total > 0 else 0.0


def _gains(n: Floats, least: int) -> tuple[Floats, Floats]:
    """Compute the edges of a histogram's bins, and the variance between both sides of each inner edge.

    It is -1 where a side would have fewer than `least` clients.
    """
    edges = np.linspace(-RANGE, RANGE, len(n) + 1)
    left, moment = n.cumsum()[:-1], (n * (edges[1:] + edges[:-1]) / 2).cumsum()
    right = n.sum() - left
    enough = (left >= least) & (right >= least)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = moment[:-1] / left - (moment[-1] - moment[:-1]) / right
        return edges, np.where(enough, left * right / n.sum() * gap**2, -1.0)


def part(cuts: Cuts, y: Floats, leaf: Ints) -> Ints:
    """Tell in which part of its leaf each client lies [n]: a bit a direction, the first the highest."""
    side = cuts.position(y, leaf) > cuts.at[leaf]
    bits = 1 << np.arange(side.shape[1])[::-1]
    part: Ints = (side * bits).sum(axis=1)
    return part


def kept_parts(leaf: Ints, part: Ints, axes: int, least: int) -> Ints:
    """Number the parts of all leaves anew [n]; one with fewer than `least` clients stays with its neighbour.

    A second cut is undone where a part would be too small, and the first one if that is not enough.
    """
    new = np.zeros(len(leaf), np.int64)
    count = 0
    for r in np.unique(leaf).tolist():
        mine = leaf == r
        code = part[mine]
        for bit in range(axes):  # the last cut first
            for above in np.unique(code >> (bit + 1)).tolist():
                inside = (code >> (bit + 1)) == above
                sizes = np.unique(code[inside] >> bit, return_counts=True)[1]
                if len(sizes) == 2 and sizes.min() < least:
                    code[inside] = above << (bit + 1)
        names, numbers = np.unique(code, return_inverse=True)
        new[mine] = count + numbers
        count += len(names)
    return new
