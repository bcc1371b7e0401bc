"""Where every weight lies in flat models, which are sent, and in packed models, which train.

A packed model stores each layer's weights as the aligned matrix that its product needs, trained weights
first. Weights that never affect the output (outer entries of a 3x3 kernel over a 1x1 map) do not change and
are left out, unless a proximal term moves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from flameche.training.kernels.conv_geometry import ConvPool, MapShape, Window, round_up
from flameche.training.kernels.layers import BatchNorm, ImplicitConv, MatMul

ALIGNED = 64  # numbers, 256 bytes in float32: every matrix begins where wide loads may


@dataclass(frozen=True)
class PackedTensor:
    """A tensor of the network [outputs channels size], of which `taps` are packed as [taps pitch width].

    Beyond channels and outputs, the packed matrix is zero. A vector has one channel and one tap.
    """

    start: int
    outputs: int
    channels: int
    size: int
    taps: tuple[int, ...]
    pitch: int
    width: int
    offset: int

    def flat(self, rows: Tensor) -> Tensor:
        """View the tensor in flat models [M P], as [M size channels outputs]."""
        part = rows.narrow(1, self.start, self.outputs * self.channels * self.size)
        return part.view(len(rows), self.outputs, self.channels, self.size).permute(0, 3, 2, 1)

    def packed(self, rows: Tensor) -> Tensor:
        """View the network's part of packed models, as [M taps channels outputs]."""
        part = rows.narrow(1, self.offset, len(self.taps) * self.pitch * self.width)
        whole = part.view(len(rows), len(self.taps), self.pitch, self.width)
        return whole[:, :, : self.channels, : self.outputs]

    def views(self, flat: Tensor, packed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of views of the same numbers, in flat and in packed models."""
        mine, theirs = self.flat(flat), self.packed(packed)
        if self.taps == tuple(range(self.size)):
            yield mine, theirs
            return
        for n, tap in enumerate(self.taps):
            yield mine[:, tap], theirs[:, n]


@dataclass
class WeightLayout:
    """The tensors of a network and the size of a packed model; its first `trained` numbers change."""

    trained: int = 0
    total: int = 0
    tensors: list[PackedTensor] = field(default_factory=list)

    def reserve(self, numbers: int, frozen: bool = False) -> int:
        """Reserve numbers, frozen ones behind the trained; return their offset."""
        if frozen:
            offset = self.total
            self.total = round_up(offset + numbers, ALIGNED)
            return offset
        offset = self.trained
        self.trained = round_up(offset + numbers, ALIGNED)
        self.total = max(self.total, self.trained)
        return offset

    def pack(self, flat: Tensor, packed: Tensor) -> None:
        """Copy flat models [M P] into packed ones [M T]; other numbers stay."""
        for piece in self.tensors:
            for source, target in piece.views(flat, packed):
                target.copy_(source)

    def unpack(self, packed: Tensor, flat: Tensor) -> None:
        """Copy packed models back into flat ones; other numbers stay."""
        for piece in self.tensors:
            for target, source in piece.views(flat, packed):
                target.copy_(source)


ImplicitConvs = Literal["none", "small", "first", "all"]  # convolutions without im2col


class UnsupportedModel(Exception):
    """The model has an operation without a stacked layer."""


class LayerBuilder:
    """Creates the layers of one network that have weights or statistics, and lays these out.

    Channels and columns are padded to multiples of `align`; `drop_unused` leaves out weights that never
    affect the output; `trained` is the size of the trained part, which frozen weights follow.
    """

    def __init__(
        self,
        module: nn.Module,
        align: int,
        drop_unused: bool,
        implicit_convs: ImplicitConvs,
        trained: int = 0,
    ) -> None:
        self.align, self.drop_unused, self.implicit_convs = align, drop_unused, implicit_convs
        self.weights, self.stats = WeightLayout(total=trained), WeightLayout()
        self._starts = _starts(dict(module.named_parameters()))
        self._buffers = _starts({n: b for n, b in module.named_buffers() if b.is_floating_point()})
        self._trains = {name: own.requires_grad for name, own in module.named_parameters()}

    def conv(
        self, name: str, layer: nn.Conv2d, map_shape: MapShape, reads_images: bool
    ) -> MatMul | ImplicitConv:
        """Choose how a convolution becomes a product."""
        if layer.groups != 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
            raise UnsupportedModel(f"{name}: groups, dilation or padding other than by zeros")
        if isinstance(layer.padding, str):
            raise UnsupportedModel(f"{name}: padding = {layer.padding!r}")
        kernel, stride, padding = (tuple(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        window = Window(map_shape, kernel, stride, padding)  # type: ignore[arg-type]
        out = MapShape(*window.out, layer.out_channels, round_up(layer.out_channels, self.align))
        table = window.table() if map_shape.pixels <= window.taps else []
        dense = all(tap >= 0 for row in table for tap in row)
        if window.plain:
            return self._direct(name, layer, window, out, [0], reads_images)
        if table and dense and len(table[0]) == 1:
            return self._direct(name, layer, window, out, [row[0] for row in table], reads_images)
        if table and dense:
            return self._expanded(name, layer, window, out, table, reads_images)
        if self._is_implicit(window, out, reads_images) and not any(self._frozen(name, layer)):
            return self._implicit_conv(name, layer, window, out, reads_images)
        return self._im2col(name, layer, window, out, reads_images)

    def _is_implicit(self, window: Window, out: MapShape, reads_images: bool) -> bool:
        """Tell whether a convolution runs without im2col."""
        if self.implicit_convs == "none":
            return False
        small = window.map_shape.pitch <= 16 and out.pitch <= 32
        return (
            small
            or (self.implicit_convs != "small" and reads_images and out.pitch <= 64)
            or self.implicit_convs == "all"
        )

    def _implicit_conv(
        self, name: str, layer: Any, window: Window, out: MapShape, reads_images: bool
    ) -> ImplicitConv:
        map_shape = window.map_shape
        pitch = map_shape.channels if reads_images else map_shape.pitch  # bytes are not padded
        window = replace(window, map_shape=replace(map_shape, channels=pitch, pitch=pitch))
        used, append_one = window.taps * pitch, layer.bias is not None
        columns = round_up(used + append_one, self.align)
        weight = self._reserve_matrix(
            name, window, list(range(window.taps)), pitch, out, columns * out.pitch, map_shape.channels
        )
        if append_one:
            self._add_tensor(
                f"{name}.bias", (out.channels, 1, 1), (0,), 1, out.pitch, weight + used * out.pitch
            )
        return ImplicitConv(out, ConvPool(window), weight, columns, append_one, reads_images)

    def linear(self, name: str, layer: nn.Linear, map_shape: MapShape, reads_images: bool) -> MatMul:
        """Create a linear layer, as a convolution whose window is the whole map."""
        if layer.in_features != map_shape.channels * map_shape.pixels:
            raise UnsupportedModel(f"{name}: {layer.in_features} features of a map of another size")
        window = Window(map_shape, (map_shape.height, map_shape.width), (1, 1), (0, 0))
        out = MapShape(1, 1, layer.out_features, round_up(layer.out_features, self.align))
        return self._direct(name, layer, window, out, list(range(map_shape.pixels)), reads_images)

    def norm(self, name: str, layer: Any, map_shape: MapShape) -> BatchNorm:
        """Create a BatchNorm with its weights and running statistics."""
        if layer.momentum is None or layer.running_mean is None or layer.weight is None:
            raise UnsupportedModel(
                f"{name}: BatchNorm that counts batches, keeps no statistics or has no weights"
            )
        trains = self._trained(f"{name}.weight"), self._trained(f"{name}.bias")
        if trains[0] != trains[1]:
            raise UnsupportedModel(f"{name}: only one of weight and bias is frozen")
        weight, bias = (self._reserve_vector(f"{name}.{part}", map_shape) for part in ("weight", "bias"))
        running = tuple(
            self._reserve_statistic(f"{name}.running_{part}", map_shape) for part in ("mean", "var")
        )
        return BatchNorm(map_shape, weight, bias, running, layer.momentum, layer.eps, scratch=not trains[0])  # type: ignore[arg-type]

    def _direct(
        self, name: str, layer: Any, window: Window, out: MapShape, taps: list[int], reads_images: bool
    ) -> MatMul:
        pitch = window.map_shape.pitch
        weight = self._reserve_matrix(name, window, taps, pitch, out, len(taps) * pitch * out.pitch)
        bias = None if layer.bias is None else self._reserve_vector(f"{name}.bias", out)
        return MatMul(
            out,
            window,
            "direct",
            weight,
            len(taps) * pitch,
            bias,
            False,
            self._frozen(name, layer),
            reads_images=reads_images,
        )

    def _expanded(
        self, name: str, layer: Any, window: Window, out: MapShape, table: list[list[int]], reads_images: bool
    ) -> MatMul:
        taps = sorted({tap for row in table for tap in row})
        pitch = window.map_shape.pitch
        weight = self._reserve_matrix(name, window, taps, pitch, out, len(taps) * pitch * out.pitch)
        bias = None if layer.bias is None else self._reserve_vector(f"{name}.bias", out)
        places = [[taps.index(tap) for tap in row] for row in table]
        columns = window.map_shape.numel
        return MatMul(
            out,
            window,
            "expanded",
            weight,
            columns,
            bias,
            False,
            self._frozen(name, layer),
            places,
            reads_images=reads_images,
        )

    def _im2col(self, name: str, layer: Any, window: Window, out: MapShape, reads_images: bool) -> MatMul:
        used, channels = window.taps * window.map_shape.channels, window.map_shape.channels
        frozen = self._frozen(name, layer)
        append_one = layer.bias is not None and frozen[0] == frozen[1]
        columns = round_up(used + append_one, self.align)
        taps = list(range(window.taps))
        weight = self._reserve_matrix(name, window, taps, channels, out, columns * out.pitch)
        bias = None
        if append_one:
            self._add_tensor(
                f"{name}.bias", (out.channels, 1, 1), (0,), 1, out.pitch, weight + used * out.pitch
            )
        elif layer.bias is not None:
            bias = self._reserve_vector(f"{name}.bias", out)
        return MatMul(
            out, window, "im2col", weight, columns, bias, append_one, frozen, reads_images=reads_images
        )

    def _reserve_matrix(
        self,
        name: str,
        window: Window,
        taps: list[int],
        pitch: int,
        out: MapShape,
        numbers: int,
        channels: int | None = None,
    ) -> int:
        """Reserve a product's weights; unused ones go behind, if they are kept at all."""
        name, frozen = f"{name}.weight", not self._trained(f"{name}.weight")
        shape = (out.channels, channels or window.map_shape.channels, window.taps)
        offset = self.weights.reserve(numbers, frozen)
        self._add_tensor(name, shape, tuple(taps), pitch, out.pitch, offset)
        unused = tuple(tap for tap in range(window.taps) if tap not in taps)
        if unused and not self.drop_unused:
            behind = self.weights.reserve(len(unused) * pitch * out.pitch, frozen)
            self._add_tensor(name, shape, unused, pitch, out.pitch, behind)
        return offset

    def _reserve_vector(self, name: str, map_shape: MapShape) -> int:
        offset = self.weights.reserve(map_shape.pitch, not self._trained(name))
        self._add_tensor(name, (map_shape.channels, 1, 1), (0,), 1, map_shape.pitch, offset)
        return offset

    def _reserve_statistic(self, name: str, map_shape: MapShape) -> int:
        if name not in self._buffers:
            raise UnsupportedModel(f"{name} is shared")
        offset = self.stats.reserve(map_shape.pitch)
        start = self._buffers[name]
        self.stats.tensors.append(
            PackedTensor(
                start, map_shape.channels, 1, 1, taps=(0,), pitch=1, width=map_shape.pitch, offset=offset
            )
        )
        return offset

    def _add_tensor(
        self,
        name: str,
        shape: tuple[int, int, int],
        taps: tuple[int, ...],
        pitch: int,
        width: int,
        offset: int,
    ) -> None:
        self.weights.tensors.append(PackedTensor(self._starts[name], *shape, taps, pitch, width, offset))

    def _trained(self, name: str) -> bool:
        if name not in self._trains:
            raise UnsupportedModel(f"{name} is shared")
        return self._trains[name]

    def _frozen(self, name: str, layer: Any) -> tuple[bool, bool]:
        bias = layer.bias is not None and not self._trained(f"{name}.bias")
        return not self._trained(f"{name}.weight"), bias


def _starts(named: dict[str, Tensor]) -> dict[str, int]:
    """Return where each tensor begins in a flat model."""
    ends = np.cumsum([0, *(own.numel() for own in named.values())])
    return {name: int(start) for name, start in zip(named, ends, strict=False)}
