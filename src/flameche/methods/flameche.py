"""FLAMECHE as the paper prints it: distributed EM over metadata, with a server that only adds.

Ben Ali, Megdiche, Péninou and Teste, "Encryption-Compatible Clustered Federated Learning via Distributed
Expectation-Maximization over Metadata". `Flameche.round` is its Algorithm 1, in its order; it is
`mode = "paper"`. The default mode is `sketch.py`, which opens far less.

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

Clients may change while a federation lives. All three changes are changes of sums (`protocol/sums.py`):
- *drift*: a client's metadata have changed. When it next takes part it hands in its new term, or under masks
  the change, takes an E-step with it, and may find itself in another cluster.
- *leave*: a client's term goes out of all sums; what was opened stays opened. Under masks it takes its part
  out in one last session; the part of one that *vanished* stays.
- *join*: one that left, or was not there yet, may take part again.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flameche.em.spherical import NOISE, Centroids
from flameche.metadata.extractors import Metadata
from flameche.methods.base import UNSEEN, About, Arrays, Floats, Ints, Living, MethodOptions, Outcome, World
from flameche.methods.sketch import FlamecheOptions
from flameche.protocol.phases import Deviations, Errors, MStep, Spread, UnitMeans
from flameche.protocol.sums import Sums, stacked
from flameche.rng import stream

ASSIGNMENT_BYTES = 8  # k_i and e_i, four bytes each


class Flameche(Living):
    """Algorithm 1 of the paper; its lines are numbered in `round`."""

    Options: ClassVar[type[MethodOptions]] = FlamecheOptions
    about: ClassVar[About] = About(
        "FLAMECHE",
        "metadata",
        "sums",
        "sealed metadata once; assignment, error, model",
        server="R·n·d",
        client="R·K·d",
        up="d",
        down="R·K·d",
        by_metadata=True,
    )

    def __init__(self, world: World, **options: Any) -> None:
        how = FlamecheOptions(**{"mode": "paper", **options})
        assert how.clusters != "auto"
        cohort = world.cohort(unit_norm=how.unit_norm, missing=how.missing)
        super().__init__(world, cohort, how.clusters)  # line 3
        self.clusters = how.clusters
        self.tau, self.empty, self.init, self.over = how.tau, how.empty, how.init, how.m_step
        self.recluster_last, self.recluster_over = how.recluster_last, how.recluster_over
        self.hidden = how.hide_assignments
        self.sums: Sums = world.sums(self.cohort, how.clusters, over=how.m_step, hidden=self.hidden)
        self.error = np.zeros(world.clients)  # e_i; k_i is in `assignment`
        if how.init == "vectors":
            draw = stream(world.seed, "flameche", "vectors").standard_normal(self.centroids.theta.shape)
            self.centroids = Centroids(draw, np.ones(draw.shape[:2]))

    def round(self, r: int, participants: Ints) -> bool:
        """Play round r of Algorithm 1; tell whether clients were redistributed."""
        self.refuse_gone(participants)
        if r == 1 and self.init == "partition":  # line 3, theta^(0)
            self._partition(participants)
        self._broadcast(participants)  # line 6
        k, e = self.cohort.e_step(participants, self.centroids)  # lines 12-13, on the clients
        here = k != UNSEEN  # on a network some may be lost
        self.sums.offer(
            participants[here], k[here], e[here], self.centroids
        )  # lines 8-11, sealed, on clients
        serving = self.model_of(k)
        trained = self.world.train(self.models, serving, participants, r, hidden=self.hidden)  # line 14
        self.assignment[participants], self.error[participants] = k, e  # lines 15, 17-18
        self.world.ledger.sent("assignment", participants, 0 if self.hidden else ASSIGNMENT_BYTES)
        self.models = self.world.average(  # line 20
            self.models, trained, serving, participants, self.hidden, members=self.assignment
        )
        self._m_step(self.seen if self.over == "seen" else participants)  # line 21
        due = self.tau > 0 and r % self.tau == 0 and (r < self.world.rounds or self.recluster_last)
        return due and self._recluster(r, participants)  # lines 23-30

    @property
    def seen(self) -> Ints:
        """List the clients that have taken part: V in the paper."""
        return np.flatnonzero(self.assignment != UNSEEN)

    def model_of(self, k: Ints) -> Ints:
        """Tell which model serves clients of these clusters [n]; of one that is lost, any will do."""
        return k % self.clusters

    def _m_step(self, members: Ints) -> None:
        """Add and absorb what was contributed: theta from the sums over each cluster's members."""
        members = members[self.assignment[members] != UNSEEN]
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
        draw = stream(self.world.seed, "recluster", r).integers(len(targets), size=len(members))
        self.assignment[members] = targets[draw]
        k, e = self.assignment[participants], self.error[participants]
        self.sums.offer(participants, k, e, self.centroids)
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

    def drift(self, clients: Ints, metadata: Metadata) -> None:
        """Give clients [n] new metadata; who has the same as before has nothing to say, and says nothing."""
        other = np.flatnonzero(self.cohort.differ(clients, metadata))
        clients, metadata = clients[other], metadata.of(other)
        self.sums.drifted(clients)
        self.cohort.drift(clients, metadata)
        self.drifted[clients] = True

    def leave(self, clients: Ints, vanished: bool = False) -> None:
        """Take clients out of sums and counts; vanished: without their help."""
        self.sums.forget(clients, vanished)
        self.left[clients], self.assignment[clients] = True, UNSEEN

    def serving(self) -> Ints:
        """Serve each client its cluster's model; one never seen takes an E-step to find its own."""
        serving, unseen = self.assignment.copy(), np.flatnonzero(self.assignment == UNSEEN)
        if len(unseen):
            serving[unseen] = self.model_of(self.cohort.e_step(unseen, self.centroids)[0])
        return serving

    def finish(self) -> Outcome:
        """Take a last E-step over all clients, judge it by DBI and CH, and keep what a newcomer needs."""
        every, final = self.present, np.full(self.world.clients, UNSEEN, np.int64)
        k = self.cohort.e_step(every, self.centroids)[0]
        final[every] = np.where(k == UNSEEN, self.assignment[every], k)  # who is lost stays where it was
        blank = Centroids(np.zeros_like(self.centroids.theta), np.zeros_like(self.centroids.mass))
        means = self.sums.once(UnitMeans(blank), every, k, self.centroids)
        dbi, ch = self.sums.once(Spread(means), every, k, self.centroids)
        mean = self.sums.once(Errors(self.centroids), every, k, self.centroids)
        width = self.sums.once(Deviations(self.centroids, mean), every, k, self.centroids)
        alive = np.flatnonzero((self.centroids.mass > NOISE).any(axis=1))
        theta, mass = self.centroids.theta[alive], self.centroids.mass[alive]
        spread = np.column_stack([mean, width])
        return Outcome(final, dbi, ch, {"theta": theta, "mass": mass, "label": alive, "spread": spread})

    def state(self) -> Arrays:
        """Give errors, centroids, who left, the metadata of who drifted, and the server's sealed terms."""
        who: Arrays = {"left": self.left, "drift/clients": np.flatnonzero(self.drifted)}
        return {**super().state(), "error": self.error, **who, **self.sums.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.error = arrays["error"].astype(np.float64)
        self.left = arrays["left"].astype(bool)
        self.drifted[arrays["drift/clients"].astype(np.int64)] = True
        super().restore(arrays)
        self.sums.restore(arrays)


def worst_cluster(error_sum: Floats, count: Floats, empty: Ints) -> int:
    """Find the non-empty cluster with the highest average error [K]; of equals the first."""
    mean = np.divide(error_sum, count, out=np.full(len(count), -np.inf), where=count > 0)
    mean[empty] = -np.inf
    return int(mean.argmax())
