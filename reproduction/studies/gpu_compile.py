"""Times a round of training on a GPU: plain loop, vmap, stacked layers in torch and Triton, a compiled step.

`CompiledTrainer` is a prototype of what could replace the stacked layers: the model under `torch.vmap`,
with convolutions as matrix products, compiled by torch as one step over padded batches. Prints a JSON line
per way and, per network and precision, a verdict: how the compiled step compares with the stacked layers in
plain torch, and whether Triton is at least 1.5 times as fast as the best way without it.
    python reproduction/studies/gpu_compile.py [--quick] [--nets ...] [--precisions tf32,bf16] [--rounds 9]
"""

from __future__ import annotations

import argparse
import copy
import statistics
from typing import Any

import numpy as np
import torch
from gpu_train import DEVICE, PLANS, attempt, federation, off, say, timed, trainer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from flameche.models.features import to_input
from flameche.training.device import finish, prepare_torch
from flameche.training.kernels.client_stack import batch_table, max_steps_and_batch
from flameche.training.kernels.cuda_graphs import GraphCache, matmul_precision
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.kernels.torch_ops import TorchOps
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models
from flameche.training.trainer import Pull, Sgd, TrainingPlan
from flameche.training.vectorised import BETA1, BETA2, EPS, VectorisedTrainer

ENOUGH = 1.5  # times the speed of the best other way, for which Triton's kernels are kept
MASK = "is_real"  # a BatchNorm's extra buffer: 1 for samples that count, 0 for those that fill a batch up


class MatMulConv2d(nn.Conv2d):
    """A convolution as slices of the padded input, one per kernel position, times the weights."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [n Ch H W] to [n Ch' H' W']."""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel_size, self.stride, self.padding  # type: ignore[misc]
        x = F.pad(input, (pw, pw, ph, ph))  # type: ignore[has-type]
        high, wide = (x.shape[2] - kh) // sh + 1, (x.shape[3] - kw) // sw + 1  # type: ignore[has-type]
        taps = [
            x[:, :, i : i + sh * (high - 1) + 1 : sh, j : j + sw * (wide - 1) + 1 : sw]  # type: ignore[has-type]
            for i in range(kh)  # type: ignore[has-type]
            for j in range(kw)  # type: ignore[has-type]
        ]
        rows = torch.stack(taps, dim=2).permute(0, 3, 4, 1, 2).flatten(3).flatten(0, 2)
        out = (rows @ self.weight.flatten(1).t()).view(len(x), high, wide, -1).permute(0, 3, 1, 2)
        return out if self.bias is None else out + self.bias[:, None, None]


class MaskedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm by the samples that are real, in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [n Ch H W] and update the running statistics in place."""
        x, real = input.to(self.running_mean.dtype), getattr(self, MASK)[:, None, None, None]  # type: ignore[union-attr]
        n = real.sum().clamp(min=1) * x.shape[2] * x.shape[3]
        mean = (x * real).sum((0, 2, 3)) / n
        away = x - mean[:, None, None]
        var = (away * away * real).sum((0, 2, 3)) / n
        share = self.momentum * (real.sum() > 0).to(x.dtype)  # type: ignore[operator]
        self.running_mean.add_(share * (mean.detach() - self.running_mean))  # type: ignore[union-attr, operator]
        unbiased = var.detach() * n / (n - 1).clamp(min=1)
        self.running_var.add_(share * (unbiased - self.running_var))  # type: ignore[union-attr, operator]
        slope = self.weight.to(x.dtype) * (var + self.eps).rsqrt()
        return (away * slope[:, None, None] + self.bias[:, None, None].to(x.dtype)).to(input.dtype)


class CompiledTrainer(VectorisedTrainer):
    """Trains all clients of a round by one compiled step; scores as its parent does."""

    def __init__(
        self, *args: Any, precision: str = "tf32", backend: str = "inductor", **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._precision: Any = precision
        self._low = torch.bfloat16 if precision == "bf16" else self.dtype
        self._module = copy.deepcopy(self.model).train()
        self._norms = []
        for name, module in self._module.named_modules():
            if type(module) is nn.Conv2d and module.groups == 1 and module.dilation == (1, 1):
                module.__class__ = MatMulConv2d
            elif isinstance(module, nn.BatchNorm2d):
                module.__class__ = MaskedBatchNorm2d
                module.register_buffer(MASK, torch.ones(1))
                self._norms.append(f"{name}.{MASK}")
            elif isinstance(module, nn.ReLU):
                module.inplace = False
        self._own = dict(self.model.named_parameters())
        self._stats = {name: b for name, b in self.model.named_buffers() if b.is_floating_point()}
        one = torch.vmap(self._client_step, in_dims=(0, 0, 0, 0, None, 0, 0, 0))
        self._step = torch.compile(one, backend=backend, dynamic=False, fullgraph=True)
        self._graphs = GraphCache(self.device)
        self._rooms: dict[int, dict[str, Tensor]] = {}

    def _client_step(
        self,
        params: Tensor,
        buffers: Tensor,
        m: Tensor,
        v: Tensor,
        t: Tensor,
        x: Tensor,
        y: Tensor,
        real: Tensor,
    ) -> tuple[Tensor, ...]:
        def loss(params: Tensor) -> tuple[Tensor, Tensor]:
            weights = _named(params.to(self._low), self._own)
            stats = {name: part.clone() for name, part in _named(buffers, self._stats).items()}
            masks = dict.fromkeys(self._norms, real)
            logits = functional_call(self._module, (weights, stats, masks), (x,)).to(self.dtype)
            each = F.cross_entropy(logits, y, reduction="none") * real
            flat = [part.flatten() for part in stats.values()]
            return each.sum() / real.sum().clamp(min=1), torch.cat(flat) if flat else buffers

        grad, stats = torch.func.grad(loss, has_aux=True)(params)
        steps = real.sum() > 0  # a client without samples rests
        m2, v2 = m + (grad - m) * (1 - BETA1), v + (grad * grad - v) * (1 - BETA2)
        root = (1 - BETA2**t).sqrt().to(params.dtype)
        size = (self.plan.lr / (1 - BETA1**t)).to(params.dtype)
        moved = params - size * m2 / (v2.sqrt() / root + EPS)
        pairs = ((moved, params), (stats, buffers), (m2, m), (v2, v))
        return tuple(torch.where(steps, new, old) for new, old in pairs)

    def train(
        self, models: Models, pick: np.ndarray, clients: np.ndarray, round: int, pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:  # fmt: skip
        """Train clients [n], each from row pick[n] of models, with Adam."""
        assert pull is None and sgd is None and not self.plan.augment and self._local_buffers is None
        own, sizes = self._samples["train"], self.sizes[clients].tolist()
        steps, batch = max_steps_and_batch(self.sizes.tolist(), self.plan)
        table = batch_table(
            clients.tolist(), sizes, own.offsets[clients].tolist(), self.plan, batch, self.seed, round
        )
        room = self._room(len(clients), steps, batch)
        room["index"][: len(table.index)].copy_(torch.from_numpy(table.index))
        room["count"][: len(table.count)].copy_(torch.from_numpy(table.count))
        start = models.pick(pick)
        room["params"].copy_(start.params)
        room["buffers"].copy_(start.buffers)
        for name in ("m", "v", "now"):
            room[name].zero_()
        with matmul_precision(self._precision):
            for _ in range(len(table.index)):
                self._graphs.run(len(clients), lambda: self._one_step(room))
        finish(self.device)
        return Models(room["params"].clone(), room["buffers"].clone())

    @torch.no_grad()
    def _one_step(self, room: dict[str, Tensor]) -> None:
        own, now = self._samples["train"], room["now"]
        index, count = (room[name].index_select(0, now)[0] for name in ("index", "count"))
        real = (torch.arange(index.shape[1], device=index.device) < count[:, None]).to(self.dtype)
        x = to_input(own.x[index], self._low)
        state = [room[name] for name in ("params", "buffers", "m", "v")]
        now += 1
        for old, new in zip(state, self._step(*state, now.double()[0], x, own.y[index], real), strict=True):
            old.copy_(new)

    def _room(self, width: int, steps: int, batch: int) -> dict[str, Tensor]:
        """Keep the tensors of a round of so many clients where the captured graph finds them."""
        if width not in self._rooms:
            like, many = {"device": self.device, "dtype": self.dtype}, len(self._initial[0])
            made = {name: torch.zeros(width, many, **like) for name in ("params", "m", "v")}  # type: ignore[arg-type]
            made["buffers"] = torch.zeros(width, len(self._initial[1]), **like)  # type: ignore[arg-type]
            made["index"] = torch.zeros(steps, width, batch, dtype=torch.int64, device=self.device)
            made["count"] = torch.zeros(steps, width, dtype=torch.int64, device=self.device)
            made["now"] = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._rooms[width] = made
        return self._rooms[width]


def _named(flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut a flat vector into tensors of these names and shapes."""
    parts = torch.split(flat, [own.numel() for own in like.values()]) if like else ()
    return {name: part.view(own.shape) for (name, own), part in zip(like.items(), parts, strict=True)}


