"""Launches the kernels of convolutions without im2col, and chooses their tile sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from flameche.training.kernels import triton_conv_kernels as kernels
from flameche.training.kernels.conv_geometry import ConvPool, round_up
from flameche.training.kernels.torch_ops import SavedConv, Source

PROGRAMS = 1056  # eight per multiprocessor of an H100 or H200


@dataclass(frozen=True)
class Tile:
    """The tile of a program: rows (windows), depth (taps by channels), outputs; warps and stages."""

    rows: int
    depth: int
    across: int
    warps: int = 4
    stages: int = 3

    @property
    def how(self) -> dict[str, int]:
        """Return the launch options."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class KernelShape:
    """The sizes that the kernels are compiled for."""

    geometry: ConvPool
    outputs: int  # output pitch
    bytes: bool  # whether the source is images as bytes
    width: int  # bytes per value

    @property
    def pitch(self) -> int:
        """Return the channels of a pixel in memory."""
        return self.geometry.window.map_shape.pitch

    @property
    def each(self) -> int:
        """Return the outputs as a power of two; at least 16 over all positions of the pooling window."""
        return max(int(triton.next_power_of_2(self.outputs)), 16 // self.geometry.pool**2)

    @property
    def wide(self) -> int:
        """Return the outputs of all positions of the pooling window."""
        return self.each * self.geometry.pool**2

    @property
    def depth(self) -> int:
        """Return the values in the wider window."""
        return self.geometry.kernel[0] * self.geometry.kernel[1] * self.pitch

    @property
    def block(self) -> int:
        """Return the values of the block of the map by which a window advances."""
        return self.geometry.stride[0] * self.geometry.stride[1] * self.pitch

    @property
    def used(self) -> int:
        """Return the rows of the weights without the bias."""
        return self.geometry.window.taps * self.pitch

    def map(self) -> dict[str, int]:
        """Return the sizes of map and window, by their names in the kernels."""
        map_shape, conv = self.geometry.window.map_shape, self.geometry
        return {
            "H": map_shape.height, "W": map_shape.width, "P": self.pitch, "KY": conv.kernel[0],
            "KX": conv.kernel[1], "SY": conv.stride[0], "SX": conv.stride[1], "PH": conv.window.padding[0],
            "PW": conv.window.padding[1], "HP": conv.out[0], "WP": conv.out[1], "N": self.outputs,
            "BN": self.each, "J": self.wide,
        }  # fmt: skip

    def weights(self, columns: int) -> dict[str, int]:
        """Return the sizes that relate weights and expanded weights, by their names in the kernels."""
        window, named = self.geometry.window, self.map()
        same = {key: named[key] for key in ("P", "KY", "KX", "N", "BN", "J")}
        sizes = dict(zip(("KH", "KW", "SH", "SW"), (*window.kernel, *window.stride), strict=True))
        return {**same, **sizes, "POOL": self.geometry.pool, "COLUMNS": columns}

    def tile(self, kernel: str) -> Tile:
        """Choose a program's tile: the fastest of those tried on an H200 (results/gpu-train.md)."""
        across, half, pooled = min(self.wide, 64), self.width == 2, self.geometry.pool > 1
        if kernel == "forward":
            wide = self.wide if pooled else min(self.wide, 128)  # positions of a pooling window stay together
            if self.bytes:
                return Tile(128, 16, wide) if self.depth < 64 else Tile(64, 64, wide, stages=2)
            return Tile(128, 64 if half else 32, wide)
        if kernel == "weight":
            if self.bytes and pooled and half:
                return Tile(64, 64, across, warps=8)
            return Tile(64 if pooled and not self.bytes else 32, 64, across)
        block = max(16, int(triton.next_power_of_2(self.block)))
        return Tile(128 if half and not pooled else 64, min(64, block), across)


class ConvKernels:
    """Convolutions with their backward passes; `overrides` replaces chosen tiles, for experiments."""

    def __init__(self) -> None:
        self.overrides: dict[tuple[str, KernelShape], Tile] = {}

    def _tile(self, kernel: str, shape: KernelShape) -> Tile:
        return self.overrides.get((kernel, shape)) or shape.tile(kernel)

    def forward(
        self, source: Source, weights: Tensor, geometry: ConvPool, bias: bool, relu: bool, keep: bool
    ) -> SavedConv:
        """Convolve and pool; weights [M columns N], with a bias in the row below the taps."""
        clients, outputs = len(weights), weights.shape[2]
        shape = KernelShape(geometry, outputs, isinstance(source, tuple), weights.element_size())
        tile = self._tile("forward", shape)
        columns = round_up(shape.depth, tile.depth)
        wide = weights.new_empty(clients, columns, shape.wide)
        turned = weights.new_empty(clients, shape.wide, columns)
        kernels.expand_weights_kernel[(triton.cdiv(columns, 32), clients)](
            weights, wide, turned, weights.stride(0), **shape.weights(columns), BK=32
        )
        values, index, images = _apart(source)
        rows = images * geometry.out[0] * geometry.out[1]
        out = weights.new_empty(clients, images, *geometry.out, outputs)
        where = torch.empty_like(out, dtype=torch.uint8) if keep else None
        below = weights[:, shape.used :] if bias else weights
        kernels.conv_pool_kernel[(triton.cdiv(rows, tile.rows), shape.wide // tile.across, clients)](
            values, index, turned, below, out, out if where is None else where, rows, images,
            weights.stride(0), **shape.map(), COLUMNS=columns, SUBS=geometry.pool**2, BIAS=bias, RELU=relu,
            KEEP=keep, BYTES=shape.bytes, ROUND=_rounding(), BR=tile.rows, BK=tile.depth, BJ=tile.across,
            **tile.how,
        )  # fmt: skip
        return SavedConv(source, out, where, wide=wide)

    def weight_gradient(
        self, grad: Tensor, saved: SavedConv, geometry: ConvPool, masked: bool, bias: bool, out: Tensor
    ) -> None:
        """Write the gradient of the weights, and of the bias below, to out [M columns N]."""
        shape, where = _shape(grad, saved, geometry)
        values, index, images = _apart(saved.source)
        clients, rows = len(grad), images * geometry.out[0] * geometry.out[1]
        tile = self._tile("weight", shape)
        columns = round_up(shape.depth + bias, tile.depth)
        blocks = columns // tile.depth * (shape.wide // tile.across)
        count = max(1, min(triton.cdiv(rows, tile.rows), PROGRAMS // (blocks * clients)))
        per = round_up(triton.cdiv(rows, count), tile.rows)
        count = triton.cdiv(rows, per)
        parts = torch.empty(clients, count, columns, shape.wide, dtype=torch.float32, device=grad.device)
        kernels.conv_weight_gradient_kernel[(blocks, count, clients)](
            values, index, grad, where, parts, rows, images, per, **shape.map(), COLUMNS=columns,
            MASKED=masked, BYTES=shape.bytes, ROUND=_rounding(), BR=tile.rows, BK=tile.depth, BJ=tile.across,
            **tile.how,
        )  # fmt: skip
        used = (shape.used + bias) * shape.outputs
        kernels.sum_weight_gradient_kernel[(triton.cdiv(used, 128), clients)](
            parts, out, out.stride(0), count, used, **shape.weights(columns), BLOCK=128
        )

    def input_gradient(
        self, grad: Tensor, saved: SavedConv, geometry: ConvPool, masked: bool, into: Tensor | None
    ) -> Tensor:
        """Return the gradient of the map, added to `into` where given."""
        assert saved.wide is not None
        shape, where = _shape(grad, saved, geometry)
        map_shape, (sy, sx), (ph, pw) = geometry.window.map_shape, geometry.stride, geometry.window.padding
        clients, images = grad.shape[:2]
        high, wide = triton.cdiv(map_shape.height + ph, sy), triton.cdiv(map_shape.width + pw, sx)
        rows = images * high * wide
        out = into
        if out is None:
            out = grad.new_empty(clients, images, map_shape.height, map_shape.width, map_shape.pitch)
        tile = self._tile("input", shape)
        grid = (triton.cdiv(rows, tile.rows), triton.cdiv(shape.block, tile.depth), clients)
        kernels.conv_input_gradient_kernel[grid](
            grad, where, saved.wide, out, out, rows, images, saved.wide.stride(0), **shape.map(), HB=high,
            WB=wide, MASKED=masked, ADD=into is not None, ROUND=_rounding(), BR=tile.rows, BQ=tile.depth,
            BJ=tile.across, **tile.how,
        )  # fmt: skip
        return out


def _shape(grad: Tensor, saved: SavedConv, geometry: ConvPool) -> tuple[KernelShape, Tensor]:
    shape = KernelShape(geometry, grad.shape[-1], isinstance(saved.source, tuple), grad.element_size())
    return shape, grad if saved.where is None else saved.where


def _apart(source: Source) -> tuple[Tensor, Tensor, int]:
    """Return the values of a source, their index (or the values again), and the images of a client."""
    if isinstance(source, tuple):
        return *source, source[1].shape[1]
    return source, source, source.shape[1]


def _rounding() -> Any:
    """Return how float32 products round, following torch's setting."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
