"""Chooses K before any training, from sums alone: cluster with many clusters, merge, ask held-out clients.

In turn, a part of the clients is held out (a third; less of a small federation). The others are scattered
over a crowd of small clusters, EM settles these, and Ward's merging leads from many clusters down to one,
with a few EM steps after each merger. The held-out clients judge the mergers (`em/selection.py`). The same
way down over all clients gives what is shown beside it for each K: Davies-Bouldin (the paper's criterion),
Calinski-Harabasz, silhouette; the leakage guard may hold some of these back.

All clients take part. They seal their metadata once; each step down is one round of EM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flameche.em import ward
from flameche.em.selection import Clear, Merger, clearness, recommend
from flameche.em.spherical import Centroids, filled
from flameche.errors import BadInput
from flameche.methods.base import Ints, World
from flameche.protocol.guard import LeakageGuard
from flameche.protocol.phases import MStep, Spread, UnitMeans
from flameche.protocol.search import MergerTest, Silhouette
from flameche.protocol.sums import stacked
from flameche.rng import stream

FOLDS, MORE_FOLDS, FEW = 3, 7, 60  # in how many parts clients are held out; with fewer clients than FEW, more
SETTLE, AFTER_MERGER = 12, 3  # EM steps at most: for the crowd, after each merger
CROWD, EACH = 3, 2  # small clusters for each that may be; clients in each of them, at least
LEAST = 12  # clients without which nothing can be said


@dataclass(frozen=True)
class Candidate:
    """One number of clusters, judged without the truth."""

    k: int
    merger: Merger | None  # of this many clusters to one fewer; None for the first
    dbi: float
    ch: float
    silhouette: float
    assignment: Ints  # [C]


@dataclass(frozen=True)
class Selection:
    """The recommended K, the candidates, and what it took."""

    k: int
    clear: Clear
    candidates: list[Candidate]
    more: bool  # the largest K allowed was not enough
    exchanges: int

    def preferred(self) -> dict[str, int | None]:
        """Tell which K each of the usual criteria would take."""
        found: dict[str, int | None] = {}
        for name, sign in (("dbi", -1), ("ch", 1), ("silhouette", 1)):
            known = [(sign * getattr(c, name), -c.k) for c in self.candidates if c.k > 1]
            finite = [pair for pair in known if np.isfinite(pair[0])]
            found[name] = -max(finite)[1] if finite else None
        return found


def select_clusters(
    world: World, most: int = 8, *, progress: Callable[[int, int], None] | None = None
) -> Selection:
    """Choose a number of clusters from 1 to `most`."""
    return Search(world, most).run(progress)


class Search:
    """The exchanges of one selection."""

    def __init__(self, world: World, most: int) -> None:
        some = max(EACH, world.min_cluster)
        self.folds = FOLDS if world.clients >= FEW else max(FOLDS, min(MORE_FOLDS, world.clients // some))
        fitting = world.clients - -(-world.clients // self.folds)
        top = max(most + 1, 3 * most // 2)  # so that `most` itself can be refused a merger
        rows = min(CROWD * top, fitting // some)
        if world.clients < LEAST or rows < 2:
            raise BadInput(
                f"{world.clients} clients are too few to choose the number of clusters: expected at least "
                f"{max(LEAST, FOLDS * some)}"
                + (f" with scheme.min_cluster = {world.min_cluster}" if world.min_cluster > 1 else "")
                + "; set method.clusters to a number"
            )
        self.world, self.most, self.rows = world, most, rows
        self.top = min(top, rows)
        self.cohort = world.cohort(scaled=True)
        self.sums = world.sums(self.cohort, rows, over="participants")
        self.shown = LeakageGuard(world.clients, rows, world.min_cluster)  # of the sums behind the criteria
        self.exchanges = 0
        self.progress: Callable[[int, int], None] | None = None
        self.steps = 0  # numbers of clusters that were looked at

    def run(self, progress: Callable[[int, int], None] | None) -> Selection:
        """Play all folds, then the way down over all clients."""
        self.progress = progress
        clients = np.arange(self.world.clients)
        fold = stream(self.world.seed, "select-k", "folds").permutation(self.world.clients) % self.folds
        judged: dict[int, list[Merger]] = {}
        for f in range(self.folds):
            steps = [step for step, _ in self._down(clients[fold != f], f)]
            held = clients[fold == f]
            self._count(MergerTest(tuple(steps)).steps, held)
            found = self.sums.once(MergerTest(tuple(steps)), held, np.zeros_like(held), steps[0])
            for merger in found:
                judged.setdefault(merger.k, []).append(merger)
        pooled = [
            Merger(k, sum(m.gain for m in each), sum(m.squares for m in each), sum(m.absolute for m in each))
            for k, each in judged.items()
        ]
        candidates = [
            self._candidate(step, row, {m.k: m for m in pooled})
            for step, row in self._down(clients, self.folds)
            if len(step) <= self.most
        ]
        wanted = recommend(pooled)
        candidates.sort(key=lambda c: c.k)
        chosen = max(c.k for c in candidates if c.k <= wanted)  # of those that all clients together reach
        clear = clearness(pooled, chosen) if chosen == wanted else "close"
        return Selection(chosen, clear, candidates, wanted > self.most, self.exchanges)

    def _down(self, members: Ints, fold: int) -> list[tuple[Centroids, Ints]]:
        """Cluster members [n] by `top` clusters, then fewer, down to one: centroids and clusters of each."""
        rng = stream(self.world.seed, "select-k", fold)
        rows = min(self.rows, len(members) // max(EACH, self.world.min_cluster))
        blank = np.zeros((self.rows, *self.cohort.blocks))
        start = Centroids(blank, np.zeros(blank.shape[:2]))
        row = (rng.permutation(len(members)) % rows).astype(np.int64)
        centroids, row = self._settle(start, row, members, SETTLE)
        found: list[tuple[Centroids, Ints]] = []
        for k in range(self.top, 0, -1):
            centroids, row = self._settle(*self._merge(centroids, row, k), members)
            self.steps += 1
            if self.progress:
                self.progress(self.steps, (self.folds + 1) * self.top)
            if not found or len(np.unique(row)) < len(found[-1][0]):
                alive, own = np.unique(row, return_inverse=True)
                found.append((Centroids(centroids.theta[alive], centroids.mass[alive]), own))
        return found

    def _merge(self, centroids: Centroids, row: Ints, k: int) -> tuple[Centroids, Ints]:
        """Merge the clusters that have members down to k."""
        alive, own = np.unique(row, return_inverse=True)
        filled = Centroids(centroids.theta[alive], centroids.mass[alive])
        label = ward.merge_down(filled, k)
        return ward.join(filled, label, self.rows), label[own]

    def _settle(
        self, centroids: Centroids, row: Ints, members: Ints, steps: int = AFTER_MERGER
    ) -> tuple[Centroids, Ints]:
        """Take M- and E-steps until nobody moves: the M-step over the clusters [n] that members are in."""
        nobody = np.zeros(len(members))
        for _ in range(steps):
            self.sums.offer(members, row, nobody, centroids)
            totals = stacked(self.sums.totals(members, row))
            if totals.shape[1]:
                centroids = filled(MStep(centroids).absorb(totals))
            alive = np.unique(row)
            here = Centroids(centroids.theta[alive], centroids.mass[alive])
            self._count((here,), members)
            moved = alive[self.cohort.e_step(members, here)[0]]
            if (moved == row).all():
                break
            row = moved
        return centroids, row

    def _candidate(self, step: Centroids, row: Ints, judged: dict[int, Merger]) -> Candidate:
        """Judge the clustering of all clients with this many clusters by the usual criteria."""
        every, k = np.arange(self.world.clients), len(step)
        dbi = ch = silhouette = float("nan")
        if k > 1 and sum(self.shown.permits(every, row)) == k:
            blank = Centroids(
                np.zeros((self.rows, *self.cohort.blocks)), np.zeros((self.rows, len(step.mass[0])))
            )
            means = self.sums.once(UnitMeans(blank), every, row, blank)
            dbi, ch = self.sums.once(Spread(means), every, row, blank)
            silhouette = self.sums.once(Silhouette(means), every, row, blank)
            self.exchanges += 3
        return Candidate(k, judged.get(k - 1), dbi, ch, silhouette, row)

    def _count(self, sent: tuple[Centroids, ...], clients: Ints) -> None:
        """Count an exchange, and the centroids' way down to these clients."""
        self.exchanges += 1
        numbers = sum(each.theta.size + each.mass.size for each in sent)
        sealed = self.sums.broadcast_bytes
        self.world.ledger.received("centroids", clients, 4 * numbers if sealed is None else sealed)
