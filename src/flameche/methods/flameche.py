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
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from flameche.em.recluster import redistribute, worst_cluster
from flameche.em.spherical import Centroids
from flameche.methods.base import UNSEEN, About, Arrays, Ints, Outcome, World
from flameche.protocol.client import Cohort, Missing
from flameche.protocol.phases import MStep, Spread, UnitMeans
from flameche.protocol.sums import Sums, stacked
from flameche.rng import stream

ASSIGNMENT_BYTES = 8  # k_i and e_i, four bytes each


class Flameche:
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
        mode: Literal["paper"] = "paper",
        tau: int = 10,
        empty: Literal["participants", "seen"] = "participants",
        init: Literal["partition", "vectors"] = "partition",
        m_step: Literal["seen", "participants"] = "seen",
        unit_norm: bool = False,
        missing: Missing = "counts",
        recluster_last: bool = False,
        recluster_over: Literal["seen", "participants"] = "seen",
        hide_assignments: bool = False,
    ) -> None:
        self.world, self.clusters = world, clusters
        self.tau, self.empty, self.init, self.over = tau, empty, init, m_step
        self.recluster_last, self.recluster_over = recluster_last, recluster_over
        self.cohort = Cohort(world.metadata, world.scheme, world.ledger, unit_norm=unit_norm, missing=missing)
        self.hidden = hide_assignments
        self.sums: Sums = world.sums(self.cohort, clusters, over=m_step, hidden=hide_assignments)
        self.models = world.initial_models(clusters)  # line 3
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.error = np.zeros(world.clients)
        shape = (clusters, *self.cohort.blocks)
        self.centroids = Centroids(np.zeros(shape), np.zeros(shape[:2]))
        if init == "vectors":
            draw = stream(world.seed, "flameche", "vectors").standard_normal(shape)
            self.centroids = Centroids(draw, np.ones(shape[:2]))

    def round(self, r: int, participants: Ints) -> bool:
        """Play round r of Algorithm 1; tell whether clients were redistributed."""
        if r == 1 and self.init == "partition":  # line 3, theta^(0)
            self._partition(participants)
        self._broadcast(participants)  # line 6
        k, e = self.cohort.e_step(participants, self.centroids)  # lines 12-13, on the clients
        self.sums.offer(participants, k, e, self.centroids)  # lines 8-11, sealed, on the clients
        trained = self.world.train(self.models, k, participants, r, hidden=self.hidden)  # line 14
        self.assignment[participants], self.error[participants] = k, e  # lines 15, 17-18
        self.world.ledger.sent("assignment", participants, 0 if self.hidden else ASSIGNMENT_BYTES)
        self.models = self.world.average(self.models, trained, k, participants, self.hidden)  # line 20
        members = self.seen if self.over == "seen" else participants
        self._m_step(members)  # line 21
        due = self.tau > 0 and r % self.tau == 0 and (r < self.world.rounds or self.recluster_last)
        return due and self._recluster(r, participants)  # lines 23-30

    @property
    def seen(self) -> Ints:
        """List the clients that have taken part: V in the paper."""
        return np.flatnonzero(self.assignment != UNSEEN)

    def _m_step(self, members: Ints) -> None:
        """Add and absorb what was contributed: theta from the sums over each cluster's members."""
        totals = self.sums.totals(members, self.assignment[members])
        if any(total is not None for total in totals):
            self.centroids = MStep(self.centroids).absorb(stacked(totals))

    def _recluster(self, r: int, participants: Ints) -> bool:
        """Share the clients of the cluster with the highest mean error among it and the empty ones."""
        seen = self.seen
        census = self.sums.census(seen, participants, self.assignment, self.error)
        empty = np.flatnonzero((census.present if self.empty == "participants" else census.seen) == 0)
        if len(empty) == 0:
            return False
        worst = worst_cluster(census.error, census.seen, empty)
        movable = self.sums.movable(seen, participants) if self.recluster_over == "seen" else participants
        members = movable[self.assignment[movable] == worst]
        targets = np.append(empty, worst)
        self.assignment[members] = redistribute(members, targets, stream(self.world.seed, "recluster", r))
        self.sums.offer(participants, self.assignment[participants], self.error[participants], self.centroids)
        self._m_step(seen if self.over == "seen" else participants)
        return True

    def _partition(self, participants: Ints) -> None:
        """Make theta^(0) from a random partition of the first participants, by the same sums."""
        order = stream(self.world.seed, "flameche", "partition").permutation(len(participants))
        part = order % self.clusters
        self.sums.offer(participants, part, np.zeros(len(part)), self.centroids)
        self.assignment[participants] = part
        self._m_step(participants)
        self.assignment[participants] = UNSEEN

    def _broadcast(self, clients: Ints) -> None:
        """Count the centroids' way down: sealed sums where clients open them, else four bytes a number."""
        numbers = self.centroids.theta.size + self.centroids.mass.size
        sealed = self.sums.broadcast_bytes
        self.world.ledger.received("centroids", clients, 4 * numbers if sealed is None else sealed)

    def serving(self) -> Ints:
        """Serve each client its cluster's model; one never seen takes an E-step to find its own."""
        serving, unseen = self.assignment.copy(), np.flatnonzero(self.assignment == UNSEEN)
        if len(unseen):
            serving[unseen], _ = self.cohort.e_step(unseen, self.centroids)
        return serving

    def finish(self) -> Outcome:
        """Take a last E-step over all clients and judge its clustering by DBI and CH."""
        every = np.arange(self.world.clients)
        k, _ = self.cohort.e_step(every, self.centroids)
        blank = Centroids(np.zeros_like(self.centroids.theta), np.zeros_like(self.centroids.mass))
        means = self.sums.once(UnitMeans(blank), every, k, self.centroids)
        dbi, ch = self.sums.once(Spread(means), every, k, self.centroids)
        return Outcome(k, dbi, ch)

    def state(self) -> Arrays:
        """Give errors, centroids and the server's sealed terms."""
        centroids = {"theta": self.centroids.theta, "mass": self.centroids.mass}
        return {"error": self.error, **centroids, **self.sums.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.error = arrays["error"].astype(np.float64)
        self.centroids = Centroids(arrays["theta"].astype(np.float64), arrays["mass"].astype(np.float64))
        self.sums.restore(arrays)
