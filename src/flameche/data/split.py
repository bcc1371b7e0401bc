"""Who gets which sample: deal each class to the clients, then skew, hold out and shuffle client by client.

Works on sample indices only. Every draw has its own named stream, so more clients, another holdout or a
label skew never change what was drawn for something else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flameche.data.heterogeneity import UNSKEWED, kept
from flameche.errors import DataError
from flameche.rng import stream

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Deal:
    """Samples of one class in dealing order; client i has samples[bounds[i]:bounds[i+1]]."""

    samples: Indices
    bounds: Indices

    def of(self, client: int) -> Indices:
        """Return the indices dealt to one client."""
        return self.samples[self.bounds[client] : self.bounds[client + 1]]


def block_sizes(total: int, blocks: int) -> list[int]:
    """Split `total` into `blocks` sizes that differ by at most one, the larger ones first."""
    return [total // blocks + (i < total % blocks) for i in range(blocks)]


def in_class_order(
    y: NDArray[np.int64], classes: int, seed: int, purpose: str, *, shuffle: bool
) -> list[Indices]:
    """Return the sample indices of each class, shuffled by the class's own stream or in file order."""
    members = [np.flatnonzero(y == label) for label in range(classes)]
    if not shuffle:
        return members
    return [stream(seed, "data", "split", purpose, c).permutation(m) for c, m in enumerate(members)]


def deal_quota(
    members: list[Indices], clients: int, per_label: int, *, name: str, allow_fewer: bool
) -> list[Deal]:
    """Deal `per_label` samples of every class to every client; short classes are refused, or shared."""
    need = clients * per_label
    label = min(range(len(members)), key=lambda c: len(members[c]))
    if len(members[label]) == 0 and not allow_fewer:
        raise DataError(
            f"{name}: labels go up to {len(members) - 1}, but no training sample has label {label}; "
            "number the classes 0, 1, 2, … without gaps, or set data.allow_fewer = true"
        )
    if len(members[label]) < need and not allow_fewer:
        raise DataError(
            f"{name}: class {label} has {len(members[label])} training samples, "
            f"{clients} clients x {per_label} need {need}; "
            "lower data.per_label or data.clients, or set data.allow_fewer = true"
        )
    short = [m if len(m) < need else m[:need] for m in members]
    return deal_evenly(short, clients)


def deal_evenly(members: list[Indices], clients: int) -> list[Deal]:
    """Deal all samples of every class as evenly as possible.

    What is left over after equal shares goes on from where the previous class's left-overs ended, so that
    the clients' totals differ by at most one as well.
    """
    deals = []
    turn = 0
    for samples in members:
        share, left = divmod(len(samples), clients)
        sizes = np.full(clients, share)
        sizes[(turn + np.arange(left)) % clients] += 1
        turn = (turn + left) % clients
        deals.append(Deal(samples, np.concatenate([[0], np.cumsum(sizes)])))
    return deals


def lost_by_client(seed: int, classes: int, missing: int, client: int) -> set[int]:
    """Draw the labels that a client lacks."""
    return set(stream(seed, "data", "missing", client).permutation(classes)[:missing].tolist())


def lost_by_group(seed: int, classes: int, missing: int, group: int) -> set[int]:
    """Draw the labels that all of a group lack; others than other groups', as long as there are any."""
    order = stream(seed, "data", "missing-group").permutation(classes)
    return {int(order[(group * missing + turn) % classes]) for turn in range(missing)}


def client_samples(
    dealt: Indices,
    labels: NDArray[np.int64],
    classes: int,
    *,
    seed: int,
    client: int,
    variant: str = UNSKEWED,
    lost: Collection[int] = (),
    holdout: float = 0.0,
) -> tuple[Indices, Indices]:
    """Turn what a client was dealt into its (train, holdout) indices, each in shuffled order.

    `labels` are those of `dealt` as the client sees them. Skew counts come from what was dealt, before
    the holdout; of each label's n samples, int(round(holdout · n)) are held out. `lost` are labels it lacks.
    """
    skew, hold = stream(seed, "data", "skew", client), stream(seed, "data", "holdout", client)
    train, held = [], []
    for label in range(classes):
        mine = dealt[labels == label]
        if variant != UNSKEWED:
            mine = skew.permutation(mine)[: kept(variant, label, len(mine))]
        if label in lost:
            continue
        out = round(holdout * len(mine))
        mine = hold.permutation(mine) if out else mine
        held.append(mine[:out])
        train.append(mine[out:])
    order = stream(seed, "data", "order", client)
    return order.permutation(np.concatenate(train)), order.permutation(np.concatenate(held))
