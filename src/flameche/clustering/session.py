"""A clustering session: clusters of a fixed set of clients, in at most eight exchanges.

    1     second moments over everybody -> the directions in which clients differ, q numbers a client
    (`em/sketch.py`)
    2-5   twice: histograms of leaves -> cuts; sums of the new leaves' sketches (`em/leaves.py`)
    -     leaves are joined into K clusters by Ward's criterion, which opens nothing
    6-7   M-steps in full dimension while clients move
    8     how far clients are from their centroids

Every exchange is contribute -> add -> absorb. After the last one nothing is opened any more: other clients
and those that come later find their cluster by an E-step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flameche.em import leaves as splitting
from flameche.em.hartigan import joining_cost
from flameche.em.sketch import Sketch, moment_terms, projection, sketch_from
from flameche.em.spherical import NOISE, Centroids, Floats, Ints, cosine, statistics
from flameche.em.ward import merge_down
from flameche.privacy.guard import Kind
from flameche.protocol.exchange import Exchange

LEVELS, M_STEPS = 2, 2
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


class Session:
    """The exchanges of one session; `phi` [n B F], `weight` [n B]: the clients' metadata, as prepared."""

    def __init__(
        self, exchange: Exchange, clients: Ints, phi: Floats, weight: Floats, clusters: int, least: int
    ) -> None:
        self.exchange, self.clients, self.phi, self.weight = exchange, clients, phi, weight
        self.clusters, self.least = clusters, max(1, least)

    def run(self, rng: np.random.Generator) -> Found | None:
        """Play all exchanges; None where a sum that everything rests on may not be opened."""
        sketch = self._sketch(rng)
        if sketch is None:
            return None
        y = sketch.of(self.phi, self.weight)
        found = self._leaves(y, sketch.variance)
        if found is None:
            return None
        leaf, leaves = found
        count = min(self.clusters, len(leaves))
        label = merge_down(leaves.as_centroids(), count)[leaf]
        return self._refined(label, count, sketch, len(leaves))

    def _sketch(self, rng: np.random.Generator) -> Sketch | None:
        _, blocks, features = self.phi.shape
        matrix = projection(rng, blocks, features)
        total = self._sum("second moments", moment_terms(self.phi, self.weight, matrix), "moments")
        if total is None:
            return None
        few = max(self.clusters - 1, len(self.clients) // 4)
        return sketch_from(total, matrix, min(max(self.clusters + 1, 5), few))

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
            cuts = splitting.widest(leaves)
            some = np.flatnonzero((leaves.count >= 2 * self.least)[leaf])
            if len(some) == 0:
                break
            terms = splitting.histogram_terms(cuts, y[some], leaf[some])
            bins = self.exchange.sums(
                "histograms", terms, self.clients[some], leaf[some], len(leaves), "histogram"
            )
            cuts = splitting.choose_cuts(cuts, bins, self.least)
            if not np.isfinite(cuts.at).any():
                break
            parts = 1 << cuts.at.shape[1]
            part = self.exchange.tell(self.clients, splitting.part(cuts, y, leaf), parts)
            new = splitting.kept_parts(leaf, part, cuts.at.shape[1], self.least)
            if new.max() == leaf.max():
                break
            count = np.bincount(new).astype(np.float64)
            sums = self.exchange.sums("sketches", y, self.clients, new, len(count))
            if not np.isfinite(sums).all():
                break
            leaf, leaves = new, splitting.read_leaves(sums, count, total)
        return leaf, leaves

    def _refined(self, label: Ints, count: int, sketch: Sketch, leaves: int) -> Found | None:
        """Take M-steps in full dimension while clients move, and measure how far clients are."""
        n, blocks, features = self.phi.shape
        theta, mass = np.zeros((count, blocks, features)), np.zeros((count, blocks))
        terms, inside = statistics(self.phi, self.weight), np.zeros((n, count))
        for step in range(M_STEPS):
            if step and (inside[np.arange(n), label] > 0).all():
                break  # nobody moved
            sums = self.exchange.sums("means", terms, self.clients, label, count)
            opened = np.asarray(
                np.isfinite(sums).all(axis=1)
            )  # where too few moved, a centroid stays as it is
            if step == 0 and not opened.all():
                return None
            mass = np.where(opened[:, None], sums[:, blocks * features : -1], mass)
            totals = sums[:, : blocks * features].reshape(count, blocks, features)
            means = totals / np.maximum(mass, NOISE)[:, :, None] * (mass > NOISE)[:, :, None]
            theta = np.where(opened[:, None, None], means, theta)
            inside[:, opened] = label[:, None] == np.flatnonzero(opened)
            cost = joining_cost(self.phi, self.weight, Centroids(theta, mass), inside)
            label = self.exchange.tell(self.clients, cost.argmin(axis=1), count)
        centroids = Centroids(theta, mass)
        return Found(centroids, label, inside, self._spread(centroids, label), sketch, leaves)

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
