"""Clients that leave, come back or change while a federation lives, as FLAMECHE takes them.

All three are changes of sums, so a server that only adds can follow (`protocol/sums.py`):
- *drift*: a client's data have changed, and its metadata with them. When it next takes part it hands in its
  new term, or under masks the change, takes an E-step with it, and may find itself in another cluster.
- *leave*: a client's term goes out of all sums, and it is counted no more. What was opened stays opened, and
  where sums are decayed its part fades. Under masks it takes its part out in one last session; the part of
  one that *vanished* stays.
- *join*: one that left, or was not there yet, may take part again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import Centroids
from flameche.errors import BadInput
from flameche.metadata.extractors import Metadata
from flameche.methods.base import UNSEEN, Arrays, Ints
from flameche.protocol.client import Cohort
from flameche.protocol.sums import Sums

if TYPE_CHECKING:
    from flameche.methods.robust import Robust


class Living:
    """What a FLAMECHE does about clients that do not stay as they are."""

    cohort: Cohort
    centroids: Centroids
    sums: Sums
    row: Ints
    label: Ints
    assignment: Ints
    over: Literal["seen", "participants", "decayed"]
    robust: Robust | None

    def __init__(self, clients: int) -> None:
        self.left: NDArray[np.bool_] = np.zeros(clients, bool)
        self.drifted: NDArray[np.bool_] = np.zeros(clients, bool)  # who has other metadata than at first
        self.untold: NDArray[np.bool_] = np.zeros(clients, bool)  # who drifted and has not come since

    def _tell(self) -> None:
        raise NotImplementedError

    @property
    def present(self) -> Ints:
        """List the clients that have not left."""
        return np.flatnonzero(~self.left)

    def drift(self, clients: Ints, metadata: Metadata) -> None:
        """Give clients [n] new metadata; who has the same as before has nothing to say, and says nothing."""
        other = np.flatnonzero(self.cohort.differ(clients, metadata))
        clients, metadata = clients[other], metadata.of(other)
        self.sums.drifted(clients)
        self.cohort.drift(clients, metadata)
        self.drifted[clients] = self.untold[clients] = True
        self._part(clients)
        self._look_again()

    def leave(self, clients: Ints, vanished: bool = False) -> None:
        """Take clients out of sums and counts; vanished: without their help."""
        self.sums.forget(clients, vanished)
        self.left[clients], self.row[clients] = True, UNSEEN
        self._part(clients)
        self._tell()

    def join(self, clients: Ints) -> None:
        """Let clients take part that left, or were not there from the start."""
        self.left[clients] = False
        self._look_again()

    def _part(self, clients: Ints) -> None:
        """Forget that centroids hold parts of clients [n]: these are no longer what the clients have."""
        if self.centroids.own is not None:
            own = self.centroids.own.copy()
            own[clients] = 0.0
            self.centroids = replace(self.centroids, own=own)

    def _look_again(self) -> None:
        if self.robust:
            self.robust.failed = 0  # moves that did not pay may do so now
            if self.robust.few and not self.robust.crowded and self.over == "seen":
                self.robust.crowded = True
                self._begin_again()

    def _begin_again(self) -> None:
        """Put few clients each alone again, since there may be other groups now; models stay with them.

        Until the next M-step, each one's centroid is that of its cluster.
        """
        known = self.assignment != UNSEEN
        most = np.bincount(self.assignment[known], minlength=1).argmax()
        self.label = np.where(known, self.assignment, most)
        self.row = np.where(known, np.arange(len(known)), UNSEEN)
        mass = np.where(known[:, None], self.centroids.mass[self.label], 0.0)
        self.centroids = Centroids(self.centroids.theta[self.label], mass)

    def refuse_absent(self, clients: Ints) -> None:
        """Stop where somebody takes part that has left."""
        if (gone := clients[self.left[clients]]).size:
            raise BadInput(f"client {gone[0]} has left and takes part; let it join first")

    def living_state(self) -> Arrays:
        """Give who left, and the metadata of who drifted."""
        who = np.flatnonzero(self.drifted)
        phi, weight = self.cohort.phi[who], self.cohort.weight[who]
        drifts = {"drift/clients": who, "drift/phi": phi, "drift/weight": weight, "drift/untold": self.untold}
        return {"left": self.left, **drifts}

    def restore_living(self, arrays: Arrays) -> None:
        """Take back what `living_state` gave; checkpoints of earlier versions have nothing of it."""
        if "left" not in arrays:
            return
        self.left, who = arrays["left"].astype(bool), arrays["drift/clients"].astype(np.int64)
        self.drifted[who] = True
        self.untold = arrays.get("drift/untold", self.untold).astype(bool)
        phi, weight = (arrays[f"drift/{name}"].astype(np.float64) for name in ("phi", "weight"))
        self.cohort.take(who, phi, weight)
