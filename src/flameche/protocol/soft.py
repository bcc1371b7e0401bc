"""Sums for soft EM: every client is in every component, by its responsibility, in one sealed vector.

A client's term is, for all K components, r_ik [t(x_i), 1], then its log-likelihood and a one; nobody but
the client sees r_ik. Where the server keeps terms it adds the latest of all clients seen: incremental EM
(Neal and Hinton, "A view of the EM algorithm that justifies incremental, sparse, and other variants", 1998).
Under secure aggregation each round's participants hold one session, and sums of earlier rounds decay:
stepwise EM (Cappé and Moulines, "On-line expectation-maximization algorithm for latent data models", JRSS B
71, 2009).

The guard cannot count members, since nobody knows them. So clients first add up r_ik and r_ik^2, sealed
too. A component whose effective number of clients, (sum r)^2 / sum r^2, is below `least` stays as it is:
every participant leaves in its block what it gave before, under secure aggregation nothing. No sum over fewer
than `least` clients is opened, nor after a round of fewer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
from flameche.em import mixture
from flameche.em.spherical import Floats, Ints
from flameche.protocol.client import Cohort
from flameche.protocol.ledger import Ledger, sizes_of
from flameche.protocol.server import AdditiveServer
from flameche.protocol.sums import Arrays

SMALL = 2.0**-10  # a responsibility below is told as none: of its block, fixed point would leave noise
DECAY = 0.9  # of earlier rounds' sums, where they cannot be summed again
TERMS, COUNTS = "terms:", "counts:"


class Offer(NamedTuple):
    """What clients [n] have for the sums: responsibilities [n K], statistics [n S], log-likelihoods [n].

    The likelihoods are told in units of `scale`, cut at one so that any scheme.bound holds them; None while
    there are none.
    """

    clients: Ints
    resp: Floats
    statistics: Floats
    likelihood: Floats | None
    scale: float

    def terms(self, given: Floats) -> Floats:
        """Write the clients' terms [n K(S+1)+2], with what they may give [n K] in place of all."""
        n = len(self.clients)
        counted = np.column_stack([self.statistics, np.ones(n)])
        blocks = (given[:, :, None] * counted[:, None, :]).reshape(n, -1)
        told = np.zeros((n, 2))
        if self.likelihood is not None:
            told = np.column_stack([np.clip(self.likelihood / self.scale, -1.0, 1.0), np.ones(n)])
        return np.concatenate([blocks, told], axis=1)

    def read(self, total: Floats) -> tuple[Floats, float]:
        """Take a sum of terms apart: totals [K S+1], mean log-likelihood (NaN of nobody)."""
        likelihood, clients = total[-2:]
        mean = self.scale * float(likelihood / clients) if clients > 0.5 else float("nan")
        return total[:-2].reshape(self.resp.shape[1], -1), mean


class SoftSums:
    """The totals of a mixture [K S+1]: what both ways to sums have in common."""

    def __init__(self, cohort: Cohort, shape: tuple[int, int], least: int, ledger: Ledger) -> None:
        self._cohort, self._least, self._ledger = cohort, least, ledger
        self.totals: Floats = np.zeros(shape)
        self.log_likelihood = float("nan")  # a client's, on average, under the totals it was sent
        self.broadcast_bytes: int | None = None  # of the sealed totals; None where the server opens them

    def exchange(self, offer: Offer, opens: bool = True) -> bool:
        """Let clients give their terms, and open the sums; tell whether the totals are new.

        Without `opens`, nothing is looked at that can be kept for later.
        """
        raise NotImplementedError

    def merge(self, label: Ints, count: int) -> None:
        """Merge components by label [K]: there are `count` of them now."""
        self.totals = mixture.join(self.totals, label, count)

    def state(self) -> Arrays:
        """Give what must survive a restart."""
        return {"totals": self.totals, "log_likelihood": np.array(self.log_likelihood)}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.totals = arrays["totals"].astype(np.float64)
        self.log_likelihood = float(arrays["log_likelihood"])


