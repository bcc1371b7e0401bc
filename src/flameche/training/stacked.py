"""Runs many models of one architecture at once, each on its own images, along a model axis."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flameche.training.models import read_module, write_module

Named = dict[str, Tensor]


class StackedModule:
    """Calls a module with rows of parameters [M P] and buffers [M Q], laid out as `read_module` does.

    The module's own weights are never read; its mode (train or eval) is what counts.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._params = dict(module.named_parameters())
        self._stats = {name: b for name, b in module.named_buffers() if b.is_floating_point()}

    def __call__(self, params: Tensor, buffers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map images [M b Ch H W] to logits [M b classes]; also give the buffers [M Q] after it."""
        weights = _cut(params, self._params)
        for name, own in self._params.items():
            if not own.requires_grad:
                weights[name] = weights[name].detach()
        # BatchNorm writes its statistics in place; vmap silently loses that unless they are contiguous.
        stats = {
            name: part.clone(memory_format=torch.contiguous_format)
            for name, part in _cut(buffers, self._stats).items()
        }
        if len(params) == 1:  # spares a lone model the grouped convolution
            logits = self._forward(_first(weights), _first(stats), x[0])[None]
        else:
            logits = torch.vmap(self._forward, randomness="error")(weights, stats, x)
        after = [part.flatten(1) if part.dim() > 1 else part[:, None] for part in stats.values()]
        return logits, torch.cat(after, dim=1) if after else buffers

    def _forward(self, weights: Named, stats: Named, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.module, (weights, stats), (x,))
        return logits


def _first(named: Named) -> Named:
    return {name: part[0] for name, part in named.items()}


def _cut(rows: Tensor, like: Mapping[str, Tensor]) -> Named:
    """Cut rows [M P] into named views [M ...]; by one `split`, whose gradient is a single concatenation."""
    parts = torch.split(rows, [own.numel() for own in like.values()], dim=1) if like else ()
    return {
        name: part.view(len(rows), *own.shape) for (name, own), part in zip(like.items(), parts, strict=True)
    }


def stackable(module: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Tell whether a module may be stacked: no randomness, nothing vmap refuses, the same numbers.

    Dropout is out, since the plain loop seeds it per client; so is BatchNorm that counts batches or scores by
    them, since the result then depends on what ran before. The rest is found by trying two models.
    """
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            return False
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
            layer.momentum is None or layer.running_mean is None
        ):
            return False
    try:
        return _agrees(copy.deepcopy(module).cpu().double().train(), shape)
    except Exception:  # a user's own code can fail in any way
        return False


def _agrees(module: nn.Module, shape: tuple[int, int, int]) -> bool:
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
