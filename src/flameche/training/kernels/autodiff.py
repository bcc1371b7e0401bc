"""Forward and backward passes through a stack of networks: the data of a pass, and the order of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from flameche.training.kernels.conv_geometry import MapShape
from flameche.training.kernels.torch_ops import TorchOps


@dataclass
class Pass:
    """One pass over a stack: weights [M T], statistics [M Q], real samples count [M], None for evaluation.

    `master_weights` are in full precision, for BatchNorm; `weights` may be a copy in lower precision.
    """

    ops: TorchOps
    weights: Tensor
    master_weights: Tensor
    stats: Tensor
    count: Tensor | None = None
    grads: Tensor | None = None
    data: tuple[Tensor, Tensor] | None = None  # bytes and index, for a first layer that reads images
    saved: dict[int, Any] = field(default_factory=dict)

    @property
    def training(self) -> bool:
        """Tell whether a backward pass follows."""
        return self.count is not None


class Layer(Protocol):
    """One operation of a network."""

    map_shape: MapShape  # of the output

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Compute the output."""
        ...

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Return the inputs' gradients, added to `into` where given; `grad` may be overwritten."""
        ...


def accumulate(into: Tensor | None, grad: Tensor) -> Tensor:
    """Add a gradient to the one of another path."""
    return grad if into is None else into.add_(grad)


@dataclass(frozen=True)
class Step:
    """A layer, the values it reads and the value it writes; value 0 is the images."""

    layer: Layer
    inputs: tuple[int, ...]
    output: int


def forward(steps: Sequence[Step], ctx: Pass, images: Tensor | None) -> Tensor:
    """Run a network; values are freed after their last use."""
    last = {i: n for n, step in enumerate(steps) for i in step.inputs}
    values: dict[int, Tensor] = {} if images is None else {0: images}
    for n, step in enumerate(steps):
        values[step.output] = step.layer.forward(ctx, [values[i] for i in step.inputs if i in values])
        for i in step.inputs:
            if last[i] == n:
                values.pop(i, None)
    return values[steps[-1].output]


def backward(steps: Sequence[Step], ctx: Pass, grad: Tensor) -> None:
    """Propagate the gradient of the output back through a network."""
    grads = {steps[-1].output: grad}
    for step in reversed(steps):
        into = [grads.get(i) for i in step.inputs]
        back = step.layer.backward(ctx, grads.pop(step.output), into)
        grads.update({i: each for i, each in zip(step.inputs, back, strict=False) if i != 0})
