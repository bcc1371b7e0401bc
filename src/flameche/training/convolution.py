"""A convolution whose patches are never laid out, with the pooling and ReLU that follow it.

It pays where what a window sees is small: then patches are most of the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flameche.training.passes import Pass
from flameche.training.windows import Form, Slide


@dataclass(eq=False)
class Convolution:
    """Its weights lie as [taps pitch] rows of form.pitch outputs, the bias in the row below."""

    form: Form
    plan: Slide
    weight: int  # where the matrix begins
    columns: int
    bias: bool
    first: bool  # reads images: no gradient is wanted
    relu: bool = False

    def _matrix(self, packed: Tensor) -> Tensor:
        part = packed.narrow(1, self.weight, self.columns * self.form.pitch)
        return part.view(len(part), self.columns, self.form.pitch)

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Convolve, pool, apply ReLU."""
        source = run.data if self.first else inputs[0]
        assert source is not None
        weights = self._matrix(run.weights)
        slid = run.do.slide(source, weights, self.plan, self.bias, self.relu, run.training)
        if run.training:
            run.saved[id(self)] = (slid, weights)
        return slid.y

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Give the gradients of weights and map."""
        slid, weights = run.saved.pop(id(self))
        out = None if run.grads is None else self._matrix(run.grads)
        back = run.do.slide_back(
            grad, slid, weights, self.plan, self.relu, out, self.bias, into[0], not self.first
        )
        return [] if back is None else [back]
