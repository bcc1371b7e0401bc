"""Robust mode: what replaces the random start and the reclustering of Algorithm 1.

Each step is made of sums, and asked of a round's participants alone (measured against paper mode in
results/clustering.md):
- metadata are scaled to length one class by class, and weighted by how many samples are behind them;
- the first clients to come, some forty, are scattered at random over a *crowd* of 3 K small clusters; EM
  goes on with these, and Ward's merging (`em/ward.py`) says each round which belong together. When clients
  have come three times on average, the crowd is merged for good. Many small clusters rarely miss a group,
  where K random ones often do. Where clients are few and sums over one may be opened, each begins alone,
  and again when some join or drift;
- clients are compared with centroids without their own part in them (`em/others.py`), and once the crowd is
  merged, clusters share the blocks in which they do not differ;
- in place of reclustering, split-merge moves (`em/splitmerge.py`) are made by some participants and judged by
  others. A move goes through three stages, each as many rounds as it takes to hear enough clients:
  turn (the direction in which a cluster is widest), part (the two halves), test (with which merger, if any,
  are others nearer?). Proposing stops after `PATIENCE` failures in a row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flameche.em import splitmerge, ward
from flameche.em.spherical import Centroids, Floats, Ints, m_step
from flameche.em.splitmerge import Options
from flameche.methods.base import UNSEEN, Arrays
from flameche.methods.move import PARTING, TESTING, TURNING, Move
from flameche.protocol.phases import Phase, Result
from flameche.protocol.search import PairedTest, Statistics, Turn
from flameche.rng import stream

if TYPE_CHECKING:
    from flameche.methods.flameche import Flameche

PATIENCE = 8
WAIT = 15  # rounds for one stage
HEARD = 40  # clients behind a verdict
TURNS, FEW_TURNS, PARTS = 10, 3, 4  # exchanges a round: power iterations, with few members, Lloyd steps
SHARE = 3  # of a cluster's members, one in three is enough to split it
GATHER = 40  # clients behind the first centroids
OFTEN = 3  # times that clients have taken part, on average, before the crowd is merged for good
# Or that many a small cluster, after so many rounds: in a large federation few come twice.
ENOUGH, SETTLED = 20, 5


class Robust:
    """Seeds and improves the centroids of a FLAMECHE."""

    def __init__(self, flameche: Flameche) -> None:
        self.it = flameche
        self.gathering, self.crowded = True, True
        self.heard = 0  # participations
        self.rounds = 0  # since clients were gathered
        self.move: Move | None = None
        self.tried = 0
        self.failed = 0  # moves in a row

    @property
    def least(self) -> int:
        """Count the clients of the smallest group that matters."""
        return splitmerge.least_group(len(self.it.present), self.it.clusters, self.it.world.min_cluster)

    @property
    def few(self) -> bool:
        """Tell whether each client began alone, so that nothing was left to chance."""
        return len(self.it.centroids) == self.it.world.clients

    @property
    def wanted(self) -> int:
        """Count the clients behind the first centroids."""
        return max(GATHER, 2 * self.it.world.min_cluster * len(self.it.centroids))

    def scatter(self, r: int, clients: Ints) -> Ints:
        """Put newcomers into random sums, evenly; the others stay in theirs.

        Means over many random clients are all alike, so that no more than twice the wanted are taken.
        """
        it = self.it
        row = it.row[clients].copy()
        rng = stream(it.world.seed, "crowd", r)
        room = max(2 * self.wanted, 4 * len(it.centroids)) - len(it.seen)
        new = np.flatnonzero(row == UNSEEN)
        if len(new) > room:
            new = np.sort(rng.choice(new, max(0, room), replace=False))
        row[new] = (rng.permutation(len(new)) + rng.integers(len(it.centroids))) % len(it.centroids)
        return row

    def after(self, r: int, participants: Ints) -> bool:
        """Merge the crowd of small clusters to K for now or for good, then look for moves."""
        self.heard += len(participants)
        if self.gathering:
            most = max(1, 3 * len(self.it.present) // 4)  # some may never come
            if len(self.it.seen) >= min(most, self.wanted):
                self.gathering = False
                self.it.models = self.it.models.pick(np.zeros(self.it.clusters, np.int64))
            if self.gathering or not self.few:
                return False
        if not self.crowded:
            return self.improve(r, participants)
        before = self.it.assignment
        self._merge()
        return bool(((before != UNSEEN) & (before != self.it.assignment)).any())

    def _merge(self) -> None:
        """Merge by Ward to K clusters; for good once clients have come often enough on average."""
        it = self.it
        sizes = np.bincount(it.row[it.seen], minlength=len(it.centroids)).astype(np.float64)
        left = np.where(sizes[:, None] > 0, it.centroids.mass, 0.0)  # what everybody has left counts no more
        filled = Centroids(it.centroids.theta, left)
        once = left / np.maximum(it.running[:, -1:], 1.0) if self.few else left  # decayed sums hold it often
        label = ward.merge_down(Centroids(it.centroids.theta, once), it.clusters, alone=self.few)
        it.label = ward.keep_names(label, it.label, sizes)
        if self.few:  # who comes next trains what most train, until its group is known
            it.label[sizes == 0] = np.bincount(it.label, sizes).argmax()
            it.running[sizes == 0] = 0.0  # who has left is forgotten, and nobody compared with it
            it.centroids = Centroids(np.where(sizes[:, None, None] > 0, filled.theta, 0.0), left)
        self.rounds += 1
        settled = self.rounds >= SETTLED and self.heard >= OFTEN * ENOUGH * len(it.centroids)
        come = len(it.seen) == len(it.present) and not it.untold[it.seen].any()  # a group, perhaps
        if (come or not self.few) and (settled or self.heard >= OFTEN * len(it.seen)):
            self.crowded = False
            rows, seen, own = len(it.centroids), it.seen, it.centroids.own
            it.running[sizes == 0] = 0.0  # what was left does not fade; and of which cluster would it be?
            own = None if own is None else own * (sizes > 0)
            it.centroids = replace(ward.join(filled, it.label, rows), own=ward.joined(own, it.label))
            running = np.zeros_like(it.running)
            np.add.at(running, it.label, it.running)
            it.running = running
            it.row[seen] = it.label[it.row[seen]]
            it.label = np.arange(rows) % it.clusters
            it.sums.retire(np.arange(it.clusters, rows))
        it._tell()

    def improve(self, r: int, participants: Ints) -> bool:
        """Work on a move with this round's participants; tell whether one was made."""
        if self.move is None and self.failed < PATIENCE and not self.few:
            self.move = self._propose(r, participants)
        move = self.move
        if move is None:
            return False
        if self._outlived(move, participants):
            self.move = None  # its cluster has nearly gone; that is no failure
            return False
        move.waited += 1
        if move.stage == TESTING:
            return self._test(move, participants)
        nearest, _ = self.it.cohort.e_step(participants, self.it.centroids)
        members = self._makers(move, participants[nearest == move.cluster], r)
        if len(members) >= max(1, self.it.world.min_cluster):
            move.fitted[members] = 1
            if move.stage == TURNING:
                self._turn(move, members)
            if move.stage == PARTING:
                self._part(move, members)
        return False

    def _outlived(self, move: Move, participants: Ints) -> bool:
        """Tell whether a move waits in vain, since its cluster has become small."""
        it = self.it
        size = it.sums.census(it.seen, participants, it.row, it.error).seen[move.cluster]
        return move.stage != TESTING and (size < 2 * self.least or move.waited >= WAIT)

    def _makers(self, move: Move, members: Ints, r: int) -> Ints:
        """Choose who makes a move: half of the cluster at most, since the others have to judge it."""
        new = members[move.fitted[members] == 0]
        room = int((self.it.row == move.cluster).sum()) // 2 - int(move.fitted.sum())
        chosen = stream(self.it.world.seed, "splitmerge", r, "makers").permutation(new)[: max(0, room)]
        return np.sort(np.concatenate([members[move.fitted[members] == 1], chosen]))

    def _propose(self, r: int, participants: Ints) -> Move | None:
        """Pick a cluster to split: in turn the one with the largest error, and any."""
        it = self.it
        census = it.sums.census(it.seen, participants, it.row, it.error)
        large = np.flatnonzero(census.seen[: it.clusters] >= 2 * self.least)
        if it.clusters < 3 or len(large) == 0:
            return None
        rng = stream(it.world.seed, "splitmerge", r)
        self.tried += 1
        worst = int(large[census.error[large].argmax()])
        blocks, features = it.cohort.blocks
        size = blocks * features
        direction = rng.standard_normal(size)
        return Move(
            cluster=worst if self.tried % 2 else int(rng.choice(large)),
            direction=direction / np.linalg.norm(direction),
            before=np.zeros(size),
            halves=np.zeros((2, size + blocks + 1)),
            side=np.full(it.world.clients, -1),
            fitted=np.zeros(it.world.clients, np.int64),
        )

    def _turn(self, move: Move, members: Ints) -> None:
        """Turn the direction by power iterations over the members that are there."""
        centre, many = self.it.centroids.theta[move.cluster], len(members) >= 2 * self.least
        total = move.before
        for _ in range(TURNS if many else FEW_TURNS):
            total = move.before + self._sum(Turn(centre, move.direction), members)
            length = np.linalg.norm(total)
            if length > 0:
                move.direction = total / length
        move.before = total
        self._hear(move, members, PARTING)

    def _part(self, move: Move, members: Ints) -> None:
        """Part the members in two, by the direction first and then by the nearer half."""
        it, halves = self.it, move.halves
        if halves[:, -1].min() < 0.5:
            side = it.cohort.sides(members, it.centroids.theta[move.cluster], move.direction)
        else:
            side = self._nearer(halves, members)
        for _ in range(PARTS):
            halves = move.halves + self._sum(Statistics(), members, side)[:2]
            if halves[:, -1].min() < 0.5:
                break
            side = self._nearer(halves, members)
        move.halves = halves
        move.side[members] = side
        self._hear(move, members, TESTING)
        if move.stage == TESTING:
            self._assemble(move)

    def _hear(self, move: Move, members: Ints, then: int) -> None:
        """Go on to the next stage when enough members were heard, at once or over some rounds."""
        move.heard += len(members)
        enough = max(2 * self.least, int((self.it.row == move.cluster).sum()) // SHARE)
        if len(members) >= enough or (move.heard >= 4 * self.least and move.fitted.sum() >= enough):
            move.stage, move.heard, move.waited = then, 0, 0

    def _nearer(self, halves: Floats, members: Ints) -> Ints:
        blank = self.it.centroids
        two = m_step(halves, Centroids(np.zeros_like(blank.theta[:2]), np.zeros_like(blank.mass[:2])))
        return self.it.cohort.e_step(members, two)[0]

    @property
    def _alive(self) -> Centroids:
        it, now = self.it, self.it.centroids
        own = np.zeros((it.world.clients, len(now))) if now.own is None else now.own
        return Centroids(now.theta[: it.clusters], now.mass[: it.clusters], own[:, : it.clusters])

    @property
    def _sizes(self) -> Floats:
        it = self.it
        return it.sums.census(it.seen, it.seen, it.row, it.error).seen[: it.clusters]

    def _assemble(self, move: Move) -> None:
        """Choose the mergers that are to be judged together with the split."""
        if move.halves[:, -1].min() > self.least - 0.5:
            move.pairs = splitmerge.pairs(self._alive, move.cluster, move.halves, self._sizes)
        move.verdict = np.zeros(2 * len(move.pairs) + 1)
        if len(move.pairs) == 0:
            self._give_up()

    def _test(self, move: Move, participants: Ints) -> bool:
        """Ask clients that had no part in the move; decide when enough were heard."""
        others = participants[move.fitted[participants] == 0]
        options = splitmerge.options(self._alive, move.cluster, move.halves, move.pairs, self._sizes)
        if len(others) >= max(1, self.it.world.min_cluster):
            self.it.world.ledger.received("exchange", others, 4 * move.halves.size)
            move.verdict = move.verdict + self._sum(PairedTest(options), others)
        count = len(move.pairs)
        gain, squares, heard = move.verdict[:count], move.verdict[count:-1], move.verdict[-1]
        if heard < min(HEARD, len(self.it.present) // 2) - 0.5:  # CKKS counts nearly right
            return False
        good = [splitmerge.convincing(*each, heard) for each in zip(gain, squares, strict=True)]
        if not any(good):
            self._give_up()
            return False
        self._make(move, options, int(np.where(good, gain, -np.inf).argmax()))
        return True

    def _give_up(self) -> None:
        self.move, self.failed = None, self.failed + 1

    def _make(self, move: Move, options: Options, chosen: int) -> None:
        """Make a move; clients of the split cluster whose half nobody knows have to be asked again."""
        it, c, was, empty = self.it, move.cluster, self.it.row.copy(), self._sizes == 0
        a, b = (int(k) for k in move.pairs[chosen])
        kept, places = splitmerge.places(it.clusters, c, a, b)
        known = (was == c) & (move.side >= 0)
        it.row[was == c] = UNSEEN
        it.row[known] = places[move.side[known]]
        before = it.running.copy()
        before[: it.clusters][empty] = 0.0  # it is of those who left
        running = before.copy()
        running[places] = move.halves
        running[kept] = before[kept] + move.halves[places == kept].sum(axis=0)
        if kept not in places:  # two other clusters were merged
            it.row[was == b] = a
            running[a] += before[b]
            source = np.arange(it.clusters)
            source[a], source[b] = a if (was == a).sum() >= (was == b).sum() else b, c
            it.models = it.models.pick(source)  # who moves takes its model along
        it._tell()
        it.centroids, it.running = splitmerge.made(it.centroids, options, chosen, kept, places), running
        self.move, self.failed = None, 0

    def _sum(self, phase: Phase[Result], clients: Ints, cluster: Ints | None = None) -> Result:
        """Exchange one phase with some participants."""
        where = np.zeros(len(clients), np.int64) if cluster is None else cluster
        return self.it.sums.once(phase, clients, where, self.it.centroids)

    def state(self) -> Arrays:
        """Give the move that is under way."""
        numbers = (self.tried, self.failed, self.gathering, self.crowded, self.heard, self.rounds)
        arrays: Arrays = {"robust/counts": np.array(numbers, np.int64)}
        if self.move is not None:
            arrays |= self.move.arrays()
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        counts = [*(int(n) for n in arrays["robust/counts"]), 0]  # earlier checkpoints have no rounds
        self.tried, self.failed, gathering, crowded, self.heard, self.rounds = counts[:6]
        self.gathering, self.crowded = bool(gathering), bool(crowded)
        self.move = Move.from_arrays(arrays)
