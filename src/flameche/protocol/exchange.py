"""One exchange: clients contribute terms, the server adds them, and what the guard admits is opened.

All clusters' sums travel in one vector with a block for each cluster, so that an exchange is one message
from a client, and one session under secure aggregation. A client fills the block of its own cluster and
leaves the others zero, or fills each by its share in that cluster, which the server knows as it knows the
cluster; the blocks of clusters whose sum the guard refuses are left out by everybody.
"""

from __future__ import annotations

import numpy as np

from flameche.crypto.api import Adder, ClientKey, Scheme
from flameche.crypto.masking import SecAgg
from flameche.crypto.plain import Plain
from flameche.em.spherical import Floats, Ints
from flameche.errors import Cancelled
from flameche.privacy.guard import Guard, Kind
from flameche.protocol.ledger import Ledger, sizes_of


class Exchange:
    """How a run's clients form sums of terms that are used once."""

    def __init__(self, scheme: Scheme | SecAgg, guard: Guard, ledger: Ledger) -> None:
        self.guard, self._scheme, self._ledger = guard, scheme, ledger
        self._key = None if isinstance(scheme, SecAgg) else scheme.client_key()
        self._adder = None if isinstance(scheme, SecAgg) else scheme.adder()
        self._in_the_clear = type(scheme) is Plain

    def tell(self, clients: Ints, values: Ints, below: int) -> Ints:
        """Let clients [n] tell the server a whole number each, below a limit; -1 for one that is lost.

        values [n], or [n m] for several numbers at once.
        """
        each = values.size // max(1, len(clients))
        self._ledger.sent("assignment", clients, each * (1 if below <= 256 else 4))  # bytes
        return values

    def sums(
        self, what: str, terms: Floats, clients: Ints, cluster: Ints, clusters: int, kind: Kind = "sum"
    ) -> Floats:
        """Sum terms [n S] by cluster [n] and open what the guard admits: [K S], NaN where nothing was opened.

        kind: what the guard takes the terms for (`privacy/guard.py`).
        """
        return self.shared_sums(what, terms, clients, np.eye(clusters)[cluster], kind)

    def shared_sums(
        self, what: str, terms: Floats, clients: Ints, share: Floats, kind: Kind = "sum"
    ) -> Floats:
        """Sum terms by the clients' shares in each cluster [n K], which the server knows; as `sums`.

        terms [n S], or [n K S] where a client has another term for each cluster.
        """
        length, count = terms.shape[-1], share.shape[1]
        sums = np.full((count, length), np.nan)
        members = [np.flatnonzero(share[:, k]) for k in range(count)]
        admitted = [
            k
            for k in range(count)
            if len(members[k]) and self.guard.admit(clients[members[k]], kind, share[members[k], k])
        ]
        wanted = np.array([len(some) > 0 for some in members])
        self._ledger.summed("metadata", wanted, np.isin(np.arange(count), admitted))
        if not admitted:
            return sums
        given, terms = share[:, admitted], terms if terms.ndim == 2 else terms[:, admitted]
        who = np.flatnonzero(given.sum(axis=1))
        total = self._total(terms[who], given[who], clients[who])
        if total is None:
            return sums
        sums[admitted] = total.reshape(len(admitted), length)
        for k in admitted:
            some = clients[members[k]]
            version = self.guard.version[some]
            self._ledger.opened(what, some, length, version, kind, share[members[k], k])
        return sums

    def _total(self, terms: Floats, share: Floats, clients: Ints) -> Floats | None:
        """Add the clients' terms by shares [n blocks]; None where no sum could be formed."""
        if self._in_the_clear:
            with self._ledger.clock("server", "clustering"):
                if terms.ndim == 3:
                    total: Floats = np.einsum("nk,nks->ks", share, terms).ravel()
                else:
                    total = (share.T @ terms).ravel()
            self._ledger.sent("exchange", clients, 8 * terms[0].size)
            return total
        flat = by_share(terms, share)
        return (
            self._masked(flat, clients) if isinstance(self._scheme, SecAgg) else self._sealed(flat, clients)
        )

    def _masked(self, vectors: Floats, clients: Ints) -> Floats | None:
        from flameche.protocol.masked import masked_sum  # needs cryptography, which only this scheme does

        assert isinstance(self._scheme, SecAgg)
        if len(clients) < 2:
            return None  # one alone has nobody to mask with
        encoded = np.stack([self._scheme.codec.encode(vector) for vector in vectors])
        return self._scheme.codec.decode(masked_sum(encoded, clients, "exchange", "sketch", self._ledger))

    def _sealed(self, vectors: Floats, clients: Ints) -> Floats | None:
        assert self._key is not None and self._adder is not None
        total, size = sealed_sum(vectors, clients, "exchange", self._key, self._adder, self._ledger)
        if total is not None:
            self._ledger.received("exchange", clients, size)
        return total


def sealed_sum(
    vectors: Floats, clients: Ints, what: str, key: ClientKey, adder: Adder, ledger: Ledger
) -> tuple[Floats | None, int]:
    """Let clients [n] seal vectors [n S], add and open them; None if they cancel out. And the sum's bytes."""
    with ledger.clock("client", "encryption"):
        sealed = [key.seal(vector) for vector in vectors]
    ledger.sent(what, clients, sizes_of(sealed))
    with ledger.clock("server", "encryption"):
        try:
            total = adder.add(adder.load(data) for data in sealed).to_bytes()
        except Cancelled:
            ledger.sum_cancelled()
            return None, 0
    with ledger.clock("client", "encryption"):
        return key.open(total), len(total)


def by_share(terms: Floats, share: Floats) -> Floats:
    """Write terms, [n S] or [n K S], as vectors with a block for each cluster, by shares [n K]: [n K*S]."""
    vectors: Floats = share[:, :, None] * (terms[:, None, :] if terms.ndim == 2 else terms)
    return vectors.reshape(len(terms), share.shape[1] * terms.shape[-1])