class StoredSoftSums(SoftSums):
    """Incremental EM: the server keeps each client's latest sealed term.

    When components are merged, terms in the old layout count as they stood then, by the share of their
    clients that have not come again since; no sum over fewer and fewer of them has to be opened.
    """

    def __init__(
        self, cohort: Cohort, scheme: Scheme, shape: tuple[int, int], least: int, ledger: Ledger
    ) -> None:
        super().__init__(cohort, shape, least, ledger)
        self._scheme, self._sealed = scheme, scheme.opened_by == "clients"
        self.broadcast_bytes = 0 if self._sealed else None
        self._sum_bytes = self._old_bytes = 0  # of the sealed sums that clients need
        self._old = np.zeros(shape)  # totals of the terms in the old layout
        self._came = np.zeros((2, len(cohort)), bool)  # who has a term in the old layout, and in this one
        self._opened = False  # any sum
        self._fresh_servers(shape[0])

    def _fresh_servers(self, components: int) -> None:
        self._terms = AdditiveServer(self._scheme.adder(), self._ledger, 1)
        self._counts = AdditiveServer(self._scheme.adder(), self._ledger, 1)
        self._given = np.zeros((len(self._cohort), components))  # what each client gave last, as it knows

    def exchange(self, offer: Offer, opens: bool = True) -> bool:
        """Keep the terms; add those of all clients seen."""
        clients = offer.clients
        given, low = self._guarded(offer, opens)
        sealed = self._cohort.seal(offer.terms(given))
        self._ledger.sent("metadata", clients, sizes_of(sealed))
        self._terms.store(clients, sealed)
        self._given[clients] = given
        self._came[1, clients] = True
        here = np.flatnonzero(self._came[1])
        enough = min(len(clients), len(here)) >= self._least and (self._opened or not low.any())
        if opens:
            self._ledger.summed("metadata", self._given.sum(axis=0) > 0, ~low & enough)
        if not (opens and enough):
            return False
        (total,) = self._terms.sums_of_stored(here, np.zeros_like(here))
        opened = self._cohort.open(total)
        if opened is None:  # its ciphertexts cancel each other
            return False
        sums, self.log_likelihood = offer.read(opened)
        waiting = (self._came[0] & ~self._came[1]).sum() / max(1, self._came[0].sum())
        self.totals, self._opened = mixture.m_step(sums + waiting * self._old, self.totals), True
        if self._sealed:
            self._sum_bytes = len(total or b"")
            self.broadcast_bytes = self._sum_bytes + (self._old_bytes if waiting > 0 else 0)
        return True

    def _guarded(self, offer: Offer, opens: bool) -> tuple[Floats, NDArray[np.bool_]]:
        """Give what clients may put into the sums [n K], and which components are held back [K].

        From the very first sum nothing is held back: it is opened when it may be, as a whole.
        """
        if self._least <= 1:
            return offer.resp, np.zeros(offer.resp.shape[1], bool)
        self._tell_counts(offer.clients, offer.resp)
        told = np.flatnonzero(self._counts.holds(np.arange(len(self._cohort))))
        if not opens or len(told) < self._least:
            return offer.resp, np.ones(offer.resp.shape[1], bool)
        (total,) = self._counts.sums_of_stored(told, np.zeros_like(told))
        self._ledger.received("exchange", offer.clients, len(total or b""))
        opened = self._cohort.open(total)
        # Ciphertexts that cancel each other open to nothing: nobody can judge, and all is held back.
        low = np.ones(offer.resp.shape[1], bool) if opened is None else too_few(opened, self._least)
        if not (self._opened and low.any()):
            return offer.resp, low
        given = np.where(low, self._given[offer.clients], offer.resp)
        self._tell_counts(offer.clients, given)
        return given, low

    def _tell_counts(self, clients: Ints, resp: Floats) -> None:
        sealed = self._cohort.seal(np.concatenate([resp, resp**2], axis=1))
        self._ledger.sent("exchange", clients, sizes_of(sealed))
        self._counts.store(clients, sealed)

    def merge(self, label: Ints, count: int) -> None:
        """Begin a new layout; what is summed so far is carried over."""
        super().merge(label, count)
        self._old, self._old_bytes = self.totals.copy(), self._sum_bytes
        self._came = np.stack([self._came[1], np.zeros(len(self._cohort), bool)])
        self._fresh_servers(count)

    def state(self) -> Arrays:
        """Give the totals, the server's sealed terms, and what clients gave."""
        own: Arrays = {"old": self._old, "came": self._came, "given": self._given}
        own["sizes"] = np.array([self._sum_bytes, self._old_bytes, self.broadcast_bytes or 0, self._opened])
        own |= {TERMS + key: value for key, value in self._terms.state().items()}
        own |= {COUNTS + key: value for key, value in self._counts.state().items()}
        return {**super().state(), **own}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        super().restore(arrays)
        self._fresh_servers(len(self.totals))
        self._old, self._came = arrays["old"].astype(np.float64), arrays["came"].astype(bool)
        self._given = arrays["given"].astype(np.float64)
        self._sum_bytes, self._old_bytes, broadcast, opened = (int(n) for n in arrays["sizes"])
        self.broadcast_bytes, self._opened = broadcast if self._sealed else None, bool(opened)
        for prefix, server in ((TERMS, self._terms), (COUNTS, self._counts)):
            server.restore({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})