def ways(precisions: list[str], backend: str) -> list[tuple[str, str, Any, dict[str, Any]]]:
    """List what is compared: a name, a precision, the trainer, its options."""
    first = precisions[0]
    listed: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("loop", first, LoopTrainer, {}), ("vmap", first, VectorisedTrainer, {}),
    ]  # fmt: skip
    for precision in precisions:
        more = {"precision": precision}
        listed.append(("stacked torch", precision, StackedTrainer, {**more, "ops": TorchOps()}))
        listed.append(("compiled", precision, CompiledTrainer, {**more, "backend": backend}))
        if DEVICE == "cuda":
            listed.append(("stacked triton", precision, StackedTrainer, more))
    return listed


def check(net: str, backend: str) -> None:
    """Compare the compiled step with the plain loop in float64, on clients of unequal sizes."""
    data = federation(net, 5, 0, 8, [40, 33, 17, 64, 19])
    plan, who = TrainingPlan(epochs=1, batch=16), np.arange(5)
    loop = trainer(LoopTrainer, net, data, plan, dtype=torch.float64)
    ours = trainer(CompiledTrainer, net, data, plan, dtype=torch.float64, precision="fp32", backend=backend)
    a, b = (each.train(each.initial(), 0 * who, who, 1) for each in (loop, ours))
    say(
        check=net,
        params=off(b.params, a.params),
        buffers=off(b.buffers, a.buffers) if b.buffers.numel() else 0.0,
    )


def measure(net: str, args: Any) -> None:
    """Time a round of each way, then say what follows from it."""
    clients, size, (epochs, batch) = (3, 24, (1, 8)) if args.quick else (20, 500, PLANS[net])
    data, who = federation(net, clients, size, 16), np.arange(clients)
    found: dict[tuple[str, str], float] = {}
    for name, precision, cls, more in ways(args.precisions, args.backend):

        def work(name: str = name, precision: str = precision, cls: Any = cls, more: Any = more) -> None:
            own = trainer(cls, net, data, TrainingPlan(epochs=epochs, batch=batch), **more)
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            start = own.initial()
            first, times = timed(lambda n: own.train(start, 0 * who, who, n + 1), args.rounds, 20.0)
            ms = statistics.median(times[1:] or times)
            found[name, precision] = ms
            peak = torch.cuda.max_memory_reserved() / 2**30 if DEVICE == "cuda" else 0.0
            say(net=net, way=name, precision=precision, round_ms=round(ms, 2), least=round(min(times), 2),
                first_s=round(first, 2), run_of_100_s=round(first + 0.099 * ms, 1),
                peak_gib=round(peak, 2))  # fmt: skip

        attempt(f"{net} {name} {precision}", work)
    for precision in args.precisions:
        mine = {name: ms for (name, kind), ms in found.items() if kind == precision}
        verdict: dict[str, Any] = {"verdict": net, "precision": precision}
        if {"compiled", "stacked torch"} <= mine.keys():
            verdict["stacked_torch_over_compiled"] = round(mine["stacked torch"] / mine["compiled"], 2)
        if "stacked triton" in mine and len(mine) > 1:
            others = min(ms for name, ms in mine.items() if name != "stacked triton")
            verdict["best_other_over_triton"] = round(others / mine["stacked triton"], 2)
            verdict["keep_triton"] = others / mine["stacked triton"] >= ENOUGH
        say(**verdict)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__)
    listed: dict[str, Any] = {"type": lambda text: [each for each in text.split(",") if each]}
    parser.add_argument("--nets", default=["lenet5", "resnet18"], **listed)
    parser.add_argument("--precisions", default=["tf32", "bf16"], **listed)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--backend", default="inductor", help="of torch.compile: inductor, aot_eager or eager"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    args = parser.parse_args()
    prepare_torch(DEVICE, 1)
    torch.backends.cudnn.allow_tf32 = args.precisions[0] != "fp32"
    for net in args.nets:
        attempt(f"check {net}", lambda: check(net, args.backend))  # noqa: B023
        attempt(net, lambda: measure(net, args))  # noqa: B023


if __name__ == "__main__":
    main()
