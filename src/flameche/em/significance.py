"""How many clusters there are: which mergers of small clusters join what is really apart.

Leaves are joined pair by pair, by Ward's criterion, until one is left. A merger is refused if its two halves
are farther apart than the halves of a Gaussian cloud of as many clients with the same covariance, cut in two
as well as can be. It is judged twice: first from the leaves' means, with one covariance within all leaves,
which opens nothing but knows little of a group that is wider or narrower than others; and if two halves seem
apart, from a histogram of its clients along the line through both. Kimes, Liu, Hayes and Marron, "Statistical
significance for hierarchical clustering", Biometrics 73, 2017; Liu, Hayes, Nobel and Marron, "Statistical
significance of clustering for high-dimension, low-sample size data", JASA 103, 2008.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flameche.em.criteria import from_widths
from flameche.em.leaves import Cuts, Leaves, best_share, bins_for
from flameche.em.spherical import Floats, Ints
from flameche.em.ward import join, merge_down

SUSPECTED = 1.0  # standard deviations beyond what a Gaussian cloud gives, by leaves: worth a histogram
REFUSED = 4.0  # by the histogram: two halves are two clusters
CLOUDS = 200  # Gaussian clouds that are cut for comparison
STEPS = 3  # of 2-means after the cut
SAME = 1e-6  # the least spread of clouds' logits that says anything
SURELY, HARDLY = 1.6, 0.8  # times what is needed: from where a split is clearly one, to where clearly none


Clear = Literal["clear", "close", "no structure"]


@dataclass(frozen=True)
class Split:
    """A merger, undone: its halves' clients, the share of variance between them, how sure that they are two.

    `sure` is in standard deviations from what Gaussian clouds give, in logits of the share.
    """

    clients: tuple[int, int]
    share: float
    sure: float

    @property
    def refused(self) -> bool:
        """Tell whether the halves must not be merged."""
        return self.sure >= REFUSED


@dataclass(frozen=True)
class Merger:
    """A merger to be judged: its halves' leaves, and how Gaussian clouds are cut in two.

    share: of variance between the halves, from the leaves; cloud: of logits of the clouds' shares, mean and
    standard deviation; centre, axis [q], width: the line along which a histogram is taken.
    """

    left: Ints
    right: Ints
    clients: tuple[int, int]
    share: float
    cloud: tuple[float, float]
    centre: Floats
    axis: Floats
    width: float

    @property
    def leaves(self) -> Ints:
        """List the leaves of both halves."""
        return np.append(self.left, self.right)

    def split(self, share: float) -> Split:
        """Judge the merger by a share of variance between its halves."""
        mean, spread = self.cloud
        if spread < SAME or share <= 0.0:  # two clients: every cloud is cut alike
            return Split(self.clients, share, 0.0)
        share = min(share, 1.0 - 1e-9)
        return Split(self.clients, share, float((np.log(share / (1.0 - share)) - mean) / spread))


@dataclass(frozen=True)
class Tree:
    """How leaves are merged: to 1, 2, … clusters [R], the mergers, each as leaves alone judge it."""

    labels: Sequence[Ints]
    mergers: list[Merger]
    splits: list[Split]

    @property
    def suspected(self) -> list[int]:
        """List the mergers whose halves seem apart."""
        return [at for at, split in enumerate(self.splits) if split.sure >= SUSPECTED]

    def cuts(self) -> Cuts:
        """Describe the histograms of the suspected mergers, one each."""
        some = [self.mergers[at] for at in self.suspected]
        return Cuts(
            np.stack([one.centre for one in some]), np.stack([one.axis for one in some])[:, None],
            np.array([[one.width] for one in some]), bins_for(np.array([sum(one.clients) for one in some])),
            np.full((len(some), 1), np.inf),
        )  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A number of clusters: which leaf belongs to which [R], the split that made the last one, criteria.

    dbi, ch: in the sketch, of the leaves merged; kept: whether the split is one of those that were chosen.
    """

    k: int
    label: Ints
    split: Split | None
    kept: bool
    dbi: float
    ch: float


