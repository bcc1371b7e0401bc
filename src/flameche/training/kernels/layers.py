"""Layers over a stack of networks: M clients, each with its own weights and images, in the same operations.

A value is a map [M b H W C]. Every layer has a forward and a backward pass; weight gradients are written
directly to where the optimiser reads them. The caller owns what a backward pass returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flameche.training.kernels.autodiff import Pass, accumulate
from flameche.training.kernels.conv_geometry import ConvPool, MapShape, Window
from flameche.training.kernels.torch_ops import Table

MIN_BLOCKS = 512  # thread blocks that occupy a GPU; weight gradients with fewer are split


@dataclass(eq=False)
class MatMul:
    """A convolution or linear layer as one matrix product per client: rows of `columns` values times weights.

    `lowering`: "direct" takes the map as it is, "im2col" lays out the input of each window, "expanded" builds
    the matrix from a whole small map to the whole output.
    """

    map_shape: MapShape
    window: Window
    lowering: str
    weight: int  # offset of the matrix
    columns: int
    bias: int | None  # offset of a separate bias; with im2col it is a row of the matrix
    append_one: bool
    frozen: tuple[bool, bool]
    table: Table = field(default_factory=list)
    relu: bool = False
    reads_images: bool = False  # then its input needs no gradient

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Multiply, add the bias, apply ReLU."""
        weights = self._matrix(ctx)
        rows = self._operand(ctx, inputs)
        y = torch.bmm(rows, weights)
        y = y.view(len(y), -1, self.map_shape.height, self.map_shape.width, self.map_shape.pitch)
        bias = None if self.bias is None else ctx.weights.narrow(1, self.bias, self.map_shape.pitch)
        ctx.ops.bias_relu(y, bias, self.relu)
        if ctx.training:
            ctx.saved[id(self)] = (rows, weights, y if self.relu else None)
        return y

    def _operand(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        if self.lowering != "im2col":
            x = inputs[0]
            return x.view(len(x), -1, self.columns)
        if self.reads_images and ctx.data is not None:
            data, index = ctx.data
            return ctx.ops.im2col_images(
                data, index, self.window, self.columns, self.append_one, ctx.weights.dtype
            )
        return ctx.ops.im2col(inputs[0], self.window, self.columns, self.append_one)

    def _matrix(self, ctx: Pass) -> Tensor:
        width = self.map_shape.pitch
        if self.lowering != "expanded":
            part = ctx.weights.narrow(1, self.weight, self.columns * width)
            return part.view(len(part), self.columns, width)
        return ctx.ops.expand_taps(self._taps(ctx.weights), self.table)

    def _taps(self, packed: Tensor) -> Tensor:
        taps, pitch, width = 1 + max(map(max, self.table)), self.window.map_shape.pitch, self.map_shape.pitch
        part = packed.narrow(1, self.weight, taps * pitch * width)
        return part.view(len(part), taps, pitch, width)

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Multiply by the transposes."""
        rows, weights, y = ctx.saved.pop(id(self))
        out = None
        if self.bias is not None and not self.frozen[1] and ctx.grads is not None:
            out = ctx.grads.narrow(1, self.bias, self.map_shape.pitch)
        ctx.ops.bias_relu_backward(grad, y, out)
        flat = grad.view(len(grad), rows.shape[1], -1)
        if ctx.grads is not None:
            self._weight_gradient(ctx, rows, flat)
        if self.reads_images:
            return []
        onto, back = into[0], weights.transpose(1, 2)
        if self.lowering == "im2col":
            return [ctx.ops.col2im(torch.bmm(flat, back), self.window, onto)]
        found = torch.bmm(flat, back) if onto is None else onto.view(rows.shape).baddbmm_(flat, back)
        shape = self.window.map_shape
        return [found.view(len(found), -1, shape.height, shape.width, shape.pitch)]

    def _weight_gradient(self, ctx: Pass, rows: Tensor, grad: Tensor) -> None:
        """Write the gradient of the weights."""
        assert ctx.grads is not None
        if self.frozen[0]:
            return
        if self.lowering == "expanded":
            wide = torch.bmm(rows.transpose(1, 2), grad)
            ctx.ops.collect_taps(wide, self.table, self._taps(ctx.grads))
            return
        out = ctx.grads.narrow(1, self.weight, self.columns * self.map_shape.pitch)
        out = out.view(len(out), self.columns, self.map_shape.pitch)
        parts = _split_count(rows, grad) if rows.is_cuda else 1
        if parts == 1:
            torch.bmm(rows.transpose(1, 2), grad, out=out)
            return
        size = rows.shape[1] // parts
        cut = torch.bmm(
            rows.view(-1, size, rows.shape[2]).transpose(1, 2), grad.reshape(-1, size, grad.shape[2])
        )
        torch.sum(cut.view(len(rows), parts, *cut.shape[1:]), 1, out=out)


def _split_count(rows: Tensor, grad: Tensor) -> int:
    """Return in how many parts to split a sum over many rows, so that enough blocks run in parallel."""
    tiles = len(rows) * -(-rows.shape[2] // 64) * -(-grad.shape[2] // 64)
    parts = 1
    while (
        tiles * parts < MIN_BLOCKS
        and rows.shape[1] % (2 * parts) == 0
        and rows.shape[1] // (2 * parts) >= 256
    ):
        parts *= 2
    return parts


@dataclass(eq=False)
class BatchNorm:
    """BatchNorm over a client's own real samples, then optionally a residual, then ReLU."""

    map_shape: MapShape
    weight: int
    bias: int
    running: tuple[int, int]
    momentum: float
    eps: float
    relu: bool = False
    scratch: bool = False  # its weights are frozen, so their gradients are dropped

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Normalise; with running statistics in evaluation."""
        x, residual = inputs[0], inputs[1] if len(inputs) > 1 else None
        weight, bias = (
            ctx.master_weights.narrow(1, at, self.map_shape.pitch) for at in (self.weight, self.bias)
        )
        mean, var = (ctx.stats.narrow(1, at, self.map_shape.pitch) for at in self.running)
        if ctx.count is None:
            return ctx.ops.affine(x, mean, (var + self.eps).rsqrt(), weight, bias, residual, self.relu)
        saved = ctx.ops.batch_norm(
            x, ctx.count, weight, bias, (mean, var), self.momentum, self.eps, residual, self.relu
        )
        ctx.saved[id(self)] = (saved, weight)
        return saved.y

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Return the gradients of the input and the residual."""
        assert ctx.count is not None
        saved, weight = ctx.saved.pop(id(self))
        if ctx.grads is None or self.scratch:
            out = (torch.empty_like(weight), torch.empty_like(weight))
        else:
            grads = ctx.grads
            out = (
                grads.narrow(1, self.weight, self.map_shape.pitch),
                grads.narrow(1, self.bias, self.map_shape.pitch),
            )
        back = ctx.ops.batch_norm_backward(grad, saved, ctx.count, weight, out, self.relu)
        return [accumulate(onto, each) for onto, each in zip(into, back, strict=False)]


@dataclass(eq=False)
class MaxPool:
    """Max pooling, followed by ReLU where one came before it: they commute."""

    map_shape: MapShape
    window: Window
    relu: bool = False

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Take the maximum of each window."""
        y, where = ctx.ops.max_pool(inputs[0], self.window, self.relu)
        if ctx.training:
            ctx.saved[id(self)] = where
        return y

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Route gradients to where the maxima were."""
        return [accumulate(into[0], ctx.ops.max_pool_backward(grad, ctx.saved.pop(id(self)), self.window))]


@dataclass(eq=False)
class MeanPool:
    """Average pooling by windows that tile the map."""

    map_shape: MapShape
    window: Window

    def _tiles(self, x: Tensor) -> Tensor:
        kh, kw = self.window.kernel
        used = x[:, :, : self.map_shape.height * kh, : self.map_shape.width * kw]
        shape = (*x.shape[:2], self.map_shape.height, kh, self.map_shape.width, kw, x.shape[4])
        a, b, y, row, c = used.stride()
        return used.as_strided(shape, (a, b, y * kh, y, row * kw, row, c))

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Take the mean of each window."""
        return self._tiles(inputs[0]).mean((3, 5))

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Distribute each gradient evenly."""
        map_shape = self.window.map_shape
        back = grad.new_zeros(*grad.shape[:2], map_shape.height, map_shape.width, map_shape.pitch)
        self._tiles(back).add_((grad / self.window.taps)[:, :, :, None, :, None])
        return [accumulate(into[0], back)]


Derivative = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False)
class Activation:
    """An activation function and its derivative in terms of input and output."""

    map_shape: MapShape
    function: Callable[[Tensor], Tensor]
    derivative: Derivative

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Apply the function; padding channels stay zero."""
        y = self.function(inputs[0])
        if self.map_shape.pitch > self.map_shape.channels:
            y[..., self.map_shape.channels :] = 0
        if ctx.training:
            ctx.saved[id(self)] = (inputs[0], y)
        return y

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Multiply by the derivative."""
        return [accumulate(into[0], grad.mul_(self.derivative(*ctx.saved.pop(id(self)))))]


