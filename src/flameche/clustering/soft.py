"""A clustering session whose last stage is soft EM, in at most ten exchanges (above 8 clusters, twelve).

Where K is chosen it takes one more.

    1-6   as in `clustering/session.py`, up to the sums of the hard clusters
    7-9   EM over a mixture (`em/mixture.py`): every client tells its responsibilities, and contributes for
    each component r_ik [t(x_i), l_i, 1], where l_i is its log-likelihood
    10    how far clients are from the hard clusters' centroids

EM starts from the hard clusters after their E-step; a component whose sum the guard refuses keeps the
parameters that follow from the sums before. In the last E-step, after which clients know where they belong,
each takes its own part out of the means, as in hard ones (`em/hartigan.py`): EM by itself keeps a client of
a small cluster there, right or wrong.

What sums give away can be judged only by who knows how much of each client is in them. So responsibilities
are rounded to eighths and told in the clear, as the paper's clients tell their cluster, and a component's
sum is a row of known weights to the guard. But for rounding and refused sums, no step lowers the likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flameche.clustering.session import Found, Session
from flameche.em import leaves as splitting
from flameche.em import mixture
from flameche.em.families import FamilyName, make_family
from flameche.em.gaussian import Full
from flameche.em.mixture import Blocks, Family
from flameche.em.significance import Choice
from flameche.em.sketch import Sketch
from flameche.em.spherical import Centroids, Floats, Ints
from flameche.em.vmf import Directions
from flameche.metadata.extractors import Metadata
from flameche.privacy.guard import Kind

STEPS = 3  # M-steps
EIGHTHS = 8  # parts of one in which responsibilities are told
ENOUGH = 10  # clients in each component, from which on components need not share one spread
GAIN = 1e-6  # of the log-likelihood, a client's on average: less is none


@dataclass(frozen=True)
class Mixture:
    """A family and its components' totals [K S+1]."""

    family: Family
    totals: Floats

    def e_step(self, own: Blocks, inside: Floats | None = None) -> tuple[Floats, Floats]:
        """Compute responsibilities and log-likelihoods; with few clients, components share one spread."""
        family = self.family if self.totals[:, -1].min() >= ENOUGH else self.family.alike()
        return mixture.e_step(family, own, self.totals, inside)

    def told(self, metadata: Metadata, inside: Floats) -> Floats:
        """Compute what clients with these metadata tell of their responsibilities [n K].

        inside [n K]: how much of their own is in the totals, which is taken out of means.
        """
        own = self.family.prepare(metadata.phi, metadata.counts)
        return in_eighths(self.e_step(own, inside)[0])


@dataclass(frozen=True, kw_only=True)
class SoftFound(Found):
    """What a session found, with a mixture, and the responsibilities [n K] that clients told in the end."""

    mixture: Mixture
    resp: Floats


class SoftSession(Session):
    """A session that ends with a mixture; `metadata`: the clients', as they are."""

    def __init__(self, *session: Any, metadata: Metadata, family: FamilyName, **how: Any) -> None:
        super().__init__(*session, **how)
        self.metadata, self.family = metadata, family

    def _refined(
        self,
        label: Ints,
        centroids: Centroids,
        sketch: Sketch,
        leaves: splitting.Leaves,
        of_leaf: Ints,
        choice: Choice | None,
    ) -> Found | None:
        """Take EM steps from hard clusters."""
        count = np.bincount(label).astype(np.float64)
        if self.family == "full":
            sums = np.zeros((len(count), sketch.size))
            np.add.at(sums, of_leaf, leaves.count[:, None] * leaves.mean)
            clusters = splitting.read_leaves(sums, count, splitting.root(sketch.variance, len(label)).scatter)
            family: Family = Full.within(sketch, clusters)
            totals = family.start(clusters.as_centroids(), count)
        else:
            family = make_family(self.family, *self.phi.shape[1:])
            totals = family.start(centroids, count)
        hot = np.eye(len(count))
        if (moved := self._e_step(centroids, hot[label])).min() < 0:
            return None
        mixture, inside = self._em(Mixture(family, totals), hot[label], hot[moved])
        resp = self._tell(mixture.told(self.metadata, inside))
        found = centroids, resp.argmax(axis=1), inside, self._spread(centroids, label), sketch, len(leaves)
        return SoftFound(*found, choice, mixture=mixture, resp=resp)

    def _tell(self, resp: Floats) -> Floats:
        """Let clients tell their responsibilities."""
        eighths = np.rint(EIGHTHS * resp).astype(np.int64)
        return self.exchange.tell(self.clients, eighths, EIGHTHS + 1) / EIGHTHS

    def _em(self, now: Mixture, inside: Floats, told: Floats) -> tuple[Mixture, Floats]:
        """Take EM steps as long as responsibilities change and the likelihood grows.

        inside [n K]: how much of each client is in the totals, at first, and as it is in the end; told [n K]:
        the responsibilities to begin with.
        """
        family = now.family
        own = family.prepare(self.metadata.phi, self.metadata.counts)
        counted = np.column_stack([family.statistics(own), np.zeros(len(own)), np.ones(len(own))])
        # The audit's names for terms that these are linear in: sketches, or metadata as prepared.
        what = "sketches" if self.family == "full" else "means"
        kind: Kind = "moments" if family.moments else "sum"
        before, best = (now, inside), -np.inf
        known = isinstance(family, Directions) and np.array_equal(told, inside)  # by the sums of clusters
        for step in range(int(known), STEPS):
            if step:
                resp, likelihood = now.e_step(own)
                counted[:, -2] = np.clip(likelihood / family.scale, -1.0, 1.0)
                if np.array_equal(resp := self._tell(in_eighths(resp)), told):
                    break
                told = resp
            sums = self.exchange.shared_sums(what, counted, self.clients, told, kind)
            if step:
                total = float(sums[told.any(axis=0), -2].sum())  # NaN where a component's sum was refused
                climbed = family.scale * total / len(own) + family.log_prior(now.totals) / len(own)
                if climbed <= best + GAIN:
                    now, inside = before if climbed < best else (now, inside)
                    break
                best = climbed if np.isfinite(climbed) else best
            before = now, inside
            totals = mixture.m_step(np.nan_to_num(np.delete(sums, -2, axis=1)), now.totals)
            now, inside = replace(now, totals=totals), np.where(np.isfinite(sums[:, -1]), told, inside)
        return now, inside


def in_eighths(resp: Floats) -> Floats:
    """Round responsibilities [n K] to eighths, so that rows still sum to one: by largest remainders."""
    parts = np.floor(EIGHTHS * resp)
    left = np.rint(EIGHTHS - parts.sum(axis=1)).astype(np.int64)
    rank = np.argsort(np.argsort(parts - EIGHTHS * resp, axis=1, kind="stable"), axis=1)
    shares: Floats = (parts + (rank < left[:, None])) / EIGHTHS
    return shares
