"""The vmap trainer: all clients of a call at once along a client axis, with the results of the plain loop.

Batches are never padded: clients step together when their next batches have the same size, so gradients and
BatchNorm see a client's own samples only. Which clients share a step does not change any result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flameche.models.features import to_input
from flameche.training.augment import augment_generator, augment_images
from flameche.training.device import finish
from flameche.training.loop import DeviceSamples, LoopTrainer
from flameche.training.models import Models, read_module, write_module
from flameche.training.trainer import Floats, Ints, Part, Pull, Sgd, batches

Named = dict[str, Tensor]


class StackedModule:
    """Runs many models of one architecture at once, each on its own images, with torch.vmap.

    Takes rows of parameters [M P] and buffers [M Q] laid out as by `read_module`. The module's own weights
    are not read; its mode (train or eval) applies.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._params = dict(module.named_parameters())
        self._stats = {name: b for name, b in module.named_buffers() if b.is_floating_point()}

    def __call__(self, params: Tensor, buffers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map images [M b Ch H W] to logits [M b classes]; also return the updated buffers [M Q]."""
        weights = _split_named(params, self._params)
        for name, own in self._params.items():
            if not own.requires_grad:
                weights[name] = weights[name].detach()
        # BatchNorm writes its statistics in place; vmap silently loses that unless they are contiguous.
        stats = {
            name: part.clone(memory_format=torch.contiguous_format)
            for name, part in _split_named(buffers, self._stats).items()
        }
        if len(params) == 1:  # a single model needs no grouped convolution
            logits = self._forward(_first_row(weights), _first_row(stats), x[0])[None]
        else:
            logits = torch.vmap(self._forward, randomness="error")(weights, stats, x)
        after = [part.flatten(1) if part.dim() > 1 else part[:, None] for part in stats.values()]
        return logits, torch.cat(after, dim=1) if after else buffers

    def _forward(self, weights: Named, stats: Named, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.module, (weights, stats), (x,))
        return logits


def _first_row(named: Named) -> Named:
    return {name: part[0] for name, part in named.items()}


def _split_named(rows: Tensor, like: Mapping[str, Tensor]) -> Named:
    """Split rows [M P] into named views [M ...], by one `split`, whose gradient is a single concatenation."""
    parts = torch.split(rows, [own.numel() for own in like.values()], dim=1) if like else ()
    return {
        name: part.view(len(rows), *own.shape) for (name, own), part in zip(like.items(), parts, strict=True)
    }


def supports_vmap(module: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Tell whether torch.vmap runs a module with the same results: no randomness, no branches on data.

    Dropout is excluded, since the plain loop seeds it per client; so is BatchNorm that counts batches or
    evaluates by batch statistics, since its result depends on what ran before. The rest is tried on two
    models.
    """
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            return False
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
            layer.momentum is None or layer.running_mean is None
        ):
            return False
    try:
        return _matches_module(copy.deepcopy(module).cpu().double().train(), shape)
    except Exception:  # a user's model can raise anything
        return False


