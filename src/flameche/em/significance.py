"""How many clusters there are: which mergers of small clusters join what is really apart.

Leaves are joined pair by pair, by Ward's criterion, until one is left. From the top down, a merger is
refused if its two halves are farther apart than the halves of a Gaussian cloud of as many clients with the
same covariance, cut in two as well as can be; then each half is looked at in its turn. Kimes, Liu, Hayes
and Marron, "Statistical significance for hierarchical clustering", Biometrics 73, 2017; Liu, Hayes, Nobel
and Marron, "Statistical significance of clustering for high-dimension, low-sample size data", JASA 103,
2008. It takes the leaves' means alone, so choosing K opens nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from flameche.em.criteria import from_widths
from flameche.em.leaves import Leaves
from flameche.em.spherical import Floats, Ints
from flameche.em.ward import join, merge_down

REFUSED = 3.0  # standard deviations beyond what a Gaussian cloud gives: two halves are two clusters
MANY = 24  # of more clients it takes more: no group is quite Gaussian, which shows with their root
CLOUDS = 200  # Gaussian clouds that are cut for comparison
STEPS = 3  # of 2-means after the cut
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
    def needed(self) -> float:
        """Tell how sure it takes to be, for so many clients."""
        return float(REFUSED * max(1.0, (sum(self.clients) / MANY) ** 0.5))

    @property
    def refused(self) -> bool:
        """Tell whether the halves must not be merged."""
        return bool(self.sure >= self.needed)


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
        level = [split.sure / split.needed for split in self.splits]
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


def choose_clusters(leaves: Leaves, most: int, least: int, rng: np.random.Generator) -> Choice:
    """Choose from 1 to `most` clusters; each of at least `least` clients, as leaves are.

    A merger is undone if it is refused, or one below it: four groups on a line are no two clouds, but each
    half of them is.
    """
    tree = [merge_down(leaves.as_centroids(), count) for count in range(1, len(leaves) + 1)]
    within = pooled(leaves)
    splits = []
    for above, below in itertools.pairwise(tree):
        left, right = _halves(above, below)
        splits.append((left, right, judge(leaves, left, right, within, least, rng)))
    label, wanted, made = np.zeros(len(leaves), np.int64), 1, []
    for at, (left, right, _) in enumerate(splits):
        both = set(left) | set(right)
        if any(split.refused and both >= set(a) | set(b) for a, b, split in splits[at:]):
            wanted += 1
            if wanted <= most:
                label[right] = label.max() + 1
                made.append((left, right))
    return Choice(label, [split for *_, split in splits], made, wanted > most, tree)


def join_wide(choice: Choice, leaves: Leaves, wide: Floats, least: int, rng: np.random.Generator) -> Choice:
    """Join clusters again that were set apart only since their group is wider than others.

    wide [K]: how far clients scatter within each cluster, as a share of what they do on average. The
    covariance within leaves is of all leaves together, so the leaves of a wide group seem far apart.
    """
    within, label, made = pooled(leaves), choice.label.copy(), []
    for left, right in reversed(choice.made):
        halves = [np.unique(label[half]) for half in (left, right)]
        if max(len(half) for half in halves) == 1:
            both = np.append(left, right)
            ratio = max(1.0, float(leaves.count[both] @ wide[choice.label[both]] / leaves.count[both].sum()))
            if not judge(leaves, left, right, ratio * within, least, rng).refused:
                label[right] = halves[0][0]
                continue
        made.append((left, right))
    label = np.unique(label, return_inverse=True)[1].astype(np.int64)
    return replace(choice, label=label, made=made[::-1])


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


def judge(
    leaves: Leaves, left: Ints, right: Ints, within: Floats, least: int, rng: np.random.Generator
) -> Split:
    """Compare how far two sets of leaves are apart with the halves of Gaussian clouds like their union."""
    both = np.append(left, right)
    count, mean = leaves.count[both], leaves.mean[both]
    n = round(float(count.sum()))
    centre = count @ mean / n
    scatter = np.einsum("r,rp,rq->pq", count, mean - centre, mean - centre) + n * within
    sizes = [float(leaves.count[half].sum()) for half in (left, right)]
    gap = np.subtract(
        *(leaves.count[h] @ leaves.mean[h] / s for h, s in zip((left, right), sizes, strict=True))
    )
    between, total = sizes[0] * sizes[1] / n * float(gap @ gap) ** 2, float(gap @ scatter @ gap)
    sides = (round(sizes[0]), round(sizes[1]))
    if total <= 0 or between <= 0:
        return Split(sides, 0.0, 0.0)
    shares = cloud_shares(scatter / n, n, min(least, *sides), rng)
    logit = np.log(shares / (1.0 - shares))
    share = min(between / total, 1.0 - 1e-9)
    if (spread := float(logit.std())) < 1e-6:  # two clients: every cloud is cut alike
        return Split(sides, share, 0.0)
    sure = (np.log(share / (1.0 - share)) - logit.mean()) / spread
    return Split(sides, share, float(sure))


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
