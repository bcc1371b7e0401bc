"""FLAMECHE with a private core: clusters found once, in one session, in a handful of numbers a client.

The idea is the paper's: clients summarise their data once, take the E-step themselves, and the server only
adds. What is opened is not. Algorithm 1 opens a sum of all metadata for every cluster in every round;
whoever opens sums over changing sets of the same clients can solve them for each client's metadata. Here a
fixed set of clients holds one clustering session (`clustering/session.py`): everybody, or of many clients
as many as it takes. After it nothing is opened any more; all other clients, late ones and those whose data
drift take an E-step.

A client that is farther from every centroid than their own clients says so. When enough such clients have
come, there is another session, with them in it: so late groups, and groups too thin for the first session,
are found. One guard (`privacy/guard.py`) decides over all sessions what may be opened.

Deviations from the paper: metadata blocks are scaled to length one and weighed by their samples; M-steps
are over a session's clients, not over all seen; there is no reclustering, since nothing starts from random
clusters.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator

from flameche.clustering.session import Found, Session
from flameche.em.criteria import from_widths
from flameche.em.hartigan import joining_cost
from flameche.em.significance import Choice
from flameche.em.spherical import NOISE, Centroids, Floats, cosine, reach
from flameche.em.ward import keep_names
from flameche.errors import ConfigError
from flameche.metadata.extractors import Metadata
from flameche.methods.base import UNSEEN, About, Arrays, Ints, Living, Method, MethodOptions, Outcome, World
from flameche.protocol.client import Missing
from flameche.protocol.given import Given
from flameche.registry import SCHEMES
from flameche.rng import stream
from flameche.tables import Clusters, MostClusters, Natural

EVERYBODY, EACH = 60, 10  # clients in a session: all of so many; of more, so many for each cluster
WITH_NOISE = 200  # in place of `EVERYBODY` where metadata have noise, which averages out over clients
FEWEST = 4  # clients without which nothing can be said of K
SMALL = 24  # of fewer clients K is often chosen too small (results/few-sites.md)


class FlamecheOptions(MethodOptions):
    """FLAMECHE's options, in either of its modes; what `PAPER_ONLY` names belongs to `mode = "paper"`.

    `tau = 0` never reclusters. `clusters = "auto"` chooses K before the first round, up to `most_clusters`.
    """

    PAPER_ONLY: ClassVar[tuple[str, ...]] = (
        *("tau", "empty", "init", "m_step", "unit_norm", "missing", "recluster_last"),
        *("recluster_over", "hide_assignments"),
    )

    kind: str = "flameche"
    clusters: Clusters = 4
    most_clusters: MostClusters = 8
    mode: Literal["sketch", "paper"] = "sketch"
    tau: Natural = 10
    empty: Literal["participants", "seen"] = "participants"
    init: Literal["partition", "vectors"] = "partition"
    m_step: Literal["seen", "participants"] = "seen"
    unit_norm: bool = False
    missing: Missing = "counts"
    recluster_last: bool = False
    recluster_over: Literal["seen", "participants"] = "seen"
    hide_assignments: bool = False

    @property
    def by_session(self) -> bool:
        """Tell whether clusters come from a clustering session: in the default mode they do."""
        return self.mode == "sketch"

    @property
    def takes_noise(self) -> bool:
        """Tell whether metadata may have noise that protects records: in the default mode."""
        return self.mode == "sketch"

    @field_validator("mode", mode="before")
    @classmethod
    def _earlier(cls, mode: object) -> object:
        if mode == "robust":
            raise ConfigError(
                'method.mode = "robust" is no longer there; "sketch", the default, took its place: '
                "the same clusters from far fewer sums"
            )
        return mode

    def make(self, kind: type[Method], world: World) -> Method:
        """Build the class of the mode."""
        if self.mode == "sketch":
            return FlamecheSketch(world, clusters=self.clusters, most_clusters=self.most_clusters)
        return kind(world, **self.model_dump(include={"clusters", *self.PAPER_ONLY}))

    def check(self, experiment: Any) -> None:
        """Refuse options that the mode or the scheme does not have."""
        scheme, told = experiment.scheme, self.model_dump(exclude_defaults=True)
        wrong = [key for key in self.PAPER_ONLY if key in told]
        if self.mode != "paper" and wrong:
            raise ConfigError(
                f'method.{wrong[0]} belongs to method.mode = "paper"; the mode is "{self.mode}"'
            )
        if self.mode == "paper" and self.clusters == "auto":
            raise ConfigError(
                'method.clusters = "auto" belongs to method.mode = "sketch"; with "paper" set it to a '
                "number, as flameche select-k finds it"
            )
        if self.hide_assignments and SCHEMES[scheme.kind].opened_by == "server":
            raise ConfigError(
                f'method.hide_assignments needs sums that clients open, scheme.kind = "{scheme.kind}" '
                'opens them on the server; take "bfv", "ckks" or "paillier"'
            )
        if self.hide_assignments and scheme.updates != "ckks":
            raise ConfigError(
                f'method.hide_assignments: with scheme.updates = "{scheme.updates}" the server sees '
                'the updates of a cluster, or their sum; set scheme.updates = "ckks"'
            )
        if scheme.kind == "secagg" and self.m_step == "seen" and self.missing == "impute":
            raise ConfigError(
                'method.missing = "impute" changes metadata every round, which the changes that '
                'm_step = "seen" sums under secagg cannot follow; take missing = "counts"'
            )


class FlamecheSketch(Living):
    """Clusters from one session; then rounds of training, in which newcomers find their cluster."""

    Options: ClassVar[type[MethodOptions]] = FlamecheOptions
    about: ClassVar[About] = About(
        "FLAMECHE",
        "metadata",
        "sums",
        "sealed sketch, K sealed sums once; assignment, model",
        server="n·d",
        client="d",
        up="K·d",
        down="K·d",
        by_metadata=True,
    )

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, world.cohort(scaled=True), 1)
        how = FlamecheOptions(**options)
        self.clusters = 1  # until they are known
        self.choose = how.clusters == "auto"
        self.wanted = how.most_clusters if how.clusters == "auto" else how.clusters
        self.exchange = world.exchange(self.cohort)
        self.given = Given(self.cohort)  # knows terms again that drift back
        self.spread = np.full((1, 3), np.nan)
        self.inside = np.zeros((world.clients, 1))  # how much of each client's term is in each cluster's sum
        self.placed = np.zeros(world.clients, bool)  # who knows its cluster, by the centroids of now
        self.far = np.zeros(world.clients, bool)
        self.heard = np.zeros(world.clients, bool)  # far clients for whose sake there was a session already
        self.sessions = 0

    @property
    def found(self) -> bool:
        """Tell whether there are clusters."""
        return bool((self.centroids.mass > NOISE).any())

    def round(self, r: int, participants: Ints) -> bool:
        """Play round r; tell whether there was a clustering session."""
        self.refuse_gone(participants)
        held = self._due(participants) and self._hold_session(r, participants)
        if self.found:
            self._place(participants[~self.placed[participants]])
        k = np.maximum(self.assignment[participants], 0)  # until clusters are known all train the first model
        trained = self.world.train(self.models, k, participants, r)
        members = self.assignment if self.found else None
        share = self._share(participants)
        self.models = self.world.average(self.models, trained, k, participants, share=share, members=members)
        return held

    def _due(self, participants: Ints) -> bool:
        """Tell whether it is time for a session."""
        there = self.world.reachable(self.present, participants)
        if not self.found:
            return len(there) >= self._fewest
        return int((self.far & ~self.heard)[there].sum()) >= max(2, self._least)

    @property
    def _least(self) -> int:
        return max(1, self.world.min_cluster)

    @property
    def _fewest(self) -> int:
        return fewest(self._least) if self.choose else 2 * self._least

    def members(self, r: int, participants: Ints) -> Ints:
        """Choose a session's clients: everybody, or of many those that are far and some others.

        Of the others, clients that were in no session come first: the guard refuses few sums over these.
        """
        there = self.world.reachable(self.present, participants)
        size = session_size(self.wanted, noisy=self.world.noise > 0)
        if len(there) <= size:
            return there
        order = stream(self.world.seed, "session", r).permutation(there)
        first = order[np.argsort(~self.far[order], kind="stable")]
        strangers = first[: min(int(self.far[order].sum()), size // 2)]
        summed = self.exchange.guard.leverage() > 0
        others = order[np.argsort(summed[order], kind="stable")]
        return np.sort(np.append(strangers, others[~np.isin(others, strangers)][: size - len(strangers)]))

    def _hold_session(self, r: int, participants: Ints) -> bool:
        """Let a fixed set of clients find clusters, and give everybody the model its cluster comes from."""
        clients = self.members(r, participants)
        self.heard[clients] |= self.far[clients]
        found = self.play(self.session(clients))
        if found is None:
            return False
        self.sessions += 1
        self._take(clients, found)
        return True

    def session(self, clients: Ints, kind: type[Session] = Session, **more: Any) -> Session:
        """Give a session of these clients; `more`: what its kind takes besides."""
        return kind(
            self.exchange,
            clients,
            self.cohort.phi[clients],
            self.cohort.weight[clients],
            self.wanted,
            self._least,
            self.choose,
            noisy=self.world.noise > 0,
            **more,
        )

    def play(self, session: Session) -> Found | None:
        """Play a session, all from the same stream: other projections of the same clients would add up."""
        with self.world.ledger.clock("client", "clustering"):
            return session.run(stream(self.world.seed, "sketch", 0))

    def _take(self, clients: Ints, found: Found) -> Ints:
        """Take over what a session found; clusters keep the names that most of their clients know.

        Give the place that each cluster [K] had in the session.
        """
        count, before = len(found.centroids), self.assignment[clients]
        name = np.arange(count)
        if self.sessions > 1 and (known := before != UNSEEN).any():
            name = _names(found.label[known], before[known], count, len(self.models))
        source = np.array([_most(before[found.label == k]) for k in range(count)])[np.argsort(name)]
        label = name[found.label]
        order = np.argsort(name)
        self.models = self.models.pick(source)
        self.centroids = Centroids(found.centroids.theta[order], found.centroids.mass[order])
        self.spread, self.clusters = found.spread[order], count
        self.inside = np.zeros((self.world.clients, count))
        self.inside[clients] = found.inside[:, order]
        self.placed[:] = False
        self.placed[clients] = True
        self.far[clients] = False
        self.assignment = np.where(self.assignment >= count, UNSEEN, self.assignment)
        self.assignment[clients] = label
        if found.choice is not None:
            self._note(chosen(found.choice, len(clients), noisy=self.world.noise > 0))
        elif count < self.wanted:
            self._note(
                f"{count} of {self.wanted} clusters: {len(clients)} clients cannot be told apart further "
                f"with scheme.min_cluster = {self._least}"
            )
        return order

    def _note(self, text: str) -> None:
        if text not in self.world.notes:
            self.world.notes.append(text)

    def _place(self, clients: Ints) -> None:
        """Let clients [n] find their cluster by an E-step, and say so if they are far from every one."""
        if len(clients) == 0:
            return
        numbers = self.centroids.theta.size + self.centroids.mass.size
        self.world.ledger.received("centroids", clients, 4 * numbers)
        label, far = self._told(clients)
        heard = label != UNSEEN
        clients = clients[heard]
        self.assignment[clients], self.far[clients] = label[heard], far[heard]
        self.placed[clients] = True

    def _told(self, clients: Ints) -> tuple[Ints, np.ndarray]:
        """Let clients [n] take an E-step and tell the server: their cluster, `UNSEEN` if lost; who is far."""
        label, far = self._e_step(clients)
        told = self.exchange.tell(clients, 2 * label + far, 2 * self.clusters)
        return np.where(told < 0, UNSEEN, told // 2), (told >= 0) & (told % 2 == 1)

    def _e_step(self, clients: Ints) -> tuple[Ints, np.ndarray]:
        """Find the clusters of clients [n], and who is far from its cluster's centroid."""
        with self.world.ledger.clock("client", "clustering"):
            label = self._nearest(clients)
            phi, weight = self.cohort.phi[clients], self.cohort.weight[clients]
            error = 1.0 - cosine(phi, weight, self.centroids)[np.arange(len(clients)), label]
        far = (error > reach(self.spread)[label]) & ~self.inside[clients].any(axis=1)
        return label, far

    def _nearest(self, clients: Ints) -> Ints:
        """Find the nearest centroids of clients [n], each without its own part in them."""
        phi, weight = self.cohort.phi[clients], self.cohort.weight[clients]
        label: Ints = joining_cost(phi, weight, self.centroids, self.inside[clients]).argmin(axis=1)
        return label

    def _share(self, participants: Ints) -> Floats | None:
        """Tell how much participants [n] count for each cluster's model [n K]; None for their own alone."""
        return None

    def drift(self, clients: Ints, metadata: Metadata) -> None:
        """Give clients [n] new metadata; they find their cluster anew when they next take part."""
        other = np.flatnonzero(self.cohort.differ(clients, metadata))
        clients, metadata = clients[other], metadata.of(other)
        self.given.keep(clients)
        self.cohort.drift(clients, metadata)
        self.exchange.guard.version[clients] = self.given.version(clients)
        self.given.told(clients)
        self.drifted[clients] = True
        self.inside[clients] = self.placed[clients] = self.heard[clients] = self.far[clients] = False

    def leave(self, clients: Ints, vanished: bool = False) -> None:
        """Count clients no more; what was opened stays as it is."""
        self.left[clients], self.assignment[clients] = True, UNSEEN
        self.placed[clients] = self.far[clients] = False

    def join(self, clients: Ints) -> None:
        """Let clients take part that left, or were not there from the start."""
        super().join(clients)
        self.heard[clients] = False

    def serving(self) -> Ints:
        """Serve each client its cluster's model; one that has no cluster yet takes an E-step to find it."""
        serving = np.maximum(self.assignment, 0)
        if self.found and len(lost := np.flatnonzero(self.assignment == UNSEEN)):
            serving[lost] = self._e_step(lost)[0]
        return serving

    def finish(self) -> Outcome:
        """Take a last E-step over all clients; DBI and CH follow from the centroids, so nothing is opened."""
        final = np.full(self.world.clients, UNSEEN, np.int64)
        if not self.found:
            few = too_few(len(self.present), self._least)
            ended = "no clustering session came to its end, since clients were lost or a sum was not opened"
            why = few if len(self.present) < self._fewest else ended
            self._note(f"no clusters: {why}; all trained one model")
            final[self.present] = 0
            return Outcome(final)
        told = self._told(self.present)[0]
        final[self.present] = np.where(told == UNSEEN, self.assignment[self.present], told)
        dbi, ch = criteria(self.centroids, self.spread[:, 0])
        spread = self.spread.copy()
        spread[spread[:, 0] == 1, 1] = np.nan  # one client's distance to itself
        spread[:, 0] = np.bincount(final[self.present], minlength=self.clusters)
        keep: Arrays = {"theta": self.centroids.theta, "mass": self.centroids.mass, "spread": spread}
        return Outcome(final, dbi, ch, {**keep, "label": np.arange(self.clusters)})

    def state(self) -> Arrays:
        """Give all that must survive a restart."""
        own: Arrays = {name: getattr(self, name) for name in ARRAYS}
        own |= {"numbers": np.array([self.sessions, self.clusters])}
        return {**super().state(), **own, **self.given.state(), **self.exchange.guard.state()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        for name in ARRAYS:
            setattr(self, name, arrays[name].astype(getattr(self, name).dtype))
        super().restore(arrays)
        self.sessions, self.clusters = (int(n) for n in arrays["numbers"])
        self.given.restore(arrays)
        self.exchange.guard.restore(arrays)


def session_size(clusters: int, noisy: bool = False) -> int:
    """Count the clients that a session for so many clusters takes, where there are more."""
    return max(WITH_NOISE if noisy else EVERYBODY, EACH * clusters)


def fewest(least: int) -> int:
    """Count the clients that it takes to choose K, where no sum over fewer than `least` is opened."""
    return max(FEWEST, 2 * least)


def too_few(clients: int, least: int) -> str:
    """Say why so few clients get no clusters, or no choice of K, and what would help."""
    if clients < 2 * least:
        return (
            f"{clients} clients are too few for scheme.min_cluster = {least}, which takes {2 * least}; more "
            "clients would help, or, where all parties agree, a lower scheme.min_cluster (SECURITY.md)"
        )
    return (
        f"{clients} clients are too few to choose the number of clusters, which takes {fewest(least)}; "
        "set method.clusters to a number"
    )


def chosen(choice: Choice, clients: int, noisy: bool = False) -> str:
    """Say which K was chosen, and how clearly, for the reader of a run."""
    if choice.more:
        return f"K = {choice.k}, the most allowed; more would fit (method.most_clusters)"
    few = "; of so few, groups that are alike may be taken for one" if clients < SMALL else ""
    if choice.k == 1:
        hidden = "; the noise of privacy.epsilon may hide groups" if noisy else ""
        return f"K = 1: {clients} clients show no groups that are clearly apart{hidden or few}"
    return f"K = {choice.k} chosen from the clustering session of {clients} clients{few}"


ARRAYS = ("spread", "inside", "placed", "far", "heard", "left", "drifted")


def _most(before: Ints) -> int:
    """Tell which cluster most of these clients come from; the first one if nobody knows."""
    known = before[before != UNSEEN]
    return int(np.bincount(known).argmax()) if len(known) else 0


def _names(label: Ints, before: Ints, count: int, earlier: int) -> Ints:
    """Name clusters [count] as most of their clients knew them, where such a name is free."""
    pairs = np.zeros((count, max(count, earlier)))
    np.add.at(pairs, (label, before), 1.0)
    every = max(count, earlier)
    names = keep_names(np.repeat(np.arange(count), every), np.tile(np.arange(every), count), pairs.ravel())[
        ::every
    ]
    return np.argsort(np.argsort(names))  # without gaps


def criteria(centroids: Centroids, count: Floats) -> tuple[float, float]:
    """Compute Davies-Bouldin and Calinski-Harabasz from centroids alone.

    Blocks have length one, so a centroid's length tells how far its members scatter.
    """
    alive = np.flatnonzero((count > 0) & (centroids.mass > NOISE).any(axis=1))
    theta, mass = centroids.theta[alive], centroids.mass[alive]
    share = mass / mass.sum(axis=1, keepdims=True)
    squares = (share * (1.0 - np.einsum("kbf,kbf->kb", theta, theta))).sum(axis=1)
    flat = theta.reshape(len(alive), -1) / np.sqrt(theta.shape[1])
    return from_widths(flat, np.maximum(squares, 0.0), count[alive])