@dataclass(frozen=True)
class Choice:
    """How many clusters there are, which leaf belongs to which [R], and the splits that were looked at.

    made: the leaves of both halves, for the splits that made clusters; more: the most clusters allowed were
    not enough.
    """

    label: Ints
    splits: list[Split]
    made: list[tuple[Ints, Ints]]
    more: bool = False
    tree: Sequence[Ints] = ()  # how leaves are merged to 1, 2, … clusters [R]

    @property
    def clear(self) -> Clear:
        """Say how clear the choice is: whether all splits, made or not, are far from the border."""
        level = [split.sure / REFUSED for split in self.splits]
        halves = [_halves(above, below) for above, below in itertools.pairwise(self.tree)]
        every = [set(left) | set(right) for left, right in halves]
        made = [set(left) | set(right) for left, right in self.made]
        judged = list(zip(level, every, strict=True))
        surely = all(max(at for at, some in judged if some <= one) >= SURELY for one in made)
        if not surely or any(at > HARDLY for at, some in judged if some not in made):
            return "close"
        return "clear" if self.k > 1 else "no structure"

    def candidates(self, leaves: Leaves, most: int) -> list[Candidate]:
        """List what was looked at: 1 to `most` clusters; of the chosen K, the clusters that were chosen."""
        within, found = pooled(leaves), list[Candidate]()
        for k, label in enumerate(self.tree[:most], 1):
            split, kept = None, False
            if k > 1:
                left, right = _halves(self.tree[k - 2], label)
                split = self.splits[k - 2]
                kept = any(np.array_equal(left, a) and np.array_equal(right, b) for a, b in self.made)
            taken = self.label if k == self.k else label
            found.append(Candidate(k, taken, split, kept, *criteria(leaves, taken, within)))
        return found

    @property
    def k(self) -> int:
        """Count the clusters."""
        return int(self.label.max()) + 1


def merged(leaves: Leaves, least: int, rng: np.random.Generator) -> Tree:
    """Merge leaves down to one, and judge every merger by the leaves; halves have `least` clients or more."""
    labels = [merge_down(leaves.as_centroids(), count) for count in range(1, len(leaves) + 1)]
    within = pooled(leaves)
    mergers = [
        look_at(leaves, *_halves(above, below), within, least, rng)
        for above, below in itertools.pairwise(labels)
    ]
    return Tree(labels, mergers, [merger.split(merger.share) for merger in mergers])


def choose_clusters(tree: Tree, bins: Sequence[Floats], most: int, least: int) -> Choice:
    """Choose from 1 to `most` clusters, from histograms of the suspected mergers.

    A merger is undone if it is refused, or one below it: four groups on a line are no two clouds, but each
    half of them is.
    """
    splits = list(tree.splits)
    for at, n in zip(tree.suspected, bins, strict=True):
        merger = tree.mergers[at]
        splits[at] = merger.split(best_share(n, min(least, *merger.clients)))
    label, wanted, made = np.zeros(len(tree.labels[0]), np.int64), 1, []
    for at, merger in enumerate(tree.mergers):
        both = set(merger.leaves)
        below = zip(tree.mergers[at:], splits[at:], strict=True)
        if any(split.refused and both >= set(other.leaves) for other, split in below):
            wanted += 1
            if wanted <= most:
                label[merger.right] = label.max() + 1
                made.append((merger.left, merger.right))
    return Choice(label, splits, made, wanted > most, tree.labels)


def criteria(leaves: Leaves, label: Ints, within: Floats) -> tuple[float, float]:
    """Compute Davies-Bouldin and Calinski-Harabasz of leaves merged by label [R]."""
    count = np.bincount(label, leaves.count).astype(np.float64)
    centre = join(leaves.as_centroids(), label, len(count)).theta[:, 0]
    gap = ((leaves.mean - centre[label]) ** 2).sum(axis=1)
    return from_widths(centre, np.bincount(label, leaves.count * gap) / count + np.trace(within), count)


