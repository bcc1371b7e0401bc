"""The trainer interface, the training plan, the batches that all trainers share, and an empty trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flameche.rng import stream
from flameche.training.models import Buffers, Models

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
Part = Literal["train", "held", "test"]  # a client's training samples, its holdout, its test set


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent instead of Adam: m <- momentum m + g, w <- w - lr m."""

    lr: float
    momentum: float = 0.0


@dataclass(frozen=True)
class TrainingPlan:
    """How a client trains on cross-entropy: with Adam or `sgd`; the optimiser starts anew each round."""

    epochs: int = 5
    batch: int = 128
    lr: float = 1e-3
    augment: bool = False
    bn_buffers: Buffers = "mean"
    drop_last: bool = False
    sgd: Sgd | None = None
    turn: float = 0.0  # largest rotation of augmented images, in degrees


@dataclass(frozen=True)
class Pull:
    """A proximal term added to the loss: strength/2 |w - target|^2, where target is a single model."""

    target: Models
    strength: float


class Trainer(Protocol):
    """Trains and evaluates models on the clients' data, which stay inside it."""

    sizes: Ints
    plan: TrainingPlan

    def initial(self, number: int = 0) -> Models:
        """Return an initial model as one row; number 0 is the shared one, other numbers give other draws."""
        ...

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Train clients [n] on their own samples and return their models [n].

        Args:
            models: the models to start from.
            pick: for each client, the row of `models` it starts from [n].
            clients: the clients' indices [n].
            round: the round, which seeds the order of samples and the augmentation.
            pull: a proximal term.
            sgd: replaces the optimiser of the plan.
        """
        ...

    def judge(self, models: Models, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Evaluate row pick[n] of models on clients [n]: mean loss [n], accuracy [n]; NaN without samples."""
        ...

    def layer(self, name: str) -> slice:
        """Return the slice of a flat model that holds a layer's parameters."""
        ...

    def accuracy(self, models: Models, pick: Ints) -> Floats:
        """Return the accuracy of row pick[i] of models on client i's test set, for all C clients."""
        ...

    def state(self) -> Arrays:
        """Return what a checkpoint needs besides the models."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Restore what `state` returned."""
        ...

    def close(self) -> None:
        """Release resources other than memory, such as processes."""
        ...


def batches(size: int, plan: TrainingPlan, seed: int, round: int, client: int) -> Iterator[Ints]:
    """Yield the sample indices of each step of a client's round, epoch after epoch.

    The order depends on (seed, round, client) only, so all trainers and resumed runs agree.
    """
    edges = batch_edges(size, plan)
    for order in epoch_orders(size, plan, seed, round, client):
        yield from (order[a:b] for a, b in pairwise(edges))


def epoch_orders(size: int, plan: TrainingPlan, seed: int, round: int, client: int) -> Iterator[Ints]:
    """Yield the shuffled order of a client's samples for each epoch."""
    rng = stream(seed, "train", round, client)
    for _ in range(plan.epochs):
        yield rng.permutation(size)


def batch_edges(size: int, plan: TrainingPlan) -> list[int]:
    """Return where the batches of an epoch begin and end: 0, ..., the end of the last batch.

    A last batch of one sample is merged into the one before, because BatchNorm has no variance of a single
    value. With `drop_last`, an incomplete last batch is dropped unless it is the only one.
    """
    found = [*range(0, max(size, 1), plan.batch), size]
    last = found[-1] - found[-2]
    if len(found) == 2:
        return found
    if plan.drop_last:
        return found if last == plan.batch else found[:-1]
    return [*found[:-2], size] if last == 1 else found


class NoTrainer:
    """A trainer for clustering without training: its models have no parameters."""

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        self.plan = TrainingPlan(epochs=0)

    def initial(self, number: int = 0) -> Models:
        """Return one model without parameters."""
        return Models(torch.empty(1, 0), torch.empty(1, 0))

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Return one empty model per client."""
        return models.pick(pick)

    def judge(self, models: Models, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Return NaN: there is nothing to evaluate."""
        return np.full(len(pick), np.nan), np.full(len(pick), np.nan)

    def layer(self, name: str) -> slice:
        """Return an empty slice."""
        return slice(0, 0)

    def accuracy(self, models: Models, pick: Ints) -> Floats:
        """Return NaN: there is nothing to evaluate."""
        return np.full(len(pick), np.nan)

    def state(self) -> Arrays:
        """Return nothing."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