class MaskedSoftSums(SoftSums):
    """Stepwise EM: a session of the round's participants, added to what is left of earlier rounds."""

    def __init__(
        self, cohort: Cohort, scheme: SecAgg, shape: tuple[int, int], least: int, ledger: Ledger
    ) -> None:
        super().__init__(cohort, shape, least, ledger)
        self._codec = scheme.codec

    def exchange(self, offer: Offer, opens: bool = True) -> bool:
        """Hold the round's session, which cannot wait; components with too few clients stay as they are."""
        low = np.ones(offer.resp.shape[1], bool)
        enough = len(offer.clients) >= max(2, self._least)  # one alone has nobody to mask with
        if enough:
            low = np.zeros_like(low)
            if self._least > 1:
                counts = np.concatenate([offer.resp, offer.resp**2], axis=1)
                low = too_few(self._session(counts, offer.clients, "exchange", "counts"), self._least)
        self._ledger.summed("metadata", offer.resp.sum(axis=0) > 0, ~low)
        if not enough or low.all():
            return False
        terms = offer.terms(np.where(low, 0.0, offer.resp))
        sums, self.log_likelihood = offer.read(self._session(terms, offer.clients, "metadata", "terms"))
        there = sums[:, -1:] > mixture.KNOWN
        self.totals = np.where(there, DECAY * self.totals + sums, self.totals)
        return True

    def _session(self, vectors: Floats, clients: Ints, what: str, label: str) -> Floats:
        from flameche.protocol.session import masked_sum  # needs cryptography, which only this does

        encoded = np.stack([self._codec.encode(vector) for vector in vectors])
        return self._codec.decode(masked_sum(encoded, clients, what, label, self._ledger))


def soft_sums(
    cohort: Cohort, scheme: Scheme | SecAgg, shape: tuple[int, int], least: int, ledger: Ledger
) -> SoftSums:
    """Give the way in which a scheme forms the totals [K S+1] of this shape."""
    if isinstance(scheme, SecAgg):
        return MaskedSoftSums(cohort, scheme, shape, least, ledger)
    return StoredSoftSums(cohort, scheme, shape, least, ledger)


def told(resp: Floats) -> Floats:
    """Leave responsibilities out that are too small to be told; rows still sum to one."""
    large = np.where(resp < SMALL, 0.0, resp)
    shares: Floats = large / large.sum(axis=1, keepdims=True)
    return shares


def too_few(counts: Floats, least: int) -> NDArray[np.bool_]:
    """Judge the sums of r and r^2 [2 K]: which components have somebody, but effectively too few."""
    total, squares = np.split(counts, 2)
    some = total > SMALL / 2
    effective = np.divide(total**2, squares, out=np.zeros_like(total), where=some & (squares > 0))
    few: NDArray[np.bool_] = some & (effective < least - 1e-3)  # fixed point and CKKS count nearly right
    return few
