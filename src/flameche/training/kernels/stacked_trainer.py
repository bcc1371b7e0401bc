"""The fastest trainer: stacked layers, batches padded to one shape, on CUDA one captured graph for all steps.

Its numbers are the plain loop's: samples that fill a batch up have no weight in losses or BatchNorm, and a
client with no step left rests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flameche.training.device import finish
from flameche.training.kernels.autodiff import Pass
from flameche.training.kernels.client_stack import Stack, Work, lay_out, longest
from flameche.training.kernels.conv_geometry import up
from flameche.training.kernels.cuda_graphs import Precision, Replayer, arithmetic
from flameche.training.kernels.layers import Product
from flameche.training.kernels.torch_ops import Plain
from flameche.training.kernels.translate import Program, stacked_program
from flameche.training.kernels.weight_layout import Sliding, Untranslatable
from flameche.training.loop import OnDevice
from flameche.training.models import Models
from flameche.training.trainer import Floats, Ints, Pull, Sgd, ends
from flameche.training.vectorised import SCORE_WEIGHTS, VectorisedTrainer

SHARE = 0.6  # of what is free on a GPU
ON_CPU = 2 * 2**30
GIB = 2**30


def memory_budget(device: str, wanted_gib: float | None = None) -> int:
    """Give the bytes that training may take: as asked, or by default a share of what the device has free."""
    if wanted_gib is not None:
        return int(wanted_gib * GIB)
    if device == "cuda":
        return int(SHARE * torch.cuda.mem_get_info()[0])
    return ON_CPU


def client_bytes(program: Program, flat: int, batch: int, wide: int, narrow: int, plain: bool = True) -> int:
    """Estimate the bytes of one client in training: weights, moments, gradients, values of a batch.

    flat: numbers of a model as it travels, before and after; wide and narrow: bytes of a number of weights
    and of values; plain: patches of all convolutions are laid out.
    """
    layout = program.weights
    models = 2 * flat + layout.total + 2 * layout.trained + program.stats.total
    low = layout.trained + (layout.total if narrow != wide else 0)
    spread = sum(_spread(step.layer) for step in program.steps)
    return wide * models + narrow * (low + spread + batch * program.floats(plain))


def _spread(layer: object) -> int:
    """Count the numbers of matrices that are built anew at every step, and of their gradients."""
    if not isinstance(layer, Product) or layer.lower != "spread":
        return 0
    return 2 * layer.window.form.floats * layer.form.floats


def fit(budget: int, each: int, clients: int) -> int:
    """Choose how many of the clients train at once: as few equal parts as the budget allows."""
    most = max(1, budget // each)
    parts = -(-clients // most)
    return -(-clients // parts)


def primitives(device: str, dtype: torch.dtype) -> Plain:
    """Take Triton's on CUDA, in the precisions they are written for; else plain torch."""
    if device == "cuda" and dtype != torch.float64:
        try:
            from flameche.training.kernels.triton_ops import Fast
        except ImportError:
            return Plain()
        return Fast()
    return Plain()


STACKS = 3  # kept at once: each holds models, moments and its graphs' memory
SCORE_IMAGES = 2**16  # images x models of one forward pass
SCORE_MODELS = 64
ALIGN = 8  # numbers: what matrix units want their rows to be multiples of


