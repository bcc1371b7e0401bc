"""A round's work as tables: which samples each client takes at each step, padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flameche.training.augment import drawn
from flameche.training.trainer import Ints, TrainingPlan, ends, orders


@dataclass(frozen=True)
class Work:
    """index [S M b] into all samples; at step s, client m's first count[s, m] are real; none: it rests.

    A batch is filled up with its own first sample, so that what is computed of it in vain stays in range.
    how [S M b 4]: flips, shifts and turns, where images are augmented.
    """

    index: Ints
    count: Ints
    how: NDArray[np.int8] | None = None


def longest(sizes: Sequence[int], plan: TrainingPlan) -> tuple[int, int]:
    """Give the most steps and the most samples of a step that clients of these sizes take in a round."""
    steps = batch = 1
    for size in set(map(int, sizes)):
        edges = ends(size, plan)
        steps = max(steps, plan.epochs * (len(edges) - 1))
        batch = max(batch, *np.diff(edges).tolist())
    return steps, batch


def lay_out(
    clients: Sequence[int], sizes: Sequence[int], firsts: Sequence[int], plan: TrainingPlan, batch: int,
    seed: int, round: int,
) -> Work:  # fmt: skip
    """Lay out the `batches` of clients, of such sizes, whose samples begin at `firsts`."""
    most = max(len(_pattern(size, plan, batch)[1]) for size in sizes)
    index = np.zeros((most, len(clients), batch), np.int64)
    count = np.zeros((most, len(clients)), np.int64)
    for m, (client, size, first) in enumerate(zip(clients, sizes, firsts, strict=True)):
        pattern, real = _pattern(size, plan, batch)
        shuffled = np.concatenate(list(orders(size, plan, seed, round, client)))
        index[: len(real), m] = first + shuffled[pattern]
        index[len(real) :, m] = first
        count[: len(real), m] = real
    how = drawn(clients, count, batch, seed, round, plan.turn) if plan.augment else None
    return Work(index, count, how)


@lru_cache(maxsize=4096)
def _pattern(size: int, plan: TrainingPlan, batch: int) -> tuple[Ints, Ints]:
    """Tell which of its drawn samples a client of this size takes where [S b], and how many are real [S]."""
    epoch = [np.arange(a, b) for a, b in pairwise(ends(size, plan))]
    rows = np.stack([np.concatenate([part, np.full(batch - len(part), part[0])]) for part in epoch])
    real = np.array([len(part) for part in epoch])
    shift = size * np.arange(plan.epochs)[:, None, None]
    return (rows + shift).reshape(-1, batch), np.tile(real, plan.epochs)


def widths(count: Ints, ladder: Sequence[int]) -> Ints:
    """Choose how many clients each step runs over, of a ladder of widths; those with most steps are first."""
    active = (count > 0).sum(axis=1)
    steps = np.sort(np.array(ladder))
    chosen: Ints = steps[np.searchsorted(steps, active)]
    return chosen
