"""What drifted clients have in the sums: they remember the terms they gave.

A client whose data drifted has to know what it gave before: under masks to take it back, and everywhere to
number its terms for the guard. A term that it gives again, say in another season, keeps its number; else the
guard would take for a change what is none.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from flameche.em import spherical
from flameche.em.spherical import Floats, Ints
from flameche.protocol.client import Cohort

DIGEST = 16  # bytes of SHA-256 by which a term is known again


class Given:
    """The clients' memory of their terms; a client that never drifted needs none."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._terms: dict[int, Floats] = {}  # in the sums, where it is another than now
        self._history: dict[int, list[bytes]] = {}  # digests of all terms given, in order

    def keep(self, clients: Ints) -> None:
        """Remember these clients' terms as they are now, just before their metadata change."""
        for i, term in zip(clients.tolist(), self._now(clients), strict=True):
            self._terms.setdefault(i, term)  # who drifts twice before it says so gave the first
            self._history.setdefault(i, [_digest(term)])

    def changed(self, clients: Ints) -> NDArray[np.bool_]:
        """Tell which of these clients [n] would give another term now; who drifted back would not."""
        pairs = zip(clients.tolist(), self._now(clients), strict=True)
        return np.array(
            [i in self._terms and not np.array_equal(self._terms[i], now) for i, now in pairs], bool
        )

    def version(self, clients: Ints) -> Ints:
        """Number the terms that these clients [n] would give now, each in the order of its own: 0, 1, …"""
        numbers = []
        for i, now in zip(clients.tolist(), self._now(clients), strict=True):
            past, digest = self._history.get(i, []), _digest(now) if i in self._history else b""
            numbers.append(past.index(digest) if digest in past else len(past))
        return np.array(numbers, np.int64)

    def of(self, clients: Ints) -> Floats:
        """Give the terms [n S] that these clients have in the sums."""
        now = self._now(clients)
        for n, i in enumerate(clients.tolist()):
            now[n] = self._terms.get(i, now[n])
        return now

    def told(self, clients: Ints) -> None:
        """Note that these clients gave their terms of now."""
        for i, now in zip(clients.tolist(), self._now(clients), strict=True):
            self._terms.pop(i, None)
            if i in self._history and (digest := _digest(now)) not in self._history[i]:
                self._history[i].append(digest)

    def _now(self, clients: Ints) -> Floats:
        return spherical.statistics(self._cohort.phi[clients], self._cohort.weight[clients])

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Give the old terms and the digests, for a checkpoint."""
        arrays: dict[str, NDArray[np.generic]] = {f"given/{i}": term for i, term in self._terms.items()}
        for i, past in self._history.items():
            arrays[f"history/{i}"] = np.frombuffer(b"".join(past), np.uint8).reshape(-1, DIGEST)
        return arrays

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self._terms, self._history = {}, {}
        for key, value in arrays.items():
            kind, _, number = key.partition("/")
            if kind == "given":
                self._terms[int(number)] = value.astype(np.float64)
            elif kind == "history":
                self._history[int(number)] = [row.tobytes() for row in value]


def _digest(term: Floats) -> bytes:
    return hashlib.sha256(term.tobytes()).digest()[:DIGEST]
