"""Cuts a network before its last linear layer: F in the paper's W(x) = H(F(x)).

The layer is found by recording which linear layer runs last, so any nn.Module works; it can also be named.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from flameche.errors import ConfigError

DIVIDE_BY, SUBTRACT = 127.5, 1.0  # bytes 0…255 become -1…1


def to_input(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale bytes to [0, 1], then normalise with mean and standard deviation 0.5, for every network."""
    return x.to(dtype).div_(DIVIDE_BY).sub_(SUBTRACT)


def find_head(model: nn.Module, shape: tuple[int, int, int]) -> str:
    """Return the name of the linear layer that runs last on images of this shape."""
    order: list[str] = []
    hooks = [
        module.register_forward_pre_hook(lambda _m, _a, name=name: order.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    training = model.training
    with torch.no_grad():
        device = next(model.parameters()).device
        model.eval()(torch.zeros(1, *shape, device=device))
    model.train(training)
    for hook in hooks:
        hook.remove()
    if not order:
        raise ConfigError("the model has no linear layer to cut before; name a layer in model.head")
    return order[-1]


class FeatureExtractor:
    """A frozen, randomly initialised network, cut before its head.

    Weights are Kaiming (He et al. 2015), Gaussian or uniform; biases are zero. BatchNorm is the identity:
    batch statistics of a single client would remove exactly what distinguishes the groups.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: tuple[int, int, int],
        *,
        seed: int,
        weights: Literal["gaussian", "uniform"] = "gaussian",
        head: str | None = None,
        device: str = "cpu",
    ) -> None:
        name = head or find_head(model, shape)
        layers = dict(model.named_modules())
        if name not in layers:
            raise ConfigError(
                f"model.head = {name!r} is not a layer of the model; "
                f"it has {', '.join(n for n in layers if n)}"
            )
        self.model = model.eval().to(device)
        self.device = device
        self._captured: Tensor | None = None
        layers[name].register_forward_pre_hook(self._capture)
        self._initialise(seed, weights)

    def _initialise(self, seed: int, weights: Literal["gaussian", "uniform"]) -> None:
        generator = torch.Generator().manual_seed(seed % 2**63)
        fill = nn.init.kaiming_normal_ if weights == "gaussian" else nn.init.kaiming_uniform_
        for module in self.model.modules():
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                draw = torch.empty(module.weight.shape)
                fill(draw, nonlinearity="relu", generator=generator)
                with torch.no_grad():
                    module.weight.copy_(draw)
                    if module.bias is not None:
                        module.bias.zero_()
            elif isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_running_stats()
                module.reset_parameters()

    def _capture(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        self._captured = args[0]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map bytes [n Ch H W] to features [n F]."""
        self.model(to_input(x.to(self.device)))
        if self._captured is None:
            raise ConfigError("the layer named in model.head did not run; name one that runs for every image")
        features, self._captured = self._captured, None
        return features.flatten(1)
