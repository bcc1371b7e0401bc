"""The leakage guard: which sums may be opened.

A sum over one client *is* that client's metadata, and two sums that differ by one client give it away too.
So a cluster's sum is released only if it holds at least `least` clients, and only if, since the last sum of
that cluster that was released, either nobody or at least `least` clients came or went. Otherwise it is
deferred: the centroid stays as it is until enough have moved.
"""

from __future__ import annotations

import numpy as np

from flameche.em.spherical import Ints


class LeakageGuard:
    """Remembers who was in each cluster's last released sum."""

    def __init__(self, clients: int, clusters: int, least: int) -> None:
        self.least = least
        self.released = np.zeros((clusters, clients), bool)
        self.deferred = 0  # sums held back so far

    def permits(self, members: Ints, assignment: Ints) -> list[bool]:
        """Tell for each cluster whether the sum over these members [n] may be opened; remember those."""
        verdicts = []
        for k in range(len(self.released)):
            now = np.zeros_like(self.released[k])
            now[members[assignment == k]] = True
            changed = int((now ^ self.released[k]).sum())
            good = int(now.sum()) >= self.least and (changed == 0 or changed >= self.least)
            if good:
                self.released[k] = now
            elif now.any():
                self.deferred += 1
            verdicts.append(good)
        return verdicts
