"""One exchange: clients contribute terms, the server adds them, and what the guard admits is opened.

All clusters' sums travel in one vector with a block for each cluster, so that an exchange is one message
from a client, and one session under secure aggregation. A client fills the block of its own cluster and
leaves the others zero; the blocks of clusters whose sum the guard refuses are left out by everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
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
        self._in_the_clear = not isinstance(scheme, SecAgg) and scheme.name == "plain"

    def tell(self, clients: Ints, values: Ints, below: int) -> Ints:
        """Let clients [n] tell the server a whole number each, below a limit; -1 for one that is lost."""
        self._ledger.sent("assignment", clients, 1 if below <= 256 else 4)  # bytes
        return values

    def sums(
        self, what: str, terms: Floats, clients: Ints, cluster: Ints, clusters: int, kind: Kind = "sum"
    ) -> Floats:
        """Sum terms [n S] by cluster [n] and open what the guard admits: [K S], NaN where nothing was opened.

        kind: what the guard takes the terms for (`privacy/guard.py`).
        """
        length = terms.shape[1]
        sums = np.full((clusters, length), np.nan)
        sizes = np.bincount(cluster, minlength=clusters)
        admitted = [
            k for k in np.flatnonzero(sizes).tolist() if self.guard.admit(clients[cluster == k], kind)
        ]
        opened = np.isin(np.arange(clusters), admitted)
        self._ledger.summed("metadata", sizes > 0, opened)
        if not admitted:
            return sums
        place = np.full(clusters, -1)
        place[admitted] = np.arange(len(admitted))
        who = np.flatnonzero(opened[cluster])
        total = self._total(terms[who], place[cluster[who]], len(admitted), clients[who])
        if total is None:
            return sums
        sums[admitted] = total.reshape(len(admitted), length)
        for k in admitted:
            members = clients[cluster == k]
            self._ledger.opened(what, members, length, self.guard.version[members], kind)
        return sums

    def _total(self, terms: Floats, block: Ints, blocks: int, clients: Ints) -> Floats | None:
        """Add the clients' vectors [n blocks*S]; None where no sum could be formed."""
        if self._in_the_clear:
            with self._ledger.clock("server", "clustering"):
                total = np.zeros((blocks, terms.shape[1]))
                np.add.at(total, block, terms)
            self._ledger.sent("exchange", clients, 8 * terms.shape[1])
            return total.ravel()
        vectors = np.zeros((len(terms), blocks, terms.shape[1]))
        vectors[np.arange(len(terms)), block] = terms
        flat = vectors.reshape(len(terms), -1)
        return (
            self._masked(flat, clients) if isinstance(self._scheme, SecAgg) else self._sealed(flat, clients)
        )

    def _masked(self, vectors: Floats, clients: Ints) -> Floats | None:
        from flameche.protocol.session import masked_sum  # needs cryptography, which only this scheme does

        assert isinstance(self._scheme, SecAgg)
        if len(clients) < 2:
            return None  # one alone has nobody to mask with
        encoded = np.stack([self._scheme.codec.encode(vector) for vector in vectors])
        return self._scheme.codec.decode(masked_sum(encoded, clients, "exchange", "sketch", self._ledger))

    def _sealed(self, vectors: Floats, clients: Ints) -> Floats | None:
        assert self._key is not None and self._adder is not None
        with self._ledger.clock("client", "encryption"):
            sealed = [self._key.seal(vector) for vector in vectors]
        self._ledger.sent("exchange", clients, sizes_of(sealed))
        total = self._added(sealed)
        if total is None:
            return None
        self._ledger.received("exchange", clients, len(total))
        with self._ledger.clock("client", "encryption"):
            return self._key.open(total)

    def _added(self, sealed: Sequence[bytes]) -> bytes | None:
        assert self._adder is not None
        with self._ledger.clock("server", "encryption"):
            try:
                return self._adder.add(self._adder.load(data) for data in sealed).to_bytes()
            except Cancelled:
                self._ledger.sum_cancelled()
                return None