class FusedTrainer(VectorisedTrainer):
    """Trains and scores stacked models, for modules that `stacked_program` can translate.

    precision: how values and products are rounded on CUDA; "bf16" anywhere. budget_gib: what stacks may take,
    besides the data and the models that come back; clients beyond it train one stack after another.
    """

    def __init__(
        self,
        *args: Any,
        precision: Precision = "tf32",
        budget_gib: float | None = None,
        capture: bool = True,
        align: int | None = None,
        do: Plain | None = None,
        sliding: Sliding = "small",
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        cuda = self.device == "cuda"
        self._precision: Precision = precision
        self._sliding: Sliding = sliding
        self._capture, self._align = capture, align or (ALIGN if cuda else 1)
        self._low = torch.bfloat16 if precision == "bf16" else self.dtype
        self._do = do or primitives(self.device, self.dtype)
        self._bytes = {id(part): _channels_last(part.x) for part in self._parts.values()}
        self._programs: dict[bool, Program] = {}
        self._stacks: dict[tuple[int, bool], Stack] = {}
        self._most, self._batch = longest(self.sizes.tolist(), self.plan)
        self._batch = up(self._batch, self._align)
        self._plain, flat = type(self._do) is Plain, len(self._initial[0])
        sizes = self.dtype.itemsize, self._low.itemsize
        each = client_bytes(self._program(True), flat, self._batch, *sizes, self._plain)
        self._budget, self._each, self._limit = (
            memory_budget(self.device, budget_gib),
            each,
            options.get("width"),
        )

    def _program(self, trim: bool) -> Program:
        if trim not in self._programs:
            channels, height, width = self._parts["train"].x.shape[1:]
            shape = (channels, height, width)
            found = stacked_program(self.model, shape, self._align, trim, self.device, self._sliding)
            if found is None:
                raise Untranslatable("this model cannot be written as stacked layers")
            self._programs[trim] = found
        return self._programs[trim]

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
        order = np.argsort([-len(ends(n, self.plan)) for n in self.sizes[clients].tolist()], kind="stable")
        width = self._limit or fit(self._budget, self._each, len(clients))
        # One tensor for all, trained in place: beside the stack nothing else grows with the clients.
        trained = self._start(models.pick(pick[order]), clients[order])
        with arithmetic(self._precision):
            for a in range(0, len(clients), width):
                part, who = slice(a, a + width), clients[order[a : a + width]]
                stack = self._stack(width, trim=pull is None)
                mine = Models(trained.params[part], trained.buffers[part])
                stack.train(mine, self._work(who, round), self.plan.lr, pull, sgd or self.plan.sgd)
        if (np.diff(order) < 0).any():
            trained = trained.pick(np.argsort(order))
        if self._local is not None:
            self._local[self._to_device(clients)] = trained.buffers
        finish(self.device)
        return trained

    def _work(self, clients: Ints, round: int) -> Work:
        sizes, firsts = self.sizes[clients].tolist(), self._parts["train"].offsets[clients].tolist()
        return lay_out(clients.tolist(), sizes, firsts, self.plan, self._batch, self.seed, round)

    def _start(self, models: Models, clients: Ints) -> Models:
        if self._local is None:
            return models
        return Models(models.params, self._local[self._to_device(clients)])

    def _stack(self, width: int, trim: bool) -> Stack:
        """Find room for so many clients, or make it in place of what was made first."""
        if (width, trim) not in self._stacks:
            while self._stacks and (len(self._stacks) >= STACKS or self._taken(width) > self._budget):
                self._stacks.pop(next(iter(self._stacks)))
            if self.device == "cuda":
                torch.cuda.empty_cache()
            own = self._parts["train"]
            self._stacks[width, trim] = Stack(
                self._program(trim),
                (self._most, width, self._batch),
                (self._bytes[id(own)], own.y),
                self.dtype,
                self._low,
                self._do,
                Replayer(self.device, self._capture),
                self.plan.augment,
                self.plan.turn,
            )
        return self._stacks[width, trim]

    def _taken(self, more: int) -> int:
        """Estimate what all stacks take together with one of so many clients more."""
        return self._each * (more + sum(width for width, _ in self._stacks))

    @torch.no_grad()
    def _try(self, models: Models, k: Ints, who: Ints, samples: list[Ints], data: OnDevice) -> list[Floats]:
        """Give loss and hit of each sample, [n 2] per model; shorter lists are filled up."""
        picked, program = models.pick(k), self._program(True)
        buffers = picked.buffers if self._local is None else self._local[self._to_device(who)]
        weights = picked.params.new_zeros(len(k), program.weights.total)
        program.weights.pack(picked.params, weights)
        stats = picked.buffers.new_zeros(len(k), program.stats.total)
        program.stats.pack(buffers, stats)
        low = weights.to(self._low)
        filled = np.zeros((len(k), max(map(len, samples))), np.int64)
        for row, mine in zip(filled, samples, strict=True):
            row[: len(mine)], row[len(mine) :] = mine, mine[-1]
        found = []
        with arithmetic(self._precision):
            for part in torch.split(self._to_device(filled), self._images(len(k)), dim=1):
                where = part.contiguous()
                run = Pass(self._do, low, weights, stats)
                logits = program.logits(run, self._bytes[id(data)], where).to(self.dtype)
                y = data.y[where]
                loss = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
                found.append(torch.stack([loss, (logits.argmax(2) == y).to(loss.dtype)], dim=2))
        values: Floats = torch.cat(found, dim=1).cpu().numpy().astype(np.float64)
        return [each[: len(mine)] for each, mine in zip(values, samples, strict=True)]

    def _images(self, models: int) -> int:
        """Choose how many images each model is tried on at once, by what memory allows."""
        each = self._program(True).floats(self._plain) * self._low.itemsize
        return max(1, min(self._budget // 4 // (each * models), SCORE_IMAGES // models))

    def _many(self, longest: int) -> int:
        """Choose how many models are tried at once: images wait for each other, weights need room."""
        return max(1, min(SCORE_WEIGHTS // len(self._initial[0]), SCORE_MODELS))


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()
