"""How many clusters there are, from the sums of one clustering session; nothing is trained.

`Session(choose=True)` finds K by which mergers of its leaves are refused (`em/significance.py`). Beside it
stand, for each K, Davies-Bouldin (the paper's criterion) and Calinski-Harabasz of the leaves merged to K
clusters; neither can say K = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score

from flameche.em.significance import Candidate, Choice
from flameche.em.spherical import Ints
from flameche.errors import BadInput
from flameche.methods.base import World
from flameche.methods.sketch import FlamecheSketch, fewest, too_few


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


def select_clusters(world: World, most: int = 8) -> Selection:
    """Choose a number of clusters from 1 to `most`, as `clusters = "auto"` would in its first session."""
    if world.clients < fewest(world.min_cluster):
        raise BadInput(too_few(world.clients, world.min_cluster))
    method = FlamecheSketch(world, clusters="auto", most_clusters=most)
    clients = method.members(1, method.present)
    session = method.session(clients)
    found = method.play(session)
    if found is None or found.choice is None or session.cut is None:
        raise BadInput(
            "the sums from which the number of clusters is chosen were lost, or may not be opened with "
            f"scheme.min_cluster = {world.min_cluster}"
        )
    leaf, leaves = session.cut
    return Selection(found.choice, found.choice.candidates(leaves, most), clients, found.label, leaf)
