"""The operations of stacked layers as Triton kernels, with as few passes over memory as possible."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from flameche.training.kernels import triton_kernels as kernels
from flameche.training.kernels.conv_geometry import ConvPool, Window
from flameche.training.kernels.torch_ops import (
    BETA1,
    BETA2,
    EPS,
    SavedConv,
    SavedNorm,
    Source,
    Table,
    TorchOps,
)
from flameche.training.kernels.triton_conv import ConvKernels

TILE = 4096  # values per program
PROGRAMS = 1056  # eight per multiprocessor of an H100 or H200
STEPS = 2**14  # tabulated bias corrections of Adam; later ones are 1 in float32


class TritonOps(TorchOps):
    """The operations on CUDA, in float32 and bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_kernels = ConvKernels()
        self._sizes: dict[tuple[float, torch.device], Tensor] = {}

    def im2col_images(
        self, data: Tensor, index: Tensor, window: Window, columns: int, append_one: bool, dtype: torch.dtype
    ) -> Tensor:
        """Gather bytes and lay out the input of each window, in one pass."""
        return self._patches(
            kernels.im2col_images_kernel, (data, index), index.shape, window, columns, append_one, dtype
        )

    def im2col(self, x: Tensor, window: Window, columns: int, append_one: bool) -> Tensor:
        """Lay out the input of each window."""
        return self._patches(kernels.im2col_kernel, (x,), x.shape[:2], window, columns, append_one, x.dtype)

    def _patches(
        self,
        kernel: Any,
        sources: Any,
        shape: Any,
        window: Window,
        columns: int,
        append_one: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        height, width = window.out
        clients, batch = shape
        out = torch.empty(clients, batch * height * width, columns, dtype=dtype, device=sources[0].device)
        count = clients * batch * height * width
        block = 64 if columns % 64 == 0 else min(32, triton.next_power_of_2(columns))
        tall = TILE // block
        kernel[(triton.cdiv(count, tall), triton.cdiv(columns, block))](
            *sources, out, count, *_sizes(window), window.map_shape.channels, *window.kernel, *window.stride,
            *window.padding, COLUMNS=columns, ONES=append_one, BR=tall, BK=block,
        )  # fmt: skip
        return out

    def col2im(self, patches: Tensor, window: Window, into: Tensor | None) -> Tensor:
        """Sum overlapping windows."""
        map_shape = window.map_shape
        clients, images = len(patches), patches.shape[1] // (window.out[0] * window.out[1])
        out = into
        if out is None:
            out = patches.new_empty(clients, images, map_shape.height, map_shape.width, map_shape.pitch)
        count = clients * images * map_shape.pixels
        wide, tall = _tile(map_shape.pitch)
        kernels.col2im_kernel[(triton.cdiv(count, tall), triton.cdiv(map_shape.pitch, wide))](
            patches, out, out, count, patches.shape[2], *_sizes(window), map_shape.channels, *window.stride,
            *window.padding, *window.kernel, ADD=into is not None, BR=tall, BC=wide,
        )  # fmt: skip
        return out

    def expand_taps(self, weights: Tensor, table: Table) -> Tensor:
        """Build the matrix from a whole small map to the whole output."""
        clients, _, channels, outputs = weights.shape
        places, outs = len(table), len(table[0])
        out = weights.new_empty(clients, places * channels, outs * outputs)
        wide, tall = _tile(outputs)
        grid = (clients, places * outs, triton.cdiv(channels, tall) * triton.cdiv(outputs, wide))
        kernels.expand_taps_kernel[grid](
            weights, self._as_tensor(table, weights), out, weights.stride(0), channels, outputs, places, outs,
            BC=tall, BO=wide,
        )  # fmt: skip
        return out

    def collect_taps(self, wide: Tensor, table: Table, out: Tensor) -> None:
        """Sum each tap's blocks of `expand_taps`' matrix."""
        clients, taps, channels, outputs = out.shape
        lists = [[n for n, t in enumerate(sum(table, [])) if t == tap] for tap in range(taps)]  # noqa: RUF017
        longest = max(map(len, lists))
        pairs = [each + [-1] * (longest - len(each)) for each in lists]
        across, tall = _tile(outputs)
        grid = (clients, taps, triton.cdiv(channels, tall) * triton.cdiv(outputs, across))
        kernels.collect_taps_kernel[grid](
            wide, self._as_tensor(pairs, wide), out, out.stride(0), channels, outputs, len(table),
            len(table[0]), LONG=longest, BC=tall, BO=across,
        )  # fmt: skip

    def batch_norm(
        self,
        x: Tensor,
        count: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        eps: float,
        residual: Tensor | None,
        relu: bool,
    ) -> SavedNorm:
        """Normalise by the real samples' statistics, in two passes."""
        clients, height, pitch, places = _rows(x)
        wide, tall = _tile(pitch)
        chunks, per = _chunks(clients, height, pitch, tall)
        parts = torch.empty(clients, chunks, 2, pitch, dtype=torch.float32, device=x.device)
        mean, scale = (torch.empty(clients, pitch, dtype=torch.float32, device=x.device) for _ in range(2))
        across = triton.cdiv(pitch, wide)
        kernels.moments_kernel[(clients, chunks, across)](
            x, count, parts, height, places, per, pitch, BR=tall, BC=wide
        )
        kernels.moments_end_kernel[(clients, across)](
            parts, count, mean, scale, *running, running[0].stride(0), height, places, per, chunks, momentum,
            eps, pitch, BK=triton.next_power_of_2(chunks), BC=wide,
        )  # fmt: skip
        return SavedNorm(x, self.affine(x, mean, scale, weight, bias, residual, relu), mean, scale)

    def affine(
        self,
        x: Tensor,
        mean: Tensor,
        scale: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        relu: bool,
    ) -> Tensor:
        """Scale and shift each channel; add a residual; apply ReLU."""
        clients, height, pitch, _ = _rows(x)
        wide, tall = _tile(pitch)
        mean, scale = (each.contiguous() for each in (mean, scale))
        out = torch.empty_like(x)
        kernels.affine_kernel[(triton.cdiv(height, tall), clients, triton.cdiv(pitch, wide))](
            x, x if residual is None else residual, out, mean, scale, weight, bias, mean.stride(0),
            weight.stride(0), height, pitch, ADD=residual is not None, RELU=relu, BR=tall, BC=wide,
        )  # fmt: skip
        return out

    def batch_norm_backward(
        self,
        grad: Tensor,
        saved: SavedNorm,
        count: Tensor,
        weight: Tensor,
        out: tuple[Tensor, Tensor],
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        """Go back through `batch_norm`, in two passes."""
        clients, height, pitch, places = _rows(grad)
        wide, tall = _tile(pitch)
        chunks, per = _chunks(clients, height, pitch, tall)
        across = triton.cdiv(pitch, wide)
        parts = torch.empty(clients, chunks, 2, pitch, dtype=torch.float32, device=grad.device)
        sums = torch.empty(clients, 2, pitch, dtype=torch.float32, device=grad.device)
        kernels.norm_sums_kernel[(clients, chunks, across)](
            grad, saved.x, saved.y, saved.mean, saved.scale, parts, height, per, pitch, RELU=relu, BR=tall,
            BC=wide,
        )  # fmt: skip
        kernels.norm_sums_end_kernel[(clients, across)](
            parts, sums, *out, out[0].stride(0), chunks, pitch, BK=triton.next_power_of_2(chunks), BC=wide
        )
        back = torch.empty_like(grad)
        kernels.batch_norm_backward_kernel[(triton.cdiv(height, tall), clients, across)](
            grad, saved.x, saved.mean, saved.scale, weight, sums, count, back, weight.stride(0), height,
            places, pitch, BR=tall, BC=wide,
        )  # fmt: skip
        return back, grad

    def max_pool(self, x: Tensor, window: Window, relu: bool) -> tuple[Tensor, Tensor]:
        """Return each window's maximum and its tap."""
        clients, batch, _, _, pitch = x.shape
        out = x.new_empty(clients, batch, *window.out, pitch)
        where = torch.empty_like(out, dtype=torch.uint8)
        count = out.numel() // pitch
        wide, tall = _tile(pitch)
        kernels.max_pool_kernel[(triton.cdiv(count, tall), triton.cdiv(pitch, wide))](
            x, out, where, count, *_sizes(window), *window.stride, *window.padding, *window.kernel, RELU=relu,
            BR=tall, BC=wide,
        )  # fmt: skip
        return out, where

    def max_pool_backward(self, grad: Tensor, where: Tensor, window: Window) -> Tensor:
        """Route each gradient to where its maximum was."""
        map_shape = window.map_shape
        out = grad.new_empty(*grad.shape[:2], map_shape.height, map_shape.width, map_shape.pitch)
        count = out.numel() // map_shape.pitch
        wide, tall = _tile(map_shape.pitch)
        kernels.max_pool_backward_kernel[(triton.cdiv(count, tall), triton.cdiv(map_shape.pitch, wide))](
            grad, where, out, count, *_sizes(window), *window.stride, *window.padding, *window.kernel,
            BR=tall, BC=wide,
        )  # fmt: skip
        return out

    def conv_pool(
        self, source: Source, weights: Tensor, geometry: ConvPool, bias: bool, relu: bool, keep: bool
    ) -> SavedConv:
        """Convolve and pool without im2col."""
        return self.conv_kernels.forward(source, weights, geometry, bias, relu, keep)

    def conv_pool_backward(
        self,
        grad: Tensor,
        saved: SavedConv,
        weights: Tensor,
        geometry: ConvPool,
        relu: bool,
        out: Tensor | None,
        bias: bool,
        into: Tensor | None,
        wanted: bool,
    ) -> Tensor | None:
        """Go back through `conv_pool`."""
        masked = relu or geometry.pool > 1
        if out is not None:
            self.conv_kernels.weight_gradient(grad, saved, geometry, masked, bias, out)
        return self.conv_kernels.input_gradient(grad, saved, geometry, masked, into) if wanted else None

    def loss_gradient(
        self, logits: Tensor, labels: Tensor, index: Tensor, count: Tensor, classes: int
    ) -> Tensor:
        """Return the gradient of each client's mean loss by logits, in one pass."""
        out, (clients, batch), pitch = torch.empty_like(logits), index.shape, logits.shape[4]
        wide = triton.next_power_of_2(pitch)
        tall = max(1, min(32, TILE // wide))
        kernels.loss_gradient_kernel[(triton.cdiv(batch, tall), clients)](
            logits, labels, index, count, out, batch, classes, pitch, BR=tall, BC=wide
        )
        return out

    def bias_relu(self, y: Tensor, bias: Tensor | None, relu: bool) -> None:
        """Add a bias and apply ReLU, in one pass."""
        if bias is None and not relu:
            return
        clients, height, pitch, _ = _rows(y)
        wide = min(128, triton.next_power_of_2(pitch))
        tall = TILE // 2 // wide
        kernels.bias_relu_kernel[(triton.cdiv(height, tall), triton.cdiv(pitch, wide), clients)](
            y, y if bias is None else bias, height, 0 if bias is None else bias.stride(0), pitch,
            BIAS=bias is not None, RELU=relu, BR=tall, BC=wide,
        )  # fmt: skip

    def bias_relu_backward(self, grad: Tensor, y: Tensor | None, out: Tensor | None) -> None:
        """Zero the gradient where ReLU was zero and sum it for the bias, in one pass."""
        clients, height, pitch, _ = _rows(grad)
        if out is None and y is not None:
            kernels.relu_backward_kernel[(triton.cdiv(grad.numel(), TILE),)](
                grad, y, grad.numel(), BLOCK=TILE
            )
        elif out is not None:
            kernels.bias_relu_backward_kernel[(triton.cdiv(pitch, 16), clients)](
                grad, grad if y is None else y, out, height, out.stride(0), pitch, RELU=y is not None, BR=128,
                BC=16,
            )  # fmt: skip

    def adam(
        self,
        params: Tensor,
        m: Tensor,
        v: Tensor,
        done: Tensor,
        grad: Tensor,
        count: Tensor,
        lr: float,
        low: Tensor | None,
    ) -> None:
        """Take a step like torch.optim.Adam, in one pass."""
        total, block = params.shape[1], 1024
        kernels.adam_kernel[(triton.cdiv(total, block), len(params))](
            params, m, v, grad, params if low is None else low, done, count,
            self._corrections(lr, params.device), STEPS,
            params.stride(0), m.stride(0), grad.stride(0), total, BETA1=BETA1, BETA2=BETA2, EPS=EPS,
            LOW=low is not None, BLOCK=block,
        )  # fmt: skip

    def _corrections(self, lr: float, device: torch.device) -> Tensor:
        """Tabulate Adam's bias corrections per step, which float32 cannot compute precisely."""
        if (lr, device) not in self._sizes:
            t = torch.arange(STEPS, dtype=torch.float64).clamp(min=1)
            both = torch.stack([lr / (1 - BETA1**t), (1 - BETA2**t).rsqrt()], dim=1)
            self._sizes[lr, device] = both.float().to(device)
        return self._sizes[lr, device]


def _tile(pitch: int) -> tuple[int, int]:
    """Choose a program's tile: channels and rows."""
    wide = min(64, triton.next_power_of_2(pitch))
    return wide, TILE // 2 // wide


def _rows(x: Tensor) -> tuple[int, int, int, int]:
    """View a map as rows: clients, rows, channels, pixels of an image."""
    places = x.shape[2] * x.shape[3]
    return len(x), x.shape[1] * places, x.shape[4], places


def _chunks(clients: int, height: int, pitch: int, tall: int) -> tuple[int, int]:
    """Split a sum over rows into enough parts to occupy the GPU; also return the rows of each part."""
    across = clients * -(-pitch // 64)
    most = max(1, -(-height // tall))
    chunks = min(most, max(1, -(-PROGRAMS // across)), 128)
    per = -(-height // chunks)
    per = -(-per // tall) * tall
    return -(-height // per), per


def _sizes(window: Window) -> tuple[int, ...]:
    return (window.map_shape.height, window.map_shape.width, *window.out, window.map_shape.pitch)
