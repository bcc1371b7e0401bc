"""The stacked trainer: batches padded to one shape, and on CUDA one captured graph for all steps.

Its results are the plain loop's: padding samples have no weight in losses or BatchNorm, and a client that has
no step left keeps its model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flameche.training.device import finish
from flameche.training.kernels.autodiff import Pass
from flameche.training.kernels.client_stack import BatchTable, ClientStack, batch_table, max_steps_and_batch
from flameche.training.kernels.conv_geometry import round_up
from flameche.training.kernels.cuda_graphs import GraphCache, Precision, matmul_precision
from flameche.training.kernels.layers import MatMul
from flameche.training.kernels.torch_ops import TorchOps
from flameche.training.kernels.translate import StackedNetwork, stack_network
from flameche.training.kernels.weight_layout import ImplicitConvs, UnsupportedModel
from flameche.training.loop import DeviceSamples
from flameche.training.models import Models
from flameche.training.trainer import Floats, Ints, Pull, Sgd, batch_edges
from flameche.training.vectorised import SCORE_WEIGHTS, VectorisedTrainer

GPU_SHARE = 0.6  # of the free memory
CPU_BYTES = 2 * 2**30
GIB = 2**30


def memory_budget(device: str, wanted_gib: float | None = None) -> int:
    """Return the bytes that training may use: as given, or a share of what is free on the device."""
    if wanted_gib is not None:
        return int(wanted_gib * GIB)
    if device == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info()[0])
    return CPU_BYTES


def client_bytes(
    network: StackedNetwork, flat: int, batch: int, wide: int, narrow: int, plain: bool = True
) -> int:
    """Estimate the bytes of one client in training: weights, moments, gradients, activations of a batch.

    Args:
        network: the translated network.
        flat: parameters of a model, which is held before and after.
        batch: samples of a step.
        wide: bytes of a weight.
        narrow: bytes of an activation.
        plain: whether all convolutions use im2col.
    """
    layout = network.weights
    models = 2 * flat + layout.total + 2 * layout.trained + network.stats.total
    low = layout.trained + (layout.total if narrow != wide else 0)
    spread = sum(_expanded_numbers(step.layer) for step in network.steps)
    return wide * models + narrow * (low + spread + batch * network.numbers_per_image(plain))


def _expanded_numbers(layer: object) -> int:
    """Count the entries of weight matrices that are rebuilt at every step, and of their gradients."""
    if not isinstance(layer, MatMul) or layer.lowering != "expanded":
        return 0
    return 2 * layer.window.map_shape.numel * layer.map_shape.numel


def stack_width(budget: int, each: int, clients: int) -> int:
    """Return how many clients train at once, in as few equal parts as the budget allows."""
    most = max(1, budget // each)
    parts = -(-clients // most)
    return -(-clients // parts)


def default_ops(device: str, dtype: torch.dtype) -> TorchOps:
    """Return Triton's operations on CUDA, in the precisions they support; else plain torch."""
    if device == "cuda" and dtype != torch.float64:
        try:
            from flameche.training.kernels.triton_ops import TritonOps
        except ImportError:
            return TorchOps()
        return TritonOps()
    return TorchOps()


MAX_STACKS = 3  # each holds models, moments and the memory of its graphs
SCORE_IMAGES = 2**16  # images x models in one forward pass
SCORE_MODELS = 64
ALIGN = 8  # matrix units want row lengths to be multiples of this


