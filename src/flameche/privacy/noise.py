"""Differential privacy for single records, by Gaussian noise that a client adds once, to its own class means.

A client clips what it computes of each sample to length one (`metadata/bounded.py`), so one record that is
replaced by another of the same class moves that class's mean of n samples by at most 2 / n. It adds noise of
standard deviation 2 s / n to each number, keeps the noisy means, and uses nothing else of its metadata ever
after: any number of sums that are opened, by whomever, add nothing to what they cost. s comes from the
analytic Gaussian mechanism: Balle and Wang, "Improving the Gaussian mechanism for differential privacy",
ICML 2018. Data that drift are released again; k releases at s are as one at s / sqrt(k), exactly: Dong, Roth
and Su, "Gaussian differential privacy", JRSS B 84, 2022.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from flameche.errors import ConfigError, StoreError
from flameche.metadata.extractors import Metadata
from flameche.rng import stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.generic]]
Draw = Callable[[int, int, int], Floats]  # client, number of its release, size -> standard normal numbers
MOVES = 2.0  # by how much a record moves the sum over its class at most: across the unit ball


@dataclass(frozen=True)
class Budget:
    """What one release may cost: (epsilon, delta) for a record that is replaced within its class."""

    epsilon: float
    delta: float

    @cached_property
    def multiplier(self) -> float:
        """Compute s, the noise's standard deviation where a record moves the result by one."""
        return float(_accounting().get_sigma_gaussian(self.epsilon, self.delta))

    def spent(self, releases: int) -> float:
        """Compute the epsilon that so many releases of the same record cost together, at the same delta."""
        if releases == 1:
            return self.epsilon
        return float(_accounting().get_epsilon_gaussian(self.multiplier / np.sqrt(releases), self.delta))

    def deviation(self, counts: Ints) -> Floats:
        """Give the noise's standard deviation for means of so many samples; infinite for none."""
        with np.errstate(divide="ignore"):
            sigma: Floats = MOVES * self.multiplier / counts
        return sigma


def secret_normals(client: int, release: int, size: int) -> Floats:
    """Draw standard normal numbers from the system's entropy: nobody can draw them again."""
    raw = np.frombuffer(secrets.token_bytes(8 * size), np.uint64) >> np.uint64(11)
    normal: Floats = ndtri((raw + 0.5) / 2.0**53)
    return normal


def seeded_normals(seed: int) -> Draw:
    """Draw from a run's seed: for experiments alone, since who knows the seed can take the noise out."""
    return lambda client, release, size: stream(seed, "noise", client, release).standard_normal(size)


class NoisySource:
    """Adds noise to clients' metadata, once for each client and state of its data.

    Releases are numbered in the order in which they are asked for. `kept` has those of before a restart,
    which are given again as they were.
    """

    def __init__(
        self,
        budget: Budget,
        draw: Draw = secret_normals,
        kept: Arrays | None = None,
    ) -> None:
        self.budget, self._draw = budget, draw
        self._keep: Callable[[Arrays], None] | None = None
        self._kept = dict(kept or {})
        self._calls = 0
        self._times: dict[int, int] = {}

    @property
    def noise(self) -> float:
        """Tell how strong the noise is: of standard deviation noise / n in a mean of n samples."""
        return MOVES * self.budget.multiplier

    def keep_in(self, keep: Callable[[Arrays], None]) -> None:
        """Have all releases so far kept now, and each later one before it is used."""
        self._keep = keep
        keep(self._kept)

    def release(self, clients: Ints, exact: Callable[[], Metadata]) -> Metadata:
        """Give clients [n] noisy metadata; `exact` gives means of vectors no longer than one, once."""
        name = str(self._calls)
        self._calls += 1
        if f"{name}/phi" not in self._kept:
            own = exact().checked(clients.tolist())
            numbers = own.phi[0].size
            normal = [self._draw(i, self._times.get(i, 0), numbers) for i in clients.tolist()]
            noise = np.stack(normal).reshape(own.phi.shape)
            sigma = np.where(own.counts > 0, self.budget.deviation(np.maximum(own.counts, 1)), 0.0)
            phi = own.phi + sigma[:, :, None] * noise
            self._kept |= {f"{name}/clients": clients, f"{name}/phi": phi, f"{name}/counts": own.counts}
            if self._keep:
                self._keep(self._kept)
        for i in clients.tolist():
            self._times[i] = self._times.get(i, 0) + 1
        who, noisy, held = (self._kept[f"{name}/{part}"] for part in ("clients", "phi", "counts"))
        if not np.array_equal(who, clients):
            raise StoreError("the noisy metadata that were kept are of other clients; run it with --fresh")
        return Metadata(noisy.astype(np.float64), held.astype(np.int64))


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as problem:
        raise ConfigError("privacy.epsilon needs its package: pip install 'flameche[dp]'") from problem
    return dp_accounting
