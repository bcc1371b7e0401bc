"""A clustering session: clusters of a fixed set of clients, in at most eight exchanges.

    1     second moments over everybody -> the directions in which clients differ, q numbers a client
    (`em/sketch.py`)
    2-5   twice: histograms of leaves -> cuts; sums of the new leaves' sketches (`em/leaves.py`)
    -     leaves are joined into K clusters by Ward's criterion, which opens nothing
    6-7   M-steps in full dimension while clients move; where K is chosen, histograms that tell which halves
    of the tree of leaves are two clusters (`em/significance.py`), and one M-step
    8     how far clients are from their centroids

Every exchange is contribute -> add -> absorb. After the last one nothing is opened any more: other clients
and those that come later find their cluster by an E-step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flameche.em import leaves as splitting
from flameche.em.hartigan import joining_cost
from flameche.em.significance import Choice, choose_clusters, merged
from flameche.em.sketch import Sketch, moment_terms, projection, sketch_from, unprojected
from flameche.em.spherical import NOISE, Centroids, Floats, Ints, cosine, m_step, statistics
from flameche.em.ward import merge_down
from flameche.privacy.guard import Kind
from flameche.protocol.exchange import Exchange

LEVELS, M_STEPS = 2, 2
MOST_DIRECTIONS = 7  # of a sketch, where K is not known
MORE_CUTS = 3  # of a leaf, where K is not known
FEW = 12  # clients, of which two can be a group where K is chosen; of more it takes three
MORE_CLUSTERS = 8  # from more clusters on, leaves are cut once more
ERROR_SCALE = 7.0  # errors are at most one; so scaled, their squares fill what fixed point has room for
ABSOLUTE = 0.7979  # the mean absolute deviation of a normal variable, in standard deviations


@dataclass(frozen=True)
class Found:
    """What a session found, for its clients [n].

    label [n]; inside [n K], whose term each centroid holds; spread [K 3]: clients, their mean error (one
    minus cosine), its mean absolute deviation over all clusters, NaN where it was not opened; leaves: how
    many small clusters could be told apart.
    """

    centroids: Centroids
    label: Ints
    inside: Floats
    spread: Floats
    sketch: Sketch
    leaves: int
    choice: Choice | None = None  # of K, where it was asked for


class Session:
    """The exchanges of one session; `phi` [n B F], `weight` [n B]: the clients' metadata, as prepared.

    `clusters` is their number, or with `choose` the most that there may be. `noisy`: metadata have noise that
    protects them whatever is opened.
    """

    def __init__(
        self,
        exchange: Exchange,
        clients: Ints,
        phi: Floats,
        weight: Floats,
        clusters: int,
        least: int,
        choose: bool = False,
        noisy: bool = False,
    ) -> None:
        self.exchange, self.clients, self.phi, self.weight = exchange, clients, phi, weight
        self.clusters, self.least, self.choose, self.noisy = clusters, max(1, least), choose, noisy
        if choose:  # one client far from the others is no group
            self.least = max(self.least, 2 if len(clients) < FEW else 3)
        self.cut: tuple[Ints, splitting.Leaves] | None = None  # each client's leaf, and the leaves

    def run(self, rng: np.random.Generator) -> Found | None:
        """Play all exchanges; None where a sum that everything rests on may not be opened."""
        sketch = self._sketch(rng)
        if sketch is None:
            return None
        y = sketch.of(self.phi, self.weight)
        self.cut = self._leaves(y, sketch.variance)
        if self.cut is None:
            return None
        leaf, leaves = self.cut
        choice = None
        if self.choose:
            choice = self._choice(y, leaf, leaves, rng)
            if choice is None:
                return None
            of_leaf = choice.label
        else:
            of_leaf = merge_down(leaves.as_centroids(), min(self.clusters, len(leaves)))
        centroids = self._means(of_leaf[leaf], int(of_leaf.max()) + 1)
        if centroids is None:
            return None
        return self._refined(of_leaf[leaf], centroids, sketch, leaves, of_leaf, choice)

    def _sketch(self, rng: np.random.Generator) -> Sketch | None:
        _, blocks, features = self.phi.shape
        matrix = unprojected(blocks, features) if self.noisy else projection(rng, blocks, features)
        total = self._sum("second moments", moment_terms(self.phi, self.weight, matrix), "moments")
        if total is None:
            return None
        many = max(1, len(self.clients) // 4)
        size = min(MOST_DIRECTIONS, many) if self.choose else self._directions(many)
        return sketch_from(total, matrix, size)

    def _directions(self, many: int) -> int:
        """Tell how many numbers a sketch has: a little above K - 1 where there are clients enough for it."""
        return min(max(self.clusters + 1, 5), max(self.clusters - 1, many))

    def _sum(self, what: str, terms: Floats, kind: Kind = "sum") -> Floats | None:
        """Sum terms [n S] over all of the session's clients."""
        everybody = np.zeros(len(self.clients), np.int64)
        total = self.exchange.sums(what, terms, self.clients, everybody, 1, kind)[0]
        return total if np.isfinite(total).all() else None

    def _leaves(self, y: Floats, variance: Floats) -> tuple[Ints, splitting.Leaves] | None:
        """Cut level by level; tell each client's leaf [n], and the leaves."""
        leaf = np.zeros(len(y), np.int64)
        leaves = splitting.root(variance, len(y))
        total = leaves.scatter
        for _ in range(LEVELS + (self.clusters > MORE_CLUSTERS)):
            cuts = splitting.widest(leaves, y.shape[1] if self.choose else splitting.AXES)
            some = np.flatnonzero((leaves.count >= 2 * self.least)[leaf])
            if len(some) == 0:
                break
            terms = splitting.histogram_terms(cuts, y[some], leaf[some])
            bins = self.exchange.sums(
                "histograms", terms, self.clients[some], leaf[some], len(leaves), "histogram"
            )
            most = MORE_CUTS if self.choose else splitting.AXES
            cuts = splitting.choose_cuts(cuts, bins, self.least, most)
            if not np.isfinite(cuts.at).any():
                break
            parts = 1 << cuts.at.shape[1]
            part = self.exchange.tell(self.clients, splitting.part(cuts, y, leaf), parts)
            if (part < 0).any():
                return None  # a client is lost, and its part of the sums so far with it
            new = splitting.kept_parts(leaf, part, cuts.at.shape[1], self.least)
            if new.max() == leaf.max():
                break
            count = np.bincount(new).astype(np.float64)
            sums = self.exchange.sums("sketches", y, self.clients, new, len(count))
            if not np.isfinite(sums).all():
                break
            leaf, leaves = new, splitting.read_leaves(sums, count, total)
        return leaf, leaves

    def _choice(
        self, y: Floats, leaf: Ints, leaves: splitting.Leaves, rng: np.random.Generator
    ) -> Choice | None:
        """Choose K, from a histogram over the clients of each part of the tree that may be two clusters.

        These parts are unions of leaves, so their sets are no new ones.
        """
        tree = merged(leaves, self.least, rng)
        bins: list[Floats] = []
        if parts := tree.suspected:
            cuts = tree.cuts()
            inside = np.column_stack([np.isin(leaf, tree.mergers[at].leaves) for at in parts])
            each = [splitting.histogram_terms(cuts, y, np.full(len(y), j)) for j in range(len(parts))]
            terms = np.stack(each, axis=1)
            share = inside.astype(np.float64)
            sums = self.exchange.shared_sums("histograms", terms, self.clients, share, "histogram")
            if not np.isfinite(sums).all():
                return None
            bins = [np.rint(n[:size]) for n, size in zip(sums, cuts.bins, strict=True)]
        return choose_clusters(tree, bins, self.clusters, self.least)

    def _means(self, label: Ints, count: int) -> Centroids | None:
        """Take an M-step over unions of leaves, whose sums the guard always admits."""
        _, blocks, features = self.phi.shape
        sums = self.exchange.sums("means", statistics(self.phi, self.weight), self.clients, label, count)
        if not np.isfinite(sums).all():
            return None
        return m_step(sums, Centroids(np.zeros((count, blocks, features)), np.zeros((count, blocks))))

    def _refined(
        self,
        label: Ints,
        centroids: Centroids,
        sketch: Sketch,
        leaves: splitting.Leaves,
        of_leaf: Ints,
        choice: Choice | None,
    ) -> Found | None:
        """Take further M-steps while clients move, and measure how far clients are."""
        count, every = len(centroids), np.arange(len(label))
        inside = np.eye(count)[label]
        terms = statistics(self.phi, self.weight)
        for _ in range(1, M_STEPS - self.choose):  # the exchange that K took
            if ((label := self._e_step(centroids, inside)) < 0).any():
                return None
            if (inside[every, label] > 0).all():
                break  # nobody moved
            sums = self.exchange.sums("means", terms, self.clients, label, count)
            opened = np.flatnonzero(np.isfinite(sums).all(axis=1))  # of others too few moved
            new = m_step(np.nan_to_num(sums), centroids)
            theta, mass = centroids.theta.copy(), centroids.mass.copy()
            theta[opened], mass[opened] = new.theta[opened], new.mass[opened]
            centroids = Centroids(theta, mass)
            inside[:, opened] = label[:, None] == opened
        else:
            if ((label := self._e_step(centroids, inside)) < 0).any():
                return None
        return Found(centroids, label, inside, self._spread(centroids, label), sketch, len(leaves), choice)

    def _e_step(self, centroids: Centroids, inside: Floats) -> Ints:
        """Let each client find the cluster that it would join at the least cost, and tell the server."""
        cost = joining_cost(self.phi, self.weight, centroids, inside)
        return self.exchange.tell(self.clients, cost.argmin(axis=1), len(centroids))

    def _spread(self, centroids: Centroids, label: Ints) -> Floats:
        """Tell how far clients are from their centroids, and how much that varies.

        The mean follows from the centroids: of blocks of length one, the mean's length is the mean cosine.
        How much errors vary takes one more sum, over all clients of all clusters together.
        """
        mass = centroids.mass
        squares = (mass * np.einsum("kbf,kbf->kb", centroids.theta, centroids.theta)).sum(axis=1)
        mean = 1.0 - np.sqrt(squares / np.maximum(mass.sum(axis=1), NOISE))
        count = np.bincount(label, minlength=len(mass)).astype(np.float64)
        error = 1.0 - cosine(self.phi, self.weight, centroids)[np.arange(len(label)), label]
        scaled = ERROR_SCALE * (error - mean[label])
        total = self._sum("errors", np.column_stack([scaled, scaled**2]), "moments")
        deviation = np.nan
        if total is not None:
            average, square = total / len(label)
            deviation = ABSOLUTE * np.sqrt(max(square - average**2, 0.0)) / ERROR_SCALE
        return np.column_stack([count, mean, np.full(len(mass), deviation)])
