"""The trainer interface, the plan of local training, and the batches that every trainer follows."""

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
Part = Literal["train", "held", "test"]  # a client's training samples, those it holds back, its test set


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, m <- momentum m + g, w <- w - lr m, in place of Adam."""

    lr: float
    momentum: float = 0.0


@dataclass(frozen=True)
class TrainingPlan:
    """How a client trains: Adam, or what `sgd` says, rebuilt each round, on cross-entropy."""

    epochs: int = 5
    batch: int = 128
    lr: float = 1e-3
    augment: bool = False
    bn_buffers: Buffers = "mean"
    drop_last: bool = False
    sgd: Sgd | None = None
    turn: float = 0.0  # degrees, of augmented images at most


@dataclass(frozen=True)
class Pull:
    """A proximal term beside the loss: strength/2 |w - target|^2; target is one model."""

    target: Models
    strength: float


class Trainer(Protocol):
    """Trains and scores models on the clients' data; the data never leave it."""

    sizes: Ints
    plan: TrainingPlan

    def initial(self, number: int = 0) -> Models:
        """Give an initial model, as one row: number 0 is the shared one, others are drawn anew."""
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
        """Train clients [n], each from row pick[n] of models, on its own samples; return their models [n].

        pull: a proximal term; sgd: in place of what the plan says.
        """
        ...

    def judge(self, models: Models, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Try row pick[n] of models on clients [n]' samples: mean loss [n], accuracy [n]; NaN for none."""
        ...

    def layer(self, name: str) -> slice:
        """Tell where a layer's parameters lie in a flat model."""
        ...

    def accuracy(self, models: Models, pick: Ints) -> Floats:
        """Score row pick[i] of models on client i's test set, for all C clients."""
        ...

    def state(self) -> Arrays:
        """Give what must survive a restart besides the models."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        ...

    def close(self) -> None:
        """Give back what it holds beyond memory: processes."""
        ...


def batches(size: int, plan: TrainingPlan, seed: int, round: int, client: int) -> Iterator[Ints]:
    """Yield the sample indices of each step of one client's round, epoch after epoch.

    The order depends on (seed, round, client) alone, so that all trainers and a resumed run agree.
    """
    edges = batch_edges(size, plan)
    for order in epoch_orders(size, plan, seed, round, client):
        yield from (order[a:b] for a, b in pairwise(edges))


def epoch_orders(size: int, plan: TrainingPlan, seed: int, round: int, client: int) -> Iterator[Ints]:
    """Yield the order of a client's samples in each epoch."""
    rng = stream(seed, "train", round, client)
    for _ in range(plan.epochs):
        yield rng.permutation(size)


def batch_edges(size: int, plan: TrainingPlan) -> list[int]:
    """Tell where in an epoch's order its batches begin and end: 0 first, the end of the last one last.

    A last batch of one sample joins the one before it: BatchNorm has no variance of a single value. With
    `drop_last` one that is not full is left out, unless it is the only one.
    """
    found = [*range(0, max(size, 1), plan.batch), size]
    last = found[-1] - found[-2]
    if len(found) == 2:
        return found
    if plan.drop_last:
        return found if last == plan.batch else found[:-1]
    return [*found[:-2], size] if last == 1 else found


class NoTrainer:
    """Stands in where only the clustering half is wanted."""

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        self.plan = TrainingPlan(epochs=0)

    def initial(self, number: int = 0) -> Models:
        """Give one model of no parameters."""
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
        """Return as many empty models as clients."""
        return models.pick(pick)

    def judge(self, models: Models, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Know nothing about losses."""
        return np.full(len(pick), np.nan), np.full(len(pick), np.nan)

    def layer(self, name: str) -> slice:
        """Have no layers."""
        return slice(0, 0)

    def accuracy(self, models: Models, pick: Ints) -> Floats:
        """Know nothing about accuracy."""
        return np.full(len(pick), np.nan)

    def state(self) -> Arrays:
        """Have nothing to keep."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Have nothing to take back."""

    def close(self) -> None:
        """Have nothing to give back."""
