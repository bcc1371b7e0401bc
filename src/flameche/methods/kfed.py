"""K-Fed: one-shot k-means over the clients' class-mean images.

Dennis, Li and Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021.

Deviations:
- A device reports one centre, its class-wise mean images side by side, as in the FLAMECHE paper's comparison;
  the publication's devices report k' centres of a local k-means each.
- FedAvg trains one model until every client has been seen, since nothing can be clustered before.
- A class that a client lacks is a block of zeros.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import KMeans

from flameche.metadata.extractors import mean_images
from flameche.methods.base import About, Floats, Ints, MethodOptions, World
from flameche.methods.one_shot import OneShot
from flameche.tables import Count


class KFedOptions(MethodOptions):
    """How many clusters there are."""

    kind: str = "kfed"
    clusters: Count = 4


class KFed(OneShot):
    """Farthest-first seeds, then Lloyd's iterations to the end."""

    Options: ClassVar[type[MethodOptions]] = KFedOptions
    about: ClassVar[About] = About(
        "K-Fed",
        "metadata",
        "terms",
        "class means once; model",
        server="N·K·d",
        client="class means",
        up="d",
        by_metadata=True,
        follows_events=False,
    )

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world)
        self.wanted = KFedOptions(**options).clusters
        with world.ledger.clock("client", "extraction"):
            phi = mean_images(world.samples()).phi
        self.points: Floats = phi.reshape(len(phi), -1)

    def summary_numbers(self) -> Ints:
        """Count the pixels of all class means."""
        return np.full(*self.points.shape)

    def partition(self) -> Ints:
        """Cluster all clients' class means."""
        seeds = self.points[farthest_first(self.points, self.wanted)]
        lloyd = KMeans(self.wanted, init=seeds, n_init=1, max_iter=1000, tol=0.0, algorithm="lloyd")
        labels: Ints = lloyd.fit_predict(self.points).astype(np.int64)
        return labels


def farthest_first(points: Floats, count: int) -> Ints:
    """Choose points [count]: the first, then again and again the one farthest from all chosen."""
    chosen = [0]
    away = np.linalg.norm(points - points[0], axis=1)
    while len(chosen) < count:
        chosen.append(int(away.argmax()))
        away = np.minimum(away, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return np.array(chosen)
