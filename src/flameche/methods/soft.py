"""Soft FLAMECHE: a mixture over metadata in place of k-means, with a server that still only adds.

The paper's Equations 1 to 3 with responsibilities as they are; its conclusion leaves soft clustering to
future work. Families are in `em/families.py`, sums in `protocol/soft.py`. Every round the participants
compute their responsibilities and train; each gives, sealed, what it adds to the totals of all components.

Deviations: the paper says nothing of how a mixture starts, nor of what soft clusters mean for models.
- The start is made of totals: the first clients to come, some forty, are spread
  at random over a *crowd* of small components; EM goes on with these, Ward's merging says each round which
  belong together, and when clients have come three times on average their totals are added up for good.
- Until clients have come six times on average, all components have one spread (`Family.alike`): a component
  of few clients, or of two groups, would otherwise hold on to what it has.
- `training = "likeliest"`: a client trains the model of its most likely cluster, and counts for it alone.
  "weighted": it trains the same model, and the result counts for every cluster by responsibility.
- A responsibility below 2^-10 is told as zero; of sealed sums, fixed point would leave noise.
On metadata of real images responsibilities are 0 or 1 in all but a few rounds (see `em/vmf.py`): then both
ways of training are the same, and what the mixture adds to k-means is the likelihood.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from flameche.em import mixture, ward
from flameche.em.families import FamilyName, make_family
from flameche.em.mixture import Blocks, Family
from flameche.em.spherical import Centroids, Floats
from flameche.methods.base import UNSEEN, About, Arrays, Ints, Outcome, World
from flameche.protocol.phases import Spread, UnitMeans
from flameche.protocol.soft import Offer, soft_sums, told
from flameche.rng import stream

CROWD, EACH = 4, 2  # small components for each of the K; clients in each of them, at least
GATHER = 40  # clients behind the first totals
OFTEN = 3  # times that clients have taken part, on average, before the crowd is merged for good
SETTLED = 2 * OFTEN  # times that clients have taken part, on average, before spreads are told apart
NUMBER = 4  # bytes: of k_i, or of one responsibility


class Soft:
    """Distributed EM over a mixture of an exponential family."""

    about: ClassVar[About] = About(
        "FLAMECHE soft",
        "metadata",
        "sums",
        "sealed statistics, for all clusters, each round; assignment, model",
        server="R·n·K·d",
        client="R·K·d",
        up="R·K·d",
        down="R·K·d",
    )

    def __init__(
        self,
        world: World,
        *,
        clusters: int = 4,
        family: FamilyName = "vmf",
        projection: int = 0,
        training: Literal["likeliest", "weighted"] = "likeliest",
    ) -> None:
        self.world, self.clusters, self.weighted = world, clusters, training == "weighted"
        self.cohort = world.cohort(scaled=True)
        self.free = make_family(family, *self.cohort.blocks, projection=projection, seed=world.seed)
        rows = crowd(world.clients, clusters, world.min_cluster)
        shape = (rows, self.free.size + 1)
        self.sums = soft_sums(self.cohort, world.scheme, shape, world.min_cluster, world.ledger)
        self.models = world.initial_models(clusters)
        self.resp = np.zeros((world.clients, rows))  # each client's latest; zeros for one never seen
        self.label = np.arange(rows) % clusters  # the cluster each component belongs to
        self.assignment = np.full(world.clients, UNSEEN, np.int64)
        self.gathering = True
        self.heard = 0  # participations
        self.log_likelihood: list[float] = []  # a client's, on average, round by round; NaN where not opened

    def round(self, r: int, participants: Ints) -> bool:
        """Play round r; tell whether clients changed cluster because components were merged."""
        self._broadcast(participants)
        resp, likelihood = self._e_step(r, participants)
        share = self._by_cluster(resp)
        k = share.argmax(axis=1)
        trained = self.world.train(self.models, k, participants, r)
        self.resp[participants] = resp
        self.heard += len(participants)
        self._tell()
        shown = self.weighted and self.world.updates is None
        self.world.ledger.sent("assignment", participants, NUMBER * (self.clusters if shown else 1))
        self.models = self.world.average(
            self.models, trained, k, participants, share=share if self.weighted else None
        )
        return self._m_step(participants, resp, likelihood)

    @property
    def seen(self) -> Ints:
        """List the clients that have taken part."""
        return np.flatnonzero(self.resp.any(axis=1))

    @property
    def family(self) -> Family:
        """Give the family as it is used now: with one spread for all, or with each its own."""
        return self.free if self.heard >= SETTLED * len(self.seen) else self.free.alike()

    def _own(self, clients: Ints) -> Blocks:
        """Give what clients [n] hold, as the family sees it."""
        metadata = self.world.metadata.of(clients)
        return self.free.prepare(metadata.phi, metadata.counts)

    def _e_step(self, r: int, clients: Ints) -> tuple[Floats, Floats | None]:
        """Compute what clients [n] are to each component, and how likely they are; at first at random."""
        if self.gathering:
            return self._scattered(r, clients), None
        with self.world.ledger.clock("client", "clustering"):
            resp, likelihood = mixture.e_step(self.family, self._own(clients), self.sums.totals)
            return told(resp), likelihood

    def _scattered(self, r: int, clients: Ints) -> Floats:
        """Put newcomers into random components, evenly; the others stay in theirs."""
        resp = self.resp[clients]
        new = np.flatnonzero(~resp.any(axis=1))
        order = stream(self.world.seed, "soft", r).permutation(len(new))
        row = (len(self.seen) + order) // max(1, self.world.min_cluster)  # a few together: the guard counts
        resp[new] = np.eye(resp.shape[1])[row % resp.shape[1]]
        return resp

    def _m_step(self, participants: Ints, resp: Floats, likelihood: Floats | None) -> bool:
        """Add and absorb what participants give; then see which components belong together."""
        with self.world.ledger.clock("client", "clustering"):
            statistics = self.free.statistics(self._own(participants))
        offer = Offer(participants, resp, statistics, likelihood, self.free.scale)
        opened = self.sums.exchange(offer, opens=not self.gathering or self._gathered)
        self.log_likelihood.append(self.sums.log_likelihood if opened else float("nan"))
        if self.gathering:
            self.gathering = not (opened and self._gathered)
            if not self.gathering:
                self.models = self.models.pick(np.zeros(self.clusters, np.int64))
            return False
        if len(self.label) == self.clusters:
            return False
        before = self.assignment
        self._merge()
        return bool(((before != UNSEEN) & (before != self.assignment)).any())

    @property
    def _gathered(self) -> bool:
        """Tell whether enough clients have come for a first mixture; some may never come."""
        least = self.world.min_cluster * len(self.label)
        most = max(1, least, 3 * self.world.clients // 4)
        return len(self.seen) >= min(most, max(GATHER, 2 * least))

    def _merge(self) -> None:
        """Merge by Ward to K clusters; for good once clients have come often enough on average."""
        totals = self.sums.totals
        label = ward.merge_down(self.free.centroids(totals), self.clusters)
        self.label = ward.keep_names(label, self.label, totals[:, -1])
        self._tell()
        if self.heard >= OFTEN * len(self.seen):
            self.resp = self._by_cluster(self.resp)
            self.sums.merge(self.label, self.clusters)
            self.label = np.arange(self.clusters)

    def _by_cluster(self, resp: Floats) -> Floats:
        """Sum responsibilities over the components of each cluster: [n R] -> [n K]."""
        return resp @ np.eye(self.clusters)[self.label]

    def _tell(self) -> None:
        """Say which cluster each client is most likely in; nobody knows while clients gather."""
        known = self.resp.any(axis=1) & (not self.gathering)
        self.assignment = np.where(known, self._by_cluster(self.resp).argmax(axis=1), UNSEEN)

    def _broadcast(self, clients: Ints) -> None:
        """Count the totals' way down: sealed where clients open them, else four bytes a number."""
        sealed = self.sums.broadcast_bytes
        nbytes = NUMBER * self.sums.totals.size if sealed is None else sealed
        self.world.ledger.received("centroids", clients, nbytes)

    def _likeliest(self, clients: Ints) -> Ints:
        """Find the most likely cluster of clients [n], by an E-step."""
        with self.world.ledger.clock("client", "clustering"):
            resp, _ = mixture.e_step(self.family, self._own(clients), self.sums.totals)
        likeliest: Ints = self._by_cluster(resp).argmax(axis=1)
        return likeliest

    def serving(self) -> Ints:
        """Serve each client its likeliest cluster's model; one never seen takes an E-step to find its own."""
        serving, unseen = self.assignment.copy(), np.flatnonzero(self.assignment == UNSEEN)
        if len(unseen):
            serving[unseen] = self._likeliest(unseen)
        return serving

    def finish(self) -> Outcome:
        """Take a last E-step over all clients and judge its clustering by DBI and CH."""
        every = np.arange(self.world.clients)
        k = self._likeliest(every)
        sums = self.world.sums(self.cohort, self.clusters, over="participants")
        shape = (self.clusters, *self.cohort.blocks)
        blank = Centroids(np.zeros(shape), np.zeros(shape[:2]))
        means = sums.once(UnitMeans(blank), every, k, blank)
        dbi, ch = sums.once(Spread(means), every, k, blank)
        return Outcome(k, dbi, ch)

    def state(self) -> Arrays:
        """Give responsibilities, labels and the server's sealed terms."""
        own: Arrays = {"resp": self.resp, "label": self.label, "likelihoods": np.array(self.log_likelihood)}
        own["soft"] = np.array([self.gathering, self.heard], np.int64)
        return {**own, **self.sums.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.resp, self.label = arrays["resp"].astype(np.float64), arrays["label"].astype(np.int64)
        self.log_likelihood = arrays["likelihoods"].astype(np.float64).tolist()
        gathering, self.heard = (int(n) for n in arrays["soft"])
        self.gathering = bool(gathering)
        self.sums.restore(arrays)


def crowd(clients: int, clusters: int, guard: int) -> int:
    """Choose how many small components to begin with: fewer where clients or the guard ask for it."""
    each = 3 * guard if guard > 1 else EACH
    return clusters * max(1, min(CROWD, clients // (clusters * each)))
