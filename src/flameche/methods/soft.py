"""Soft FLAMECHE: a mixture over metadata in place of k-means, with a server that still only adds.

The paper's Equations 1 to 3 with responsibilities as they are; its conclusion leaves soft clustering to
future work. One session finds hard clusters as FLAMECHE's default mode does, and goes on from these with a
few steps of EM (`clustering/soft.py`, families in `em/families.py`). Afterwards nothing is opened: other
clients and newcomers take an E-step with the parameters that were.

Deviations: the paper says nothing of how a mixture starts, nor of what soft clusters mean for models.
- Responsibilities are told in the clear, in eighths; the guard needs to know what is in a sum.
- `training = "likeliest"`: a client trains the model of its most likely cluster, and counts for it alone.
  "weighted": it trains the same model, and the result counts for every cluster by responsibility.
- Who is far from every cluster, DBI and CH are judged by the hard clusters' centroids.
On metadata of real images responsibilities are nearly all 0 or 1 (see `em/vmf.py`), and then
both ways of training are the same.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from flameche.clustering.session import Found, Session
from flameche.clustering.soft import Mixture, SoftFound, SoftSession
from flameche.em.families import FamilyName, make_family
from flameche.em.gaussian import Full
from flameche.em.mixture import Family
from flameche.em.sketch import Sketch
from flameche.em.spherical import Floats
from flameche.errors import ConfigError
from flameche.metadata.extractors import Metadata
from flameche.methods.base import About, Arrays, Ints, MethodOptions, Outcome, World
from flameche.methods.sketch import FlamecheSketch
from flameche.tables import Clusters, MostClusters


class SoftOptions(MethodOptions):
    """Soft EM after a clustering session; the family "full" is of the session's sketches."""

    kind: str = "flameche-soft"
    clusters: Clusters = 4
    most_clusters: MostClusters = 8
    family: FamilyName = "full"
    training: Literal["likeliest", "weighted"] = "likeliest"

    @property
    def by_session(self) -> bool:
        """Tell that clusters come from a clustering session."""
        return True

    def check(self, experiment: Any) -> None:
        """Refuse a mixture over label counts where clusters are found by something else."""
        kind = experiment.metadata.kind
        if self.family == "multinomial" and kind != "label-counts":
            raise ConfigError(
                f'method.family = "multinomial" is of label counts, metadata.kind is "{kind}"; '
                'take metadata.kind = "label-counts"'
            )


class Soft(FlamecheSketch):
    """Distributed EM over a mixture of an exponential family."""

    Options: ClassVar[type[MethodOptions]] = SoftOptions
    about: ClassVar[About] = About(
        "FLAMECHE soft",
        "metadata",
        "sums",
        "sealed sketch, K sealed sums a few times; responsibilities, model",
        server="n·d",
        client="K·d",
        up="K·d",
        down="K·d",
        by_metadata=True,
    )

    def __init__(self, world: World, **options: Any) -> None:
        how = SoftOptions(**options)
        super().__init__(world, clusters=how.clusters, most_clusters=how.most_clusters)
        self.family, self.weighted = how.family, how.training == "weighted"
        self.metadata = world.metadata
        self.mixture: Mixture | None = None
        self.resp = np.zeros((world.clients, 1))  # what clients have told; zeros for one not placed

    def session(self, clients: Ints, kind: type[Session] = SoftSession, **more: Any) -> Session:
        """Give a session of these clients that ends with EM."""
        return super().session(clients, kind, metadata=self.metadata.of(clients), family=self.family, **more)

    def _take(self, clients: Ints, found: Found) -> Ints:
        order = super()._take(clients, found)
        assert isinstance(found, SoftFound)
        self.mixture = replace(found.mixture, totals=found.mixture.totals[order])
        self.resp = np.zeros((self.world.clients, self.clusters))
        self.resp[clients] = found.resp[:, order]
        return order

    def _nearest(self, clients: Ints) -> Ints:
        """Find the likeliest components of clients [n]."""
        label: Ints = self._responsibilities(clients).argmax(axis=1)
        return label

    def _responsibilities(self, clients: Ints) -> Floats:
        assert self.mixture is not None
        return self.mixture.told(self.metadata.of(clients), self.inside[clients])

    def _place(self, clients: Ints) -> None:
        """Let clients [n] take an E-step, and tell all their responsibilities where these are needed."""
        super()._place(clients)
        if self.weighted and self.mixture is not None and len(clients):
            self.resp[clients] = self._responsibilities(clients)
            self.world.ledger.sent("assignment", clients, self.clusters)

    def _share(self, participants: Ints) -> Floats | None:
        return self.resp[participants] if self.weighted and self.found else None

    def drift(self, clients: Ints, metadata: Metadata) -> None:
        """Give clients [n] new metadata; they find their cluster anew when they next take part."""
        self._renew(clients, metadata.phi, metadata.counts)
        super().drift(clients, metadata)

    def _renew(self, clients: Ints, phi: Floats, counts: Ints) -> None:
        own = Metadata(self.metadata.phi.copy(), self.metadata.counts.copy())  # the world's stay as they are
        own.phi[clients], own.counts[clients] = phi, counts
        self.metadata = own

    def finish(self) -> Outcome:
        """Take a last E-step over all clients; a newcomer could not use the centroids, so none are kept."""
        outcome = super().finish()
        return Outcome(outcome.assignment, outcome.dbi, outcome.ch)

    def state(self) -> Arrays:
        """Give the mixture too, and what it is of."""
        who = np.flatnonzero(self.drifted)
        own: Arrays = {"resp": self.resp}
        own |= {"drift/own": self.metadata.phi[who], "drift/counts": self.metadata.counts[who]}
        if self.mixture is not None:
            own["totals"] = self.mixture.totals
            if isinstance(family := self.mixture.family, Full):
                own |= {f"sketch/{f.name}": getattr(family.sketch, f.name) for f in fields(Sketch)}
                own["shared"] = family.shared
        return {**super().state(), **own}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        super().restore(arrays)
        number = {name: array.astype(np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}
        self.resp = number["resp"]
        counts = arrays["drift/counts"].astype(np.int64)
        self._renew(np.flatnonzero(self.drifted), number["drift/own"], counts)
        if "totals" in number:
            if self.family == "full":
                sketch = Sketch(*(number[f"sketch/{f.name}"] for f in fields(Sketch)))
                family: Family = Full(sketch, number["shared"], float(sketch.size))
            else:
                family = make_family(self.family, *self.cohort.blocks)
            self.mixture = Mixture(family, number["totals"])