class StackedTrainer(VectorisedTrainer):
    """Trains and evaluates stacked models, for modules that `stack_network` can translate.

    Args:
        precision: rounding of activations and products on CUDA; "bf16" on any device.
        budget_gib: memory for stacks, besides the data and the returned models; clients beyond it train in a
            second stack, and so on.
        capture: replay steps as CUDA graphs.
        align: channels are padded to a multiple of this.
        ops: the operations, by default those of `default_ops`.
        implicit_convs: which convolutions run without im2col.
    """

    def __init__(
        self,
        *args: Any,
        precision: Precision = "tf32",
        budget_gib: float | None = None,
        capture: bool = True,
        align: int | None = None,
        ops: TorchOps | None = None,
        implicit_convs: ImplicitConvs = "small",
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        cuda = self.device == "cuda"
        self._precision: Precision = precision
        self._sliding: ImplicitConvs = implicit_convs
        self._capture, self._align = capture, align or (ALIGN if cuda else 1)
        self._compute_dtype = torch.bfloat16 if precision == "bf16" else self.dtype
        self._ops = ops or default_ops(self.device, self.dtype)
        self._channels_last_samples = {id(part): _to_channels_last(part.x) for part in self._samples.values()}
        self._networks: dict[bool, StackedNetwork] = {}
        self._stacks: dict[tuple[int, bool], ClientStack] = {}
        self._max_steps, self._batch = max_steps_and_batch(self.sizes.tolist(), self.plan)
        self._batch = round_up(self._batch, self._align)
        self._uses_torch_ops, flat = type(self._ops) is TorchOps, len(self._initial[0])
        sizes = self.dtype.itemsize, self._compute_dtype.itemsize
        each = client_bytes(self._network(True), flat, self._batch, *sizes, self._uses_torch_ops)
        self._budget, self._bytes_per_client, self._max_width = (
            memory_budget(self.device, budget_gib),
            each,
            options.get("width"),
        )

    def _network(self, drop_unused: bool) -> StackedNetwork:
        if drop_unused not in self._networks:
            channels, height, width = self._samples["train"].x.shape[1:]
            shape = (channels, height, width)
            found = stack_network(self.model, shape, self._align, drop_unused, self.device, self._sliding)
            if found is None:
                raise UnsupportedModel("this model cannot be written as stacked layers")
            self._networks[drop_unused] = found
        return self._networks[drop_unused]

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Train clients [n], each from row pick[n] of models."""
        if not len(clients):
            return super().train(models, pick, clients, round, pull, sgd)
        order = np.argsort(
            [-len(batch_edges(n, self.plan)) for n in self.sizes[clients].tolist()], kind="stable"
        )
        width = self._max_width or stack_width(self._budget, self._bytes_per_client, len(clients))
        # One tensor, trained in place: besides the stack, only this grows with the number of clients.
        trained = self._start(models.pick(pick[order]), clients[order])
        with matmul_precision(self._precision):
            for a in range(0, len(clients), width):
                part, who = slice(a, a + width), clients[order[a : a + width]]
                stack = self._stack(width, drop_unused=pull is None)
                mine = Models(trained.params[part], trained.buffers[part])
                stack.train(mine, self._batch_table(who, round), self.plan.lr, pull, sgd or self.plan.sgd)
        if (np.diff(order) < 0).any():
            trained = trained.pick(np.argsort(order))
        if self._local_buffers is not None:
            self._local_buffers[self._to_device(clients)] = trained.buffers
        finish(self.device)
        return trained

    def _batch_table(self, clients: Ints, round: int) -> BatchTable:
        sizes, firsts = self.sizes[clients].tolist(), self._samples["train"].offsets[clients].tolist()
        return batch_table(clients.tolist(), sizes, firsts, self.plan, self._batch, self.seed, round)

    def _start(self, models: Models, clients: Ints) -> Models:
        if self._local_buffers is None:
            return models
        return Models(models.params, self._local_buffers[self._to_device(clients)])

    def _stack(self, width: int, drop_unused: bool) -> ClientStack:
        """Return a stack for this many clients; the oldest stacks are dropped to make room."""
        if (width, drop_unused) not in self._stacks:
            while self._stacks and (
                len(self._stacks) >= MAX_STACKS or self._bytes_used(width) > self._budget
            ):
                self._stacks.pop(next(iter(self._stacks)))
            if self.device == "cuda":
                torch.cuda.empty_cache()
            own = self._samples["train"]
            self._stacks[width, drop_unused] = ClientStack(
                self._network(drop_unused),
                (self._max_steps, width, self._batch),
                (self._channels_last_samples[id(own)], own.y),
                self.dtype,
                self._compute_dtype,
                self._ops,
                GraphCache(self.device, self._capture),
                self.plan.augment,
                self.plan.turn,
            )
        return self._stacks[width, drop_unused]

    def _bytes_used(self, more: int) -> int:
        """Estimate the bytes of all stacks together with one more of this many clients."""
        return self._bytes_per_client * (more + sum(width for width, _ in self._stacks))

    @torch.no_grad()
    def _score_stack(
        self, models: Models, k: Ints, who: Ints, samples: list[Ints], data: DeviceSamples
    ) -> list[Floats]:
        """Return loss and correctness of each sample, [n 2] per model; shorter lists are padded."""
        picked, network = models.pick(k), self._network(True)
        buffers = picked.buffers if self._local_buffers is None else self._local_buffers[self._to_device(who)]
        weights = picked.params.new_zeros(len(k), network.weights.total)
        network.weights.pack(picked.params, weights)
        stats = picked.buffers.new_zeros(len(k), network.stats.total)
        network.stats.pack(buffers, stats)
        low = weights.to(self._compute_dtype)
        filled = np.zeros((len(k), max(map(len, samples))), np.int64)
        for row, mine in zip(filled, samples, strict=True):
            row[: len(mine)], row[len(mine) :] = mine, mine[-1]
        found = []
        with matmul_precision(self._precision):
            for part in torch.split(self._to_device(filled), self._images_per_pass(len(k)), dim=1):
                where = part.contiguous()
                ctx = Pass(self._ops, low, weights, stats)
                logits = network.logits(ctx, self._channels_last_samples[id(data)], where).to(self.dtype)
                y = data.y[where]
                loss = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
                found.append(torch.stack([loss, (logits.argmax(2) == y).to(loss.dtype)], dim=2))
        values: Floats = torch.cat(found, dim=1).cpu().numpy().astype(np.float64)
        return [each[: len(mine)] for each, mine in zip(values, samples, strict=True)]

    def _images_per_pass(self, models: int) -> int:
        """Return on how many images each model is evaluated at once, given the memory."""
        each = self._network(True).numbers_per_image(self._uses_torch_ops) * self._compute_dtype.itemsize
        return max(1, min(self._budget // 4 // (each * models), SCORE_IMAGES // models))

    def _models_per_pass(self, longest: int) -> int:
        """Return how many models are evaluated at once."""
        return max(1, min(SCORE_WEIGHTS // len(self._initial[0]), SCORE_MODELS))


def _to_channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()
