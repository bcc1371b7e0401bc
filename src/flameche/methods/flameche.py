"""FLAMECHE: clusters by distributed EM over metadata, with a server that only adds.

Ben Ali, Megdiche, Péninou and Teste, "Encryption-Compatible Clustered Federated Learning via Distributed
Expectation-Maximization over Metadata". `Flameche.round` is its Algorithm 1, in its order.

Deviations, where the printed algorithm does not reach the paper's own figures (measured in results/):
- theta^(0) comes from a random partition of the first round's participants. `init = "vectors"` draws
  Gaussian vectors instead; all metadata lie in a narrow cone, so these catch everybody in one cluster.
- A cluster counts as empty at a reclustering when none of this round's *participants* is in it.
  `empty = "seen"` is the rule as printed.
- No reclustering in the last round, whose random draws nobody could correct any more.
  `recluster_last = true` is the loop as printed.
- A reclustering moves all clients of the worst cluster, as printed. `recluster_over = "participants"` moves
  only those present; secure aggregation and hidden assignments can do no other.
- Missing classes stay out of sums and cosines (`missing = "counts"`); the paper's imputation is "impute".
`mode = "robust"` replaces the start and the reclustering by what always works (`robust.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flameche.em.others import alike
from flameche.em.recluster import redistribute, worst_cluster
from flameche.em.seeding import crowd, start
from flameche.em.spherical import NOISE, Centroids, Floats, filled
from flameche.methods.base import UNSEEN, About, Arrays, Ints, Outcome, World
from flameche.methods.living import Living
from flameche.methods.robust import Robust
from flameche.protocol.client import Missing
from flameche.protocol.phases import Deviations, Errors, MStep, Spread, UnitMeans
from flameche.protocol.sums import Sums, stacked
from flameche.rng import stream

DECAY = 0.9  # of earlier rounds' sums, where they cannot be summed again
ASSIGNMENT_BYTES = 8  # k_i and e_i, four bytes each


class Flameche(Living):
    """Algorithm 1 of the paper; its lines are numbered in `round`."""

    about: ClassVar[About] = About(
        "FLAMECHE",
        "metadata",
        "sums",
        "sealed metadata once; assignment, error, model",
        server="R·n·d",
        client="R·K·d",
        up="d",
        down="R·K·d",
    )

    def __init__(
        self,
        world: World,
        *,
        clusters: int = 4,
        mode: Literal["robust", "paper"] = "robust",
        tau: int = 10,
        empty: Literal["participants", "seen"] = "participants",
        init: Literal["partition", "vectors"] = "partition",
        m_step: Literal["seen", "participants", "decayed"] = "seen",
        unit_norm: bool = False,
        missing: Missing = "counts",
        recluster_last: bool = False,
        recluster_over: Literal["seen", "participants"] = "seen",
        hide_assignments: bool = False,
    ) -> None:
        super().__init__(world.clients)
        self.world, self.clusters = world, clusters
        self.tau, self.empty, self.init = tau, empty, init
        self.over: Literal["seen", "participants", "decayed"] = m_step
        self.recluster_last, self.recluster_over = recluster_last, recluster_over
        robust = mode == "robust"
        if robust and m_step == "seen" and not world.keeps_terms:
            self.over = "decayed"  # who is away cannot be moved to another sum
        self.cohort = world.cohort(unit_norm=unit_norm, missing=missing, robust=robust)
        self.hidden = hide_assignments
        over: Literal["seen", "participants"] = "seen" if self.over == "seen" else "participants"
        rows = clusters
        if robust and (over == "seen" or world.min_cluster <= 1):  # a round's few cannot fill a guarded crowd
            begin = start if world.keeps_terms else crowd  # one alone has nobody to mask with
            rows = begin(world.clients, clusters, world.min_cluster)
        self.sums: Sums = world.sums(self.cohort, rows, over=over, hidden=hide_assignments)
        self.models = world.initial_models(clusters)  # line 3
        self.row = np.full(world.clients, UNSEEN, np.int64)  # the sum each client is in; k_i in paper mode
        self.label = np.arange(rows) % clusters  # the cluster each sum belongs to
        self.assignment = self.row.copy()
        self.error = np.zeros(world.clients)
        shape = (rows, *self.cohort.blocks)
        self.centroids = Centroids(np.zeros(shape), np.zeros(shape[:2]))
        self.running = np.zeros((rows, shape[1] * shape[2] + shape[1] + 1))  # decayed sums
        self.robust = Robust(self) if robust else None
        if self.robust and self.robust.few:
            self.label[:] = 0  # all train one model until they know their groups
        if init == "vectors":
            draw = stream(world.seed, "flameche", "vectors").standard_normal(shape)
            self.centroids = Centroids(draw, np.ones(shape[:2]))

    def round(self, r: int, participants: Ints) -> bool:
        """Play round r of Algorithm 1; tell whether clients were redistributed."""
        if r == 1 and self.init == "partition" and not self.robust:  # line 3, theta^(0)
            self._partition(participants)
        self._broadcast(participants)  # line 6
        row, e = self._e_step(r, participants)  # lines 12-13, on the clients
        self._offer(participants, row, e)  # lines 8-11, sealed, on the clients
        k = self.model_of(row)
        trained = self.world.train(self.models, k, participants, r, hidden=self.hidden)  # line 14
        self.row[participants], self.error[participants] = row, e  # lines 15, 17-18
        self._tell()
        self.world.ledger.sent("assignment", participants, 0 if self.hidden else ASSIGNMENT_BYTES)
        self.models = self.world.average(  # line 20
            self.models, trained, k, participants, self.hidden, members=self.assignment
        )
        self._m_step(self.seen if self.over == "seen" else participants)  # line 21
        return self._escape(r, participants)  # lines 23-30

    @property
    def seen(self) -> Ints:
        """List the clients that have taken part: V in the paper."""
        return np.flatnonzero(self.row != UNSEEN)

    def model_of(self, row: Ints) -> Ints:
        """Tell which model serves the clients of these sums [n]."""
        served: Ints = self.label[row]
        return served

    def _e_step(self, r: int, clients: Ints) -> tuple[Ints, Floats]:
        """Assign clients [n] to the nearest centroids, in robust mode at first to random ones."""
        self.refuse_absent(clients)
        if self.robust and self.robust.few and self.robust.crowded:
            return clients.copy(), np.zeros(len(clients))
        if self.robust and self.robust.gathering:
            return self.robust.scatter(r, clients), np.zeros(len(clients))
        return self.cohort.e_step(clients, self.centroids)

    def _offer(self, clients: Ints, row: Ints, error: Floats) -> None:
        """Let clients [n] hand in what the sums need of them; not those that robust mode's start left out."""
        here = row != UNSEEN
        self.sums.offer(clients[here], row[here], error[here], self.centroids)
        self.untold[clients[here]] = False

    def _tell(self) -> None:
        """Say which cluster each client is in, from the sum it is in; nobody knows while clients gather."""
        known = (self.row != UNSEEN) & (not (self.robust and self.robust.gathering))
        self.assignment = np.where(known, self.label[self.row], UNSEEN)

    def _escape(self, r: int, participants: Ints) -> bool:
        """Leave a local optimum, in the way of the mode; tell whether clients were redistributed."""
        if self.robust:
            return self.robust.after(r, participants)
        due = self.tau > 0 and r % self.tau == 0 and (r < self.world.rounds or self.recluster_last)
        return due and self._recluster(r, participants)

    def _m_step(self, members: Ints) -> None:
        """Add and absorb what was contributed: theta from the sums over each cluster's members."""
        members = members[self.row[members] != UNSEEN]
        totals = self.sums.totals(members, self.row[members])
        if not any(total is not None for total in totals):
            return
        sums, held = stacked(totals), np.array([total is not None for total in totals])
        if self.over == "decayed":
            self.running[held] = DECAY * self.running[held] + sums[held]
            sums = self.running
        before, self.centroids = self.centroids, MStep(self.centroids).absorb(sums)
        if self.robust:
            self.centroids = filled(self.centroids)
        if self.robust and not self.robust.few:  # of few clients, too few others are in a cluster
            self.centroids = replace(self.centroids, own=self._parts(before.own, held, members))
            if not self.robust.crowded:
                clients = float(sums[:, -1].sum()) if self.over == "decayed" else float(len(members))
                self.centroids = replace(self.centroids, alike=alike(self.centroids, clients))

    def _parts(self, own: Floats | None, held: NDArray[np.bool_], members: Ints) -> Floats:
        """Note how often each sum holds each client's term [C R]; one that was not opened stays as it was.

        Who drifted and has not come since is there with what it had before, and has no part of its own.
        """
        parts = np.zeros((self.world.clients, len(held))) if own is None else own.copy()
        parts[:, held] *= DECAY if self.over == "decayed" else 0.0
        parts[members, self.row[members]] += held[self.row[members]] & ~self.untold[members]
        return parts

    def _recluster(self, r: int, participants: Ints) -> bool:
        """Share the clients of the cluster with the highest mean error among it and the empty ones."""
        seen = self.seen
        census = self.sums.census(seen, participants, self.row, self.error)
        empty = np.flatnonzero((census.present if self.empty == "participants" else census.seen) == 0)
        if len(empty) == 0:
            return False
        worst = worst_cluster(census.error, census.seen, empty)
        movable = self.sums.movable(seen, participants) if self.recluster_over == "seen" else participants
        members = movable[self.row[movable] == worst]
        targets = np.append(empty, worst)
        self.row[members] = redistribute(members, targets, stream(self.world.seed, "recluster", r))
        self._tell()
        self.sums.offer(participants, self.row[participants], self.error[participants], self.centroids)
        self._m_step(seen if self.over == "seen" else participants)
        return True

    def _partition(self, participants: Ints) -> None:
        """Make theta^(0) from a random partition of the first participants, by the same sums."""
        order = stream(self.world.seed, "flameche", "partition").permutation(len(participants))
        part = order % self.clusters
        self.sums.offer(participants, part, np.zeros(len(part)), self.centroids)
        self.row[participants] = part
        self._m_step(participants)
        self.row[participants] = UNSEEN

    def _broadcast(self, clients: Ints) -> None:
        """Count the centroids' way down: sealed sums where clients open them, else four bytes a number."""
        rows = self.clusters if self.robust and not self.robust.crowded else len(self.centroids)
        numbers = self.centroids.theta[:rows].size + self.centroids.mass[:rows].size
        sealed = self.sums.broadcast_bytes
        self.world.ledger.received("centroids", clients, 4 * numbers if sealed is None else sealed)

    def serving(self) -> Ints:
        """Serve each client its cluster's model; one never seen takes an E-step to find its own."""
        serving, unseen = self.assignment.copy(), np.flatnonzero(self.assignment == UNSEEN)
        if len(unseen):
            serving[unseen] = self.label[self.cohort.e_step(unseen, self.centroids)[0]]
        return serving

    def finish(self) -> Outcome:
        """Take a last E-step over all clients, judge it by DBI and CH, and keep what a newcomer needs."""
        every, final = self.present, np.full(self.world.clients, UNSEEN, np.int64)
        nearest = self.cohort.e_step(every, self.centroids)[0]
        k = np.where(nearest == UNSEEN, UNSEEN, self.label[nearest])  # who cannot be asked stays where it was
        final[every] = np.where(k == UNSEEN, self.assignment[every], k)
        blank = Centroids(np.zeros_like(self.centroids.theta), np.zeros_like(self.centroids.mass))
        means = self.sums.once(UnitMeans(blank), every, k, self.centroids)
        dbi, ch = self.sums.once(Spread(means), every, k, self.centroids)
        mean = self.sums.once(Errors(self.centroids), every, k, self.centroids)
        width = self.sums.once(Deviations(self.centroids, mean), every, k, self.centroids)
        alive = np.flatnonzero((self.centroids.mass > NOISE).any(axis=1))
        theta, mass, label = self.centroids.theta[alive], self.centroids.mass[alive], self.label[alive]
        spread = np.column_stack([mean, width])[: self.clusters]
        return Outcome(final, dbi, ch, {"theta": theta, "mass": mass, "label": label, "spread": spread})

    def state(self) -> Arrays:
        """Give errors, centroids and the server's sealed terms."""
        own: Arrays = {"theta": self.centroids.theta, "mass": self.centroids.mass, "running": self.running}
        moves = self.robust.state() if self.robust else {}
        own |= {"error": self.error, "row": self.row, "label": self.label}
        known = {"own": self.centroids.own, "alike": self.centroids.alike}
        own |= {f"centroids/{name}": array for name, array in known.items() if array is not None}
        return {**own, **moves, **self.living_state(), **self.sums.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.error = arrays["error"].astype(np.float64)
        self.row, self.label = arrays["row"].astype(np.int64), arrays["label"].astype(np.int64)
        own, same = (arrays.get(f"centroids/{name}") for name in ("own", "alike"))  # earlier ones have none
        self.centroids = Centroids(
            arrays["theta"].astype(np.float64),
            arrays["mass"].astype(np.float64),
            None if own is None else own.astype(np.float64),
            None if same is None else same.astype(bool),
        )
        self.running = arrays["running"].astype(np.float64)
        self.restore_living(arrays)
        self.sums.restore(arrays)
        if self.robust:
            self.robust.restore(arrays)
