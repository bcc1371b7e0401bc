"""Layers over a stack of networks: M clients, each with its own weights and images, in the same operations.

A value is a map [M b H W C]. Every layer knows its way forward and its way back; the gradient of its weights
goes straight to where the optimiser reads it. What a layer returns on its way back belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flameche.training.kernels.autodiff import Pass, added
from flameche.training.kernels.conv_geometry import Form, Slide, Window
from flameche.training.kernels.torch_ops import Table

SHARES = 512  # blocks of work that keep a GPU busy; a weight gradient over fewer is cut into parts


@dataclass(eq=False)
class Product:
    """A convolution or a linear layer as one matrix product per client: rows of `columns` values by weights.

    `lower`: "direct" takes the map as it is, "patches" lays out what each window sees, "spread" builds the
    matrix from a whole small map to all that comes out.
    """

    form: Form
    window: Window
    lower: str
    weight: int  # where the matrix begins
    columns: int
    bias: int | None  # where a bias of its own begins; in patches it lies below the weights
    ones: bool
    frozen: tuple[bool, bool]
    table: Table = field(default_factory=list)
    relu: bool = False
    first: bool = False  # reads images: no gradient is wanted
    direct_rows: int = 1  # rows per image of a direct product

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Multiply, add the bias, apply ReLU."""
        weights = self._matrix(run)
        rows = self._rows(run, inputs)
        y = torch.bmm(rows, weights)
        y = y.view(len(y), -1, self.form.height, self.form.width, self.form.pitch)
        bias = None if self.bias is None else run.weights.narrow(1, self.bias, self.form.pitch)
        run.do.activate(y, bias, self.relu)
        if run.training:
            run.saved[id(self)] = (rows, weights, y if self.relu else None)
        return y

    def _rows(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        if self.lower != "patches":
            x = inputs[0]
            return x.view(len(x), -1, self.columns)
        if self.first and run.data is not None:
            data, index = run.data
            return run.do.image_patches(data, index, self.window, self.columns, self.ones, run.weights.dtype)
        return run.do.patches(inputs[0], self.window, self.columns, self.ones)

    def _matrix(self, run: Pass) -> Tensor:
        width = self.form.pitch
        if self.lower != "spread":
            part = run.weights.narrow(1, self.weight, self.columns * width)
            return part.view(len(part), self.columns, width)
        return run.do.spread(self._taps(run.weights), self.table)

    def _taps(self, packed: Tensor) -> Tensor:
        taps, pitch, width = 1 + max(map(max, self.table)), self.window.form.pitch, self.form.pitch
        part = packed.narrow(1, self.weight, taps * pitch * width)
        return part.view(len(part), taps, pitch, width)

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Multiply by the transposes."""
        rows, weights, y = run.saved.pop(id(self))
        out = None
        if self.bias is not None and not self.frozen[1] and run.grads is not None:
            out = run.grads.narrow(1, self.bias, self.form.pitch)
        run.do.activate_back(grad, y, out)
        flat = grad.view(len(grad), rows.shape[1], -1)
        if run.grads is not None:
            self._weigh(run, rows, flat)
        if self.first:
            return []
        onto, back = into[0], weights.transpose(1, 2)
        if self.lower == "patches":
            return [run.do.fold(torch.bmm(flat, back), self.window, onto)]
        found = torch.bmm(flat, back) if onto is None else onto.view(rows.shape).baddbmm_(flat, back)
        shape = self.window.form
        return [found.view(len(found), -1, shape.height, shape.width, shape.pitch)]

    def _weigh(self, run: Pass, rows: Tensor, grad: Tensor) -> None:
        """Write the gradient of the weights."""
        assert run.grads is not None
        if self.frozen[0]:
            return
        if self.lower == "spread":
            wide = torch.bmm(rows.transpose(1, 2), grad)
            run.do.collect(wide, self.table, self._taps(run.grads))
            return
        out = run.grads.narrow(1, self.weight, self.columns * self.form.pitch)
        out = out.view(len(out), self.columns, self.form.pitch)
        parts = _parts(rows, grad) if rows.is_cuda else 1
        if parts == 1:
            torch.bmm(rows.transpose(1, 2), grad, out=out)
            return
        size = rows.shape[1] // parts
        cut = torch.bmm(
            rows.view(-1, size, rows.shape[2]).transpose(1, 2), grad.reshape(-1, size, grad.shape[2])
        )
        torch.sum(cut.view(len(rows), parts, *cut.shape[1:]), 1, out=out)


def _parts(rows: Tensor, grad: Tensor) -> int:
    """Choose in how many parts a sum over many rows is taken, so that enough work runs side by side."""
    tiles = len(rows) * -(-rows.shape[2] // 64) * -(-grad.shape[2] // 64)
    parts = 1
    while tiles * parts < SHARES and rows.shape[1] % (2 * parts) == 0 and rows.shape[1] // (2 * parts) >= 256:
        parts *= 2
    return parts


@dataclass(eq=False)
class Norm:
    """BatchNorm over a client's own real samples; then a residual, then ReLU, where they follow."""

    form: Form
    weight: int
    bias: int
    running: tuple[int, int]
    momentum: float
    eps: float
    relu: bool = False
    scratch: bool = False  # its weights are frozen: their gradients go nowhere

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Normalise; by the running statistics when scoring."""
        x, residual = inputs[0], inputs[1] if len(inputs) > 1 else None
        weight, bias = (run.exact.narrow(1, at, self.form.pitch) for at in (self.weight, self.bias))
        mean, var = (run.stats.narrow(1, at, self.form.pitch) for at in self.running)
        if run.count is None:
            return run.do.affine(x, mean, (var + self.eps).rsqrt(), weight, bias, residual, self.relu)
        saved = run.do.norm(
            x, run.count, weight, bias, (mean, var), self.momentum, self.eps, residual, self.relu
        )
        run.saved[id(self)] = (saved, weight)
        return saved.y

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Go back, and hand the residual its gradient."""
        assert run.count is not None
        saved, weight = run.saved.pop(id(self))
        if run.grads is None or self.scratch:
            out = (torch.empty_like(weight), torch.empty_like(weight))
        else:
            grads = run.grads
            out = (grads.narrow(1, self.weight, self.form.pitch), grads.narrow(1, self.bias, self.form.pitch))
        back = run.do.norm_back(grad, saved, run.count, weight, out, self.relu)
        return [added(onto, each) for onto, each in zip(into, back, strict=False)]


@dataclass(eq=False)
class MaxPool:
    """The largest value of each window, after ReLU where one comes before it: they commute."""

    form: Form
    window: Window
    relu: bool = False

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Take the largest."""
        y, where = run.do.pool(inputs[0], self.window, self.relu)
        if run.training:
            run.saved[id(self)] = where
        return y

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Send gradients to where the largest were."""
        return [added(into[0], run.do.pool_back(grad, run.saved.pop(id(self)), self.window))]


@dataclass(eq=False)
class MeanPool:
    """The mean of each window; windows tile the map."""

    form: Form
    window: Window

    def _tiles(self, x: Tensor) -> Tensor:
        kh, kw = self.window.kernel
        used = x[:, :, : self.form.height * kh, : self.form.width * kw]
        shape = (*x.shape[:2], self.form.height, kh, self.form.width, kw, x.shape[4])
        a, b, y, row, c = used.stride()
        return used.as_strided(shape, (a, b, y * kh, y, row * kw, row, c))

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Take the mean."""
        return self._tiles(inputs[0]).mean((3, 5))

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Share each gradient out evenly."""
        form = self.window.form
        back = grad.new_zeros(*grad.shape[:2], form.height, form.width, form.pitch)
        self._tiles(back).add_((grad / self.window.taps)[:, :, :, None, :, None])
        return [added(into[0], back)]


Slope = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False)
class Pointwise:
    """An activation: its function, and its slope by input and output."""

    form: Form
    function: Callable[[Tensor], Tensor]
    slope: Slope

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Apply it; channels that are not there stay zero."""
        y = self.function(inputs[0])
        if self.form.pitch > self.form.channels:
            y[..., self.form.channels :] = 0
        if run.training:
            run.saved[id(self)] = (inputs[0], y)
        return y

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Multiply by the slope."""
        return [added(into[0], grad.mul_(self.slope(*run.saved.pop(id(self)))))]


@dataclass(eq=False)
class Add:
    """The sum of two values."""

    form: Form

    def forward(self, run: Pass, inputs: list[Tensor]) -> Tensor:
        """Add."""
        return inputs[0] + inputs[1]

    def backward(self, run: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Give both the same, each its own copy."""
        return [added(into[0], grad.clone()), added(into[1], grad)]


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
