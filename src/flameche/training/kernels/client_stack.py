"""A stack of clients in training: their packed models, Adam moments and batches in place, and one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flameche.training.augment import IDENTITY, draw_round, transform_images
from flameche.training.kernels.autodiff import Pass
from flameche.training.kernels.cuda_graphs import GraphCache
from flameche.training.kernels.torch_ops import TorchOps
from flameche.training.kernels.translate import StackedNetwork
from flameche.training.models import Models
from flameche.training.trainer import Ints, Pull, Sgd, TrainingPlan, batch_edges, epoch_orders


@dataclass(frozen=True)
class BatchTable:
    """A round's batches: index [S M b] into all samples; client m's first count[s, m] are real at step s.

    A batch is padded with its own first sample; a client with count 0 does not step.
    transforms [S M b 4]: the augmentation, if any.
    """

    index: Ints
    count: Ints
    transforms: NDArray[np.int8] | None = None


def max_steps_and_batch(sizes: Sequence[int], plan: TrainingPlan) -> tuple[int, int]:
    """Return the most steps of a round and the most samples of a step, for clients of these sizes."""
    steps = batch = 1
    for size in set(map(int, sizes)):
        edges = batch_edges(size, plan)
        steps = max(steps, plan.epochs * (len(edges) - 1))
        batch = max(batch, *np.diff(edges).tolist())
    return steps, batch


def batch_table(
    clients: Sequence[int], sizes: Sequence[int], firsts: Sequence[int], plan: TrainingPlan, batch: int,
    seed: int, round: int,
) -> BatchTable:  # fmt: skip
    """Build the table of the `batches` of clients with these sizes, whose samples begin at `firsts`."""
    most = max(len(_pattern(size, plan, batch)[1]) for size in sizes)
    index = np.zeros((most, len(clients), batch), np.int64)
    count = np.zeros((most, len(clients)), np.int64)
    for m, (client, size, first) in enumerate(zip(clients, sizes, firsts, strict=True)):
        pattern, real = _pattern(size, plan, batch)
        shuffled = np.concatenate(list(epoch_orders(size, plan, seed, round, client)))
        index[: len(real), m] = first + shuffled[pattern]
        index[len(real) :, m] = first
        count[: len(real), m] = real
    transforms = draw_round(clients, count, batch, seed, round, plan.turn) if plan.augment else None
    return BatchTable(index, count, transforms)


@lru_cache(maxsize=4096)
def _pattern(size: int, plan: TrainingPlan, batch: int) -> tuple[Ints, Ints]:
    """Return which of its shuffled samples a client of this size uses [S b], and how many are real [S]."""
    epoch = [np.arange(a, b) for a, b in pairwise(batch_edges(size, plan))]
    rows = np.stack([np.concatenate([part, np.full(batch - len(part), part[0])]) for part in epoch])
    real = np.array([len(part) for part in epoch])
    shift = size * np.arange(plan.epochs)[:, None, None]
    return (rows + shift).reshape(-1, batch), np.tile(real, plan.epochs)


def step_widths(count: Ints, allowed_widths: Sequence[int]) -> Ints:
    """Choose how many clients each step runs over, of the allowed widths; clients with most steps first."""
    active = (count > 0).sum(axis=1)
    steps = np.sort(np.array(allowed_widths))
    chosen: Ints = steps[np.searchsorted(steps, active)]
    return chosen


class ClientStack:
    """Memory for M clients that step together; every step has the same shapes, so one graph replays them all.

    `low` is the precision of activations and products; weights, moments and statistics keep their own.
    """

    def __init__(
        self,
        network: StackedNetwork,
        size: tuple[int, int, int],
        data: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        low: torch.dtype,
        ops: TorchOps,
        graphs: GraphCache,
        augment: bool = False,
        turn: float = 0.0,
    ) -> None:
        steps, clients, batch = size
        device = data[0].device
        self.network, self.data, self.ops, self.graphs = network, data, ops, graphs
        layout = network.weights
        self.params = torch.zeros(clients, layout.total, dtype=dtype, device=device)
        self.low = self.params if low == dtype else torch.zeros_like(self.params, dtype=low)
        self.stats = torch.zeros(clients, network.stats.total, dtype=dtype, device=device)
        trained = (clients, layout.trained)
        self.m, self.v = (torch.zeros(trained, dtype=dtype, device=device) for _ in range(2))
        self.grads = torch.zeros(trained, dtype=low, device=device)
        self.index = torch.zeros(steps, clients, batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(steps, clients, dtype=torch.int64, device=device)
        room = (*self.index.shape, len(IDENTITY))
        self.transforms = torch.zeros(room, dtype=torch.int8, device=device) if augment else None
        self.turn = turn
        self.step_number = torch.zeros(1, dtype=torch.int64, device=device)
        self.target = torch.zeros_like(self.params[:1])
        self.allowed_widths = _halving_widths(clients)

    def train(self, models: Models, table: BatchTable, lr: float, pull: Pull | None, sgd: Sgd | None) -> None:
        """Train up to M clients' models in place; those with most steps come first."""
        self._load(models, table, pull)
        strength = pull.strength if pull else 0.0
        for width in step_widths(table.count, self.allowed_widths).tolist():
            self.graphs.run(
                (width, lr, strength, sgd),
                lambda w=width: self._step(w, lr, strength, sgd),  # type: ignore[misc]
            )
        self.network.weights.unpack(self.params[: len(models)], models.params)
        self.network.stats.unpack(self.stats[: len(models)], models.buffers)

    def _load(self, start: Models, table: BatchTable, pull: Pull | None) -> None:
        layout = self.network.weights
        layout.pack(start.params, self.params[: len(start)])
        self.network.stats.pack(start.buffers, self.stats[: len(start)])
        if self.low is not self.params:
            self.low.copy_(self.params)
        for each in (self.m, self.v, self.step_number):
            each.zero_()
        steps, clients = table.count.shape
        self.count.zero_()
        self.index[:steps, :clients].copy_(torch.from_numpy(table.index))
        self.count[:steps, :clients].copy_(torch.from_numpy(table.count))
        if self.transforms is not None and table.transforms is not None:
            self.transforms[:steps, :clients].copy_(torch.from_numpy(table.transforms))
        if pull:
            layout.pack(pull.target.params, self.target)

    @torch.no_grad()
    def _step(self, width: int, lr: float, strength: float, sgd: Sgd | None) -> None:
        """Take one step with the first `width` clients: gather, forward, backward, update; then advance."""
        index = self.index.index_select(0, self.step_number)[0, :width]
        count = self.count.index_select(0, self.step_number)[0, :width]
        grads = self.grads[:width]
        ctx = Pass(self.ops, self.low[:width], self.params[:width], self.stats[:width], count, grads)
        images, labels = self.data
        if self.transforms is not None:
            transforms = self.transforms.index_select(0, self.step_number)[0, :width]
            images = transform_images(images, index, transforms, self.turn).flatten(0, 1)
            labels = labels[index].flatten()
            index = torch.arange(index.numel(), device=index.device).view_as(index)
        self.network.gradient(ctx, images, labels, index)
        trained = self.network.weights.trained
        params = self.params[:width, :trained]
        low = None if self.low is self.params else self.low[:width, :trained]
        if strength:
            grads = grads + strength * (params - self.target[:, :trained])
        if sgd is None:
            self.ops.adam(params, self.m[:width], self.v[:width], self.step_number, grads, count, lr, low)
        else:
            step = self.m[:width].mul_(sgd.momentum).add_(grads)
            params.sub_(step * (sgd.lr * (count > 0)[:, None].to(params.dtype)))
            if low is not None:
                low.copy_(params)
        self.step_number += 1


def _halving_widths(clients: int) -> list[int]:
    """Halve the width repeatedly: at most half of a step is padding, with few graphs."""
    found = [clients]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found
