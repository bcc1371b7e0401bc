"""The server: keeps sealed terms, adds those it is asked to add, and can do no more.

It holds an `Adder`, which cannot open anything. What it knows besides is what clients tell it in the
clear: which terms belong together. A cluster's sum is kept from round to round: only the terms of clients
that came or went are added or taken out, so a round costs as much as its participants, not as all clients
ever seen. A sum whose ciphertexts cancel each other cannot be formed: it is left out, and tried again from
its terms the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Adder, Sealed
from flameche.errors import Cancelled
from flameche.protocol.ledger import Ledger

Ints = NDArray[np.int64]
NOWHERE = -1
REFRESH = 512  # changes to one sum before it is added afresh: lattice noise and rounding stay bounded


class AdditiveServer:
    """Stores each client's latest sealed term and adds them by cluster."""

    def __init__(self, adder: Adder, ledger: Ledger, clusters: int) -> None:
        self._adder = adder
        self._ledger = ledger
        self._terms: dict[int, Sealed] = {}
        self._home: dict[int, int] = {}  # the cluster in whose sum a stored term is
        self._sums: list[Sealed | None] = [None] * clusters
        self._changes = np.zeros(clusters, np.int64)
        self.cancelled: set[int] = set()  # clusters that have members, and no sum

    def store(self, clients: Ints, terms: Sequence[bytes]) -> None:
        """Keep these clients' terms, in place of earlier ones."""
        with self._ledger.clock("server", "encryption"):
            for i, term in zip(clients.tolist(), terms, strict=True):
                if i in self._home:  # the old term leaves its sum before it is forgotten
                    self._move(i, NOWHERE)
                self._terms[i] = self._adder.load(term)

    def drop(self, clients: Ints) -> None:
        """Forget these clients' terms, and take them out of the sums."""
        with self._ledger.clock("server", "encryption"):
            for i in clients.tolist():
                if i in self._home:
                    self._move(i, NOWHERE)
                self._terms.pop(i, None)

    def holds(self, clients: Ints) -> NDArray[np.bool_]:
        """Tell which of these clients have a term here."""
        return np.array([i in self._terms for i in clients.tolist()], bool)

    def sums_of_stored(self, clients: Ints, cluster: Ints) -> list[bytes | None]:
        """Sum the stored terms of exactly these clients [n] by cluster [n].

        None for nobody's cluster, and for one in `cancelled`.
        """
        with self._ledger.clock("server", "clustering"):
            wanted = dict(zip(clients.tolist(), cluster.tolist(), strict=True))
            for i in [i for i in self._home if i not in wanted]:
                self._move(i, NOWHERE)
            for i, k in wanted.items():
                if self._home.get(i, NOWHERE) != k:
                    self._move(i, k)
            for k in sorted({*np.flatnonzero(self._changes > REFRESH).tolist(), *self.cancelled}):
                self._add_afresh(k)
            for _ in self.cancelled:
                self._ledger.sum_cancelled()
            return [None if total is None else total.to_bytes() for total in self._sums]

    def sums(self, terms: Sequence[bytes], cluster: Ints) -> list[bytes | None]:
        """Add terms [n] that are not kept, by cluster [n]; None for nobody's, or if they cancel out."""
        with self._ledger.clock("server", "clustering"):
            totals: list[bytes | None] = []
            for k in range(len(self._sums)):
                members = np.flatnonzero(cluster == k).tolist()
                loaded = [self._adder.load(terms[j]) for j in members]
                try:
                    totals.append(self._adder.add(loaded).to_bytes() if members else None)
                except Cancelled:
                    self._ledger.sum_cancelled()
                    totals.append(None)
            return totals

    def _move(self, i: int, k: int) -> None:
        """Take client i's term out of the sum it is in, and add it to cluster k's, if any."""
        term, old = self._terms[i], self._home.pop(i, NOWHERE)
        if old != NOWHERE and old not in self.cancelled:
            whole = self._sums[old]
            assert whole is not None
            last = whole.terms <= term.terms
            self._set(old, lambda: None if last else self._adder.subtract(whole, [term]))
        if k != NOWHERE:
            if k not in self.cancelled:
                before = self._sums[k]
                self._set(k, lambda: term if before is None else self._adder.add([before, term]))
            self._home[i] = k

    def _set(self, k: int, make: Callable[[], Sealed | None]) -> None:
        """Change cluster k's sum; one that cannot be formed is added afresh before anybody gets it."""
        try:
            self._sums[k] = make()
        except Cancelled:
            self._sums[k] = None
            self.cancelled.add(k)
        self._changes[k] = self._changes[k] + 1 if self._sums[k] is not None else 0

    def _add_afresh(self, k: int) -> None:
        members = sorted(i for i, home in self._home.items() if home == k)
        self.cancelled.discard(k)
        self._set(k, lambda: self._adder.add(self._terms[i] for i in members) if members else None)
        self._changes[k] = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Give the stored terms and running sums as bytes, for a checkpoint."""
        arrays: dict[str, NDArray[np.generic]] = {"changes": self._changes}
        for i, term in self._terms.items():
            arrays[f"term/{i}"] = np.frombuffer(term.to_bytes(), np.uint8)
        for k, total in enumerate(self._sums):
            if total is not None:
                arrays[f"sum/{k}"] = np.frombuffer(total.to_bytes(), np.uint8)
        arrays["home"] = np.array(list(self._home.items()), np.int64).reshape(-1, 2)
        return arrays

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self._changes = arrays["changes"].astype(np.int64)
        self._home = {int(i): int(k) for i, k in arrays["home"].tolist()}
        for key, value in arrays.items():
            kind, _, number = key.partition("/")
            if kind == "term":
                self._terms[int(number)] = self._adder.load(value.tobytes())
            elif kind == "sum":
                self._sums[int(number)] = self._adder.load(value.tobytes())
        self.cancelled = {k for k in self._home.values() if self._sums[k] is None}
