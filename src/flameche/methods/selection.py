"""How many clusters there are, from the sums of one clustering session; nothing is trained.

`Session(choose=True)` finds K by which mergers of its leaves are refused (`em/significance.py`). Beside it
stand, for each K, Davies-Bouldin (the paper's criterion) and Calinski-Harabasz of the leaves merged to K
clusters; neither can say K = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score

from flameche.clustering.session import Session
from flameche.em.significance import Candidate, Choice
from flameche.em.spherical import Ints
from flameche.errors import BadInput
from flameche.methods.base import World
from flameche.rng import stream

EVERYBODY, EACH = 60, 10  # clients in a session: all of so many; of more, so many for each cluster
WITH_NOISE = 200  # in place of `EVERYBODY` where metadata have noise, which averages out over clients
FEWEST = 4  # clients without which nothing can be said of K


@dataclass(frozen=True)
class Selection:
    """The choice of K, the candidates, the clients that were asked [n], their clusters and leaves [n]."""

    choice: Choice
    candidates: list[Candidate]
    clients: Ints
    label: Ints
    leaf: Ints

    @property
    def preferred(self) -> dict[str, int | None]:
        """Tell which K each of the usual criteria would take."""
        found: dict[str, int | None] = {}
        for name, sign in (("dbi", -1), ("ch", 1)):
            known = [(sign * getattr(c, name), -c.k) for c in self.candidates]
            finite = [pair for pair in known if np.isfinite(pair[0])]
            found[name] = -max(finite)[1] if finite else None
        return found

    def ari(self, candidate: Candidate, group: Ints) -> float:
        """Compare a candidate's clusters with the true groups [C]."""
        label = self.label if candidate.k == self.choice.k else candidate.label[self.leaf]
        return float(adjusted_rand_score(group[self.clients], label))


def session_size(clusters: int, noisy: bool = False) -> int:
    """Count the clients that a session for so many clusters takes, where there are more."""
    return max(WITH_NOISE if noisy else EVERYBODY, EACH * clusters)


def fewest(least: int) -> int:
    """Count the clients that it takes to choose K, where no sum over fewer than `least` is opened."""
    return max(FEWEST, 2 * least)


def select_clusters(world: World, most: int = 8) -> Selection:
    """Choose a number of clusters from 1 to `most`, as `clusters = "auto"` would in its first session."""
    need = fewest(world.min_cluster)
    if world.clients < need:
        guard = f" with scheme.min_cluster = {world.min_cluster}" if world.min_cluster > 2 else ""
        raise BadInput(
            f"{world.clients} clients are too few to choose the number of clusters: expected at least "
            f"{need}{guard}; set method.clusters to a number"
        )
    cohort = world.cohort(scaled=True)
    clients = np.arange(world.clients)
    if len(clients) > (size := session_size(most)):
        clients = np.sort(stream(world.seed, "session", 1).permutation(clients)[:size])
    session = Session(
        world.exchange(cohort), clients, cohort.phi[clients], cohort.weight[clients], most,
        world.min_cluster, choose=True,
    )  # fmt: skip
    with world.ledger.clock("client", "clustering"):
        found = session.run(stream(world.seed, "sketch", 0))
    if found is None or found.choice is None or session.cut is None:
        raise BadInput(
            "the sums from which the number of clusters is chosen may not be opened, or were lost; set "
            "method.clusters to a number"
        )
    leaf, leaves = session.cut
    return Selection(found.choice, found.choice.candidates(leaves, most), clients, found.label, leaf)