def _matches_module(module: nn.Module, shape: tuple[int, int, int]) -> bool:
    images = torch.rand(2, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    params, stats = read_module(module)
    rows, buffers = torch.stack([params, params * 0.9]).requires_grad_(), torch.stack([stats, stats])
    logits, after = StackedModule(module)(rows, buffers, images)
    torch.autograd.grad(logits.sum(), rows)
    for i in range(2):
        write_module(module, rows[i], buffers[i])
        if not torch.allclose(module(images[i]), logits[i], rtol=1e-9, atol=1e-9):
            return False
        if not torch.allclose(read_module(module)[1], after[i], rtol=1e-9, atol=1e-9):
            return False
    return True


BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # the defaults of torch.optim.Adam
SCORE_IMAGES = 2**13  # images x models in one forward pass
SCORE_WEIGHTS = 2**28  # weights x models in one forward pass: 1 GiB in float32
TRAIN_WEIGHTS = 2**29  # weights x clients trained at once: 2 GiB in float32, and as much for each Adam moment


class VectorisedTrainer(LoopTrainer):
    """Trains and evaluates stacked models with torch.vmap, up to `width` clients at a time."""

    def __init__(self, *args: Any, width: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._width = width or max(1, TRAIN_WEIGHTS // len(self._initial[0]))
        self._stacked = StackedModule(self.model)
        # 1 for trained weights, 0 for frozen ones [P]
        self._trainable = torch.cat(
            [torch.full_like(w.detach().flatten(), float(w.requires_grad)) for w in self.model.parameters()]
        )

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
        width, sgd = self._width, sgd or self.plan.sgd
        parts = [
            self._train_stack(models.pick(pick[a : a + width]), clients[a : a + width], round, pull, sgd)
            for a in range(0, len(clients), width)
        ]
        finish(self.device)
        return Models(torch.cat([p.params for p in parts]), torch.cat([p.buffers for p in parts]))

    def _train_stack(
        self, start: Models, clients: Ints, round: int, pull: Pull | None, sgd: Sgd | None
    ) -> Models:
        own = self._samples["train"]
        steps = [
            [own.offsets[i] + index for index in batches(int(self.sizes[i]), self.plan, self.seed, round, i)]
            for i in clients.tolist()
        ]
        # Clients with most full batches come first, so that those of a full step are a slice and not a copy.
        full = [sum(len(index) == self.plan.batch for index in mine) for mine in steps]
        order = np.array(sorted(range(len(steps)), key=lambda i: (-full[i], len(steps[i][-1]))))
        clients, steps = clients[order], [steps[i] for i in order]
        calls = group_steps([[len(index) for index in mine] for mine in steps], self.plan.batch)

        who, rows = self._to_device(clients), self._to_device(order)
        params = start.params[rows]
        buffers = start.buffers[rows] if self._local_buffers is None else self._local_buffers[who]
        m, v = torch.zeros_like(params), torch.zeros_like(params)
        t = torch.zeros(len(params), dtype=torch.float64, device=self.device)
        generators = [augment_generator(i, self.seed, round) for i in clients.tolist()]
        self.model.train()
        for group, samples in zip(calls, self._gather(calls, steps), strict=True):
            x = to_input(own.x[samples], self.dtype)
            if self.plan.augment:
                turn = self.plan.turn
                x = torch.stack(
                    [augment_images(one, generators[i], turn) for one, i in zip(x, group, strict=True)]
                )
            part = _as_slice(group)
            mine = params[part], buffers[part], m[part], v[part], t[part]
            self.step(*mine, x, own.y[samples], pull, sgd)
            if not isinstance(part, slice):  # then these are copies, not views
                for each, new in zip((params, buffers, m, v, t), mine, strict=True):
                    each[part] = new
        if self._local_buffers is not None:
            self._local_buffers[who] = buffers
        back = self._to_device(np.argsort(order))
        return Models(params[back], buffers[back])

    def _to_device(self, index: Ints) -> Tensor:
        return torch.from_numpy(index).to(self.device)

    def _gather(self, calls: list[list[int]], steps: list[list[Ints]]) -> list[Tensor]:
        """Return the sample indices [g b] of every call, copied to the device at once."""
        waiting = [iter(mine) for mine in steps]
        index = [np.stack([next(waiting[i]) for i in group]) for group in calls]
        flat = self._to_device(np.concatenate([each.ravel() for each in index]))
        parts = torch.split(flat, [each.size for each in index])
        return [part.view(each.shape) for part, each in zip(parts, index, strict=True)]

    def step(
        self,
        params: Tensor,
        buffers: Tensor,
        m: Tensor,
        v: Tensor,
        t: Tensor,
        x: Tensor,
        y: Tensor,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> None:
        """Take one step of Adam, or of SGD, with g clients, in place.

        params, m, v [g P], buffers [g Q], t [g] steps taken before, x [g b Ch H W], y [g b].
        """
        leaf = params.detach().requires_grad_()
        logits, stats = self._stacked(leaf, buffers, x)
        # A client's weights affect only its own loss: the gradient of the sum is all clients' gradients.
        loss = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
        (grad,) = torch.autograd.grad(loss, leaf)
        if pull:
            grad.add_((params - pull.target.params[0]) * self._trainable, alpha=pull.strength)
        buffers.copy_(stats)
        if sgd is None:
            adam(params, m, v, t, grad, self.plan.lr)
        else:
            params.sub_(m.mul_(sgd.momentum).add_(grad), alpha=sgd.lr)

    @torch.no_grad()
    def _score(
        self, models: Models, pick: Ints, sets: Ints, clients: Ints, part: Part
    ) -> tuple[Floats, Floats]:
        """Evaluate models on sets of samples, each model on all its sets in one pass with others."""
        who = clients if self._local_buffers is not None else np.zeros(len(pick), np.int64)
        unique, back = np.unique(np.stack([pick, who, sets], axis=1), axis=0, return_inverse=True)
        pairs, first = np.unique(unique[:, :2], axis=0, return_index=True)
        data = self._samples[part]
        sizes = np.diff(data.offsets)[unique[:, 2]]
        runs = np.split(np.arange(len(unique)), first[1:])  # the rows of `unique` for each model
        samples = [
            np.concatenate([np.arange(*data.offsets[s : s + 2]) for s in unique[run, 2]]) for run in runs
        ]
        answers = np.full((len(unique), 2), np.nan)
        self.model.eval()
        for group in _group_by_length([len(mine) for mine in samples], self._models_per_pass):
            k, who = pairs[group].T
            found = self._score_stack(models, k, who, [samples[i] for i in group], data)
            for i, values in zip(group, found, strict=True):
                ends = np.cumsum(sizes[runs[i]])
                sums = np.stack([each.sum(axis=0) for each in np.split(values, ends[:-1])])
                with np.errstate(invalid="ignore"):  # NaN for no samples
                    answers[runs[i]] = sums / sizes[runs[i], None]
        both = answers[back.reshape(-1)]
        return both[:, 0], both[:, 1]

    def _models_per_pass(self, longest: int) -> int:
        """Return how many models to evaluate at once, given the longest of their lists of samples."""
        return max(1, min(SCORE_IMAGES // longest, SCORE_WEIGHTS // len(self._initial[0])))

    def _score_stack(
        self, models: Models, k: Ints, who: Ints, samples: list[Ints], data: DeviceSamples
    ) -> list[Floats]:
        """Return loss and correctness of each sample, [n 2] per model.

        Shorter lists are padded with their last sample; in evaluation, images do not affect each other.
        """
        picked = models.pick(k)
        buffers = picked.buffers if self._local_buffers is None else self._local_buffers[self._to_device(who)]
        longest = max(map(len, samples))
        filled = np.stack([np.pad(mine, (0, longest - len(mine)), mode="edge") for mine in samples])
        found = []
        for where in torch.split(self._to_device(filled), max(SCORE_IMAGES // len(k), 1), dim=1):
            logits, _ = self._stacked(picked.params, buffers, to_input(data.x[where], self.dtype))
            y = data.y[where]
            loss = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
            found.append(torch.stack([loss.double(), (logits.argmax(2) == y).double()], dim=2))
        values: Floats = torch.cat(found, dim=1).cpu().numpy()
        return [each[: len(mine)] for each, mine in zip(values, samples, strict=True)]


@torch.no_grad()
def adam(params: Tensor, m: Tensor, v: Tensor, t: Tensor, grad: Tensor, lr: float) -> None:
    """Step like torch.optim.Adam (Kingma & Ba 2015) in place; every row [P] has its own step count t [g].

    w -= lr m' / (sqrt(v') + eps) with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t).
    """
    t += 1
    m.lerp_(grad, 1 - BETA1)
    v.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    size = (-lr / (1 - BETA1**t))[:, None]
    root = (1 - BETA2**t).sqrt()[:, None]
    # Dividing by the step size here saves one pass over [g P].
    below = v.sqrt().div_((root * size).to(v.dtype)).add_((EPS / size).to(v.dtype))
    params.addcdiv_(m, below)


def group_steps(lengths: Sequence[Sequence[int]], full: int) -> list[list[int]]:
    """Return which clients step together, call after call: those whose next batches have the same size.

    lengths[i] are the batch sizes of client i in order. Full batches wait until no other size is due, so
    that clients with epochs of different lengths meet again: there are as many full calls as the busiest
    client has full batches.
    """
    done = [0] * len(lengths)
    calls: list[list[int]] = []
    while True:
        due: dict[int, list[int]] = {}
        for i, mine in enumerate(lengths):
            if done[i] < len(mine):
                due.setdefault(mine[done[i]], []).append(i)
        if not due:
            return calls
        for size in sorted(due.keys() - {full}) or [full]:
            calls.append(due[size])
            for i in due[size]:
                done[i] += 1


def _as_slice(group: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice."""
    together = group[-1] - group[0] + 1 == len(group)
    return slice(group[0], group[-1] + 1) if together else group


def _group_by_length(lengths: list[int], fit: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield groups of lists of similar length, longest first, as many as fit one pass; skip empty lists."""
    order = sorted((i for i, n in enumerate(lengths) if n), key=lambda i: -lengths[i])
    while order:
        many = fit(lengths[order[0]])
        yield order[:many]
        order = order[many:]