@dataclass(eq=False)
class Add:
    """The sum of two values."""

    map_shape: MapShape

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Add."""
        return inputs[0] + inputs[1]

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Pass the gradient to both inputs, each its own copy."""
        return [accumulate(into[0], grad.clone()), accumulate(into[1], grad)]


@dataclass(eq=False)
class ImplicitConv:
    """A convolution without im2col, fused with the ReLU and pooling that follow.

    It pays where windows see few values, since im2col is then most of the memory traffic. Weights lie as
    [taps pitch] rows of out pitch columns, the bias in the row below.
    """

    map_shape: MapShape
    geometry: ConvPool
    weight: int  # offset of the matrix
    columns: int
    bias: bool
    reads_images: bool  # then its input needs no gradient
    relu: bool = False

    def _matrix(self, packed: Tensor) -> Tensor:
        part = packed.narrow(1, self.weight, self.columns * self.map_shape.pitch)
        return part.view(len(part), self.columns, self.map_shape.pitch)

    def forward(self, ctx: Pass, inputs: list[Tensor]) -> Tensor:
        """Convolve, pool, apply ReLU."""
        source = ctx.data if self.reads_images else inputs[0]
        assert source is not None
        weights = self._matrix(ctx.weights)
        slid = ctx.ops.conv_pool(source, weights, self.geometry, self.bias, self.relu, ctx.training)
        if ctx.training:
            ctx.saved[id(self)] = (slid, weights)
        return slid.y

    def backward(self, ctx: Pass, grad: Tensor, into: list[Tensor | None]) -> list[Tensor]:
        """Return the gradient of the input and write that of the weights."""
        slid, weights = ctx.saved.pop(id(self))
        out = None if ctx.grads is None else self._matrix(ctx.grads)
        back = ctx.ops.conv_pool_backward(
            grad, slid, weights, self.geometry, self.relu, out, self.bias, into[0], not self.reads_images
        )
        return [] if back is None else [back]
