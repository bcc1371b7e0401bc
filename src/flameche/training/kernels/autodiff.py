"""The way through a stack of networks and back: what a pass carries, and the order of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from flameche.training.kernels.conv_geometry import MapShape
from flameche.training.kernels.torch_ops import TorchOps


@dataclass
class Pass:
    """One pass over a stack: weights [M T], running statistics [M Q], real samples count [M]; None: scoring.

    `exact` are the weights in full precision, which BatchNorm takes; `weights` may be a copy in a lower one.
    """

    ops: TorchOps
    weights: Tensor
    master_weights: Tensor
    stats: Tensor
    count: Tensor | None = None
    grads: Tensor | None = None
    data: tuple[Tensor, Tensor] | None = None  # bytes and index, for a first layer that gathers by itself
    saved: dict[int, Any] = field(default_factory=dict)

    @property
    def training(self) -> bool:
        """Tell whether there will be a way back."""
        return self.count is not None


class Layer(Protocol):
    """One operation of a network."""

    map_shape: MapShape  # of what comes out

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Compute the layer's value."""
        ...

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Give the inputs' gradients, on top of `into` where given; `grad` may be overwritten."""
        ...


def accumulate(into: Tensor | None, grad: Tensor) -> Tensor:
    """Add up what two ways back bring."""
    return grad if into is None else into.add_(grad)


@dataclass(frozen=True)
class Step:
    """A layer, where it reads and where it writes; value 0 is the images."""

    layer: Layer
    inputs: tuple[int, ...]
    output: int


def forward(steps: Sequence[Step], ctx: Pass, images: Tensor | None) -> Tensor:
    """Run a network; values are let go when nothing reads them any more."""
    last = {i: n for n, step in enumerate(steps) for i in step.inputs}
    values: dict[int, Tensor] = {} if images is None else {0: images}
    for n, step in enumerate(steps):
        values[step.output] = step.layer.forward(ctx, [values[i] for i in step.inputs if i in values])
        for i in step.inputs:
            if last[i] == n:
                values.pop(i, None)
    return values[steps[-1].output]


def backward(steps: Sequence[Step], ctx: Pass, grad: Tensor) -> None:
    """Go back through a network from the gradient of its output."""
    grads = {steps[-1].output: grad}
    for step in reversed(steps):
        into = [grads.get(i) for i in step.inputs]
        back = step.layer.backward(ctx, grads.pop(step.output), into)
        grads.update({i: each for i, each in zip(step.inputs, back, strict=False) if i != 0})
