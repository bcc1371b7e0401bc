"""Who belongs where at the end of a run, and the colours that follow from it."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from flameche.report.canvas import CLUSTER_COLOURS, UNSEEN
from flameche.report.runs import Run

UNKNOWN = "unknown"


def match_clusters(groups: Sequence[int], clusters: Sequence[int]) -> dict[int, int]:
    """Index each cluster by the group it overlaps most (Hungarian), the others by the next free indices."""
    group_ids = sorted(set(groups))
    cluster_ids = sorted({cluster for cluster in clusters if cluster >= 0})
    overlap = np.zeros((len(group_ids), len(cluster_ids)), dtype=np.int64)
    for group, cluster in zip(groups, clusters, strict=True):
        if cluster >= 0:
            overlap[group_ids.index(group), cluster_ids.index(cluster)] += 1
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    matched = {cluster_ids[column]: int(row) for row, column in zip(rows, columns, strict=True)}
    for index, cluster in enumerate((c for c in cluster_ids if c not in matched), len(group_ids)):
        matched[cluster] = index
    return matched


class Clusters:
    """Groups, final assignment and colours of one run's clients, in the order of their ids."""

    def __init__(self, run: Run) -> None:
        frame = pd.DataFrame() if run.clients is None else run.clients.sort_values("client", kind="stable")
        self.frame = frame
        raw = frame["group"].tolist() if len(frame) else []
        names = sorted({_name(value) for value in raw}, key=lambda name: (len(name), name))
        self.group_names = names
        self.groups = [names.index(_name(value)) for value in raw]
        self.assignment = [_whole(value) for value in frame["assignment"]] if len(frame) else []
        self.index = match_clusters(self.groups, self.assignment) if len(frame) else {}
        ever = {
            cluster for r in run.rounds for cluster in (*range(len(r.sizes)), *r.assignment) if cluster >= 0
        }
        for cluster in sorted(ever - set(self.index)):
            self.index[cluster] = max((*self.index.values(), len(names) - 1), default=-1) + 1
        self.known = any(name != UNKNOWN for name in names)  # on a network nobody knows the true groups
        self.order = sorted(self.index, key=lambda cluster: self.index[cluster])

    @property
    def several(self) -> bool:
        """False for methods that keep one model for all clients."""
        return len(self.index) > 1

    def colour(self, cluster: int) -> str:
        """A cluster wears the colour of the group it matches."""
        return UNSEEN if cluster < 0 else CLUSTER_COLOURS[self.index[cluster] % len(CLUSTER_COLOURS)]


def _name(value: object) -> str:
    """A group's name: 2 for 2.0, "unknown" for a missing one or -1."""
    if value is None or value == -1 or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float | np.number) and math.isfinite(value) else -1