def _halves(above: Ints, below: Ints) -> tuple[Ints, Ints]:
    """Find the leaves that one more cut sets apart: those of both halves."""
    for cluster in np.unique(above).tolist():
        mine = np.flatnonzero(above == cluster)
        if len(parts := np.unique(below[mine])) > 1:
            return mine[below[mine] == parts[0]], mine[below[mine] != parts[0]]
    raise AssertionError("one more cluster sets something apart")


def pooled(leaves: Leaves) -> Floats:
    """Estimate the covariance within leaves [q q], all leaves together."""
    values, vectors = np.linalg.eigh(leaves.scatter / max(leaves.count.sum(), 1.0))
    covariance: Floats = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return covariance


def look_at(
    leaves: Leaves, left: Ints, right: Ints, within: Floats, least: int, rng: np.random.Generator
) -> Merger:
    """Find how far two sets of leaves are apart, and how far the halves of Gaussian clouds like them are."""
    both = np.append(left, right)
    count, mean = leaves.count[both], leaves.mean[both]
    n = round(float(count.sum()))
    centre = count @ mean / n
    scatter = np.einsum("r,rp,rq->pq", count, mean - centre, mean - centre) + n * within
    sizes = [float(leaves.count[half].sum()) for half in (left, right)]
    gap = np.subtract(
        *(leaves.count[h] @ leaves.mean[h] / s for h, s in zip((left, right), sizes, strict=True))
    )
    axis = gap / max(float(np.linalg.norm(gap)), 1e-300)
    between, total = sizes[0] * sizes[1] / n * float(axis @ gap) ** 2, float(axis @ scatter @ axis)
    sides = (round(sizes[0]), round(sizes[1]))
    width = max(total / n, 0.0) ** 0.5
    if total <= 0 or between <= 0:
        return Merger(left, right, sides, 0.0, (0.0, 0.0), centre, axis, width)
    shares = cloud_shares(scatter / n, n, min(least, *sides), rng)
    logit = np.log(shares / (1.0 - shares))
    cloud = float(logit.mean()), float(logit.std())
    return Merger(left, right, sides, between / total, cloud, centre, axis, width)


def cloud_shares(covariance: Floats, n: int, least: int, rng: np.random.Generator) -> Floats:
    """Cut Gaussian clouds of n points in two, `least` a side at least: the shares of variance between.

    Only in the directions that are wider than the average: of the others clusters would be read by chance.
    """
    values, vectors = np.linalg.eigh(covariance)
    large = values >= values.mean()
    values, vectors = values[large], vectors[:, large]
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    y = rng.standard_normal((CLOUDS, n, len(values))) @ root.T
    y -= y.mean(axis=1, keepdims=True)
    axis = np.linalg.eigh(np.einsum("snp,snq->spq", y, y))[1][:, :, -1]
    every = np.arange(CLOUDS)
    for _ in range(1 + STEPS):
        order = np.argsort(np.einsum("snq,sq->sn", y, axis), axis=1)
        sums = np.take_along_axis(y, order[:, :, None], axis=1).cumsum(axis=1)[:, :-1]
        size = np.arange(1, n)
        gain = np.einsum("snq,snq->sn", sums, sums) * (1.0 / size + 1.0 / (n - size))
        gain[:, (size < least) | (n - size < least)] = 0.0
        at = gain.argmax(axis=1)
        axis = sums[every, at]  # from one half's mean to the other's, up to its length
    axis = axis / np.linalg.norm(axis, axis=1, keepdims=True)
    total = (np.einsum("snq,sq->sn", y, axis) ** 2).sum(axis=1)
    shares: Floats = np.clip(gain[every, at] / np.maximum(total, 1e-300), 1e-9, 1.0 - 1e-9)
    return shares
