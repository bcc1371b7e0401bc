"""A stack of clients in training: their packed models, moments and work, all in place, and one step of it."""

from __future__ import annotations

import torch
from torch import Tensor

from flameche.training.augment import STILL, moved
from flameche.training.cuda import Replayer
from flameche.training.models import Models
from flameche.training.passes import Pass
from flameche.training.primitives import Plain
from flameche.training.program import Program
from flameche.training.rounds import Work, widths
from flameche.training.trainer import Pull, Sgd


class Stack:
    """Room for M clients that take steps together; every step has one shape, so one graph replays them all.

    `low` is the precision of values and products; weights, moments and statistics keep their own.
    """

    def __init__(
        self,
        program: Program,
        size: tuple[int, int, int],
        data: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        low: torch.dtype,
        do: Plain,
        replayer: Replayer,
        augment: bool = False,
        turn: float = 0.0,
    ) -> None:
        steps, clients, batch = size
        device = data[0].device
        self.program, self.data, self.do, self.replayer = program, data, do, replayer
        layout = program.weights
        self.params = torch.zeros(clients, layout.total, dtype=dtype, device=device)
        self.low = self.params if low == dtype else torch.zeros_like(self.params, dtype=low)
        self.stats = torch.zeros(clients, program.stats.total, dtype=dtype, device=device)
        trained = (clients, layout.trained)
        self.m, self.v = (torch.zeros(trained, dtype=dtype, device=device) for _ in range(2))
        self.grads = torch.zeros(trained, dtype=low, device=device)
        self.index = torch.zeros(steps, clients, batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(steps, clients, dtype=torch.int64, device=device)
        room = (*self.index.shape, len(STILL))
        self.how = torch.zeros(room, dtype=torch.int8, device=device) if augment else None
        self.turn = turn
        self.now = torch.zeros(1, dtype=torch.int64, device=device)
        self.target = torch.zeros_like(self.params[:1])
        self.ladder = _ladder(clients)

    def train(self, models: Models, work: Work, lr: float, pull: Pull | None, sgd: Sgd | None) -> None:
        """Train up to M clients' models in place; those with most steps come first."""
        self._load(models, work, pull)
        strength = pull.strength if pull else 0.0
        for width in widths(work.count, self.ladder).tolist():
            self.replayer.run(
                (width, lr, strength, sgd),
                lambda w=width: self._step(w, lr, strength, sgd),  # type: ignore[misc]
            )
        self.program.weights.unpack(self.params[: len(models)], models.params)
        self.program.stats.unpack(self.stats[: len(models)], models.buffers)

    def _load(self, start: Models, work: Work, pull: Pull | None) -> None:
        layout = self.program.weights
        layout.pack(start.params, self.params[: len(start)])
        self.program.stats.pack(start.buffers, self.stats[: len(start)])
        if self.low is not self.params:
            self.low.copy_(self.params)
        for each in (self.m, self.v, self.now):
            each.zero_()
        steps, clients = work.count.shape
        self.count.zero_()
        self.index[:steps, :clients].copy_(torch.from_numpy(work.index))
        self.count[:steps, :clients].copy_(torch.from_numpy(work.count))
        if self.how is not None and work.how is not None:
            self.how[:steps, :clients].copy_(torch.from_numpy(work.how))
        if pull:
            layout.pack(pull.target.params, self.target)

    @torch.no_grad()
    def _step(self, width: int, lr: float, strength: float, sgd: Sgd | None) -> None:
        """Take one step with the first clients: gather, forward, back, optimise; then turn the page."""
        index = self.index.index_select(0, self.now)[0, :width]
        count = self.count.index_select(0, self.now)[0, :width]
        grads = self.grads[:width]
        run = Pass(self.do, self.low[:width], self.params[:width], self.stats[:width], count, grads)
        images, labels = self.data
        if self.how is not None:
            how = self.how.index_select(0, self.now)[0, :width]
            images = moved(images, index, how, self.turn).flatten(0, 1)
            labels = labels[index].flatten()
            index = torch.arange(index.numel(), device=index.device).view_as(index)
        self.program.gradient(run, images, labels, index)
        trained = self.program.weights.trained
        params = self.params[:width, :trained]
        low = None if self.low is self.params else self.low[:width, :trained]
        if strength:
            grads = grads + strength * (params - self.target[:, :trained])
        if sgd is None:
            self.do.adam(params, self.m[:width], self.v[:width], self.now, grads, count, lr, low)
        else:
            step = self.m[:width].mul_(sgd.momentum).add_(grads)
            params.sub_(step * (sgd.lr * (count > 0)[:, None].to(params.dtype)))
            if low is not None:
                low.copy_(params)
        self.now += 1


def _ladder(clients: int) -> list[int]:
    """Halve the width while clients run out of steps: at most half of a step is in vain, by few graphs."""
    found = [clients]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found
