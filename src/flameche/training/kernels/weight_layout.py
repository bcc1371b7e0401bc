"""Gives layers with weights their place: how a product is laid out, and where its weights lie packed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from flameche.training.kernels.conv_geometry import Form, Slide, Window, up
from flameche.training.kernels.layers import Convolution, Norm, Product

ALIGNED = 64  # numbers: 256 bytes in float32, so that every matrix begins where wide loads may


@dataclass(frozen=True)
class Piece:
    """A tensor of the network [outputs channels size], of which `taps` lie packed as [taps pitch width].

    Beyond channels and outputs, the packed matrix holds zeros. A vector has one channel and one tap.
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
        """View what belongs to the network in packed models, as [M taps channels outputs]."""
        part = rows.narrow(1, self.offset, len(self.taps) * self.pitch * self.width)
        whole = part.view(len(rows), len(self.taps), self.pitch, self.width)
        return whole[:, :, : self.channels, : self.outputs]

    def both(self, flat: Tensor, packed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Show the same numbers in both, part by part."""
        mine, theirs = self.flat(flat), self.packed(packed)
        if self.taps == tuple(range(self.size)):
            yield mine, theirs
            return
        for n, tap in enumerate(self.taps):
            yield mine[:, tap], theirs[:, n]


@dataclass
class Layout:
    """The pieces of a network and how many numbers a packed model has; the first `trained` of them change."""

    trained: int = 0
    total: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def room(self, numbers: int, frozen: bool = False) -> int:
        """Set numbers aside, frozen ones behind the trained; return where they begin."""
        if frozen:
            offset = self.total
            self.total = up(offset + numbers, ALIGNED)
            return offset
        offset = self.trained
        self.trained = up(offset + numbers, ALIGNED)
        self.total = max(self.total, self.trained)
        return offset

    def pack(self, flat: Tensor, packed: Tensor) -> None:
        """Copy flat models [M P] into packed ones [M T], whose other numbers stay as they are."""
        for piece in self.pieces:
            for source, target in piece.both(flat, packed):
                target.copy_(source)

    def unpack(self, packed: Tensor, flat: Tensor) -> None:
        """Copy packed models back into flat ones, whose other numbers stay as they are."""
        for piece in self.pieces:
            for target, source in piece.both(flat, packed):
                target.copy_(source)


Sliding = Literal["none", "small", "first", "all"]  # convolutions done without laying out patches


class Untranslatable(Exception):
    """A network has something for which there is no stacked layer."""


class Builder:
    """Lays out the weights and statistics of one network.

    `align` is what counts of channels and columns are rounded up to; `trim` leaves out weights that no image
    ever meets; `trained` is the room that trained weights will take, frozen ones come behind it.
    """

    def __init__(self, module: nn.Module, align: int, trim: bool, sliding: Sliding, trained: int = 0) -> None:
        self.align, self.trim, self.sliding = align, trim, sliding
        self.weights, self.stats = Layout(total=trained), Layout()
        self._starts = _starts(dict(module.named_parameters()))
        self._buffers = _starts({n: b for n, b in module.named_buffers() if b.is_floating_point()})
        self._trains = {name: own.requires_grad for name, own in module.named_parameters()}

    def conv(self, name: str, layer: nn.Conv2d, form: Form, first: bool) -> Product | Convolution:
        """Choose how a convolution becomes a product."""
        if layer.groups != 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
            raise Untranslatable(f"{name}: groups, dilation or padding other than by zeros")
        if isinstance(layer.padding, str):
            raise Untranslatable(f"{name}: padding = {layer.padding!r}")
        kernel, stride, padding = (tuple(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        window = Window(form, kernel, stride, padding)  # type: ignore[arg-type]
        out = Form(*window.out, layer.out_channels, up(layer.out_channels, self.align))
        table = window.table() if form.pixels <= window.taps else []
        met = all(tap >= 0 for row in table for tap in row)
        if window.plain:
            return self._direct(name, layer, window, out, [0], first)
        if table and met and len(table[0]) == 1:
            return self._direct(name, layer, window, out, [row[0] for row in table], first)
        if table and met:
            return self._spread(name, layer, window, out, table, first)
        if self._slides(window, out, first) and not any(self._frozen(name, layer)):
            return self._convolution(name, layer, window, out, first)
        return self._patches(name, layer, window, out, first)

    def _slides(self, window: Window, out: Form, first: bool) -> bool:
        """Tell whether a convolution is done without laying out patches."""
        if self.sliding == "none":
            return False
        small = window.form.pitch <= 16 and out.pitch <= 32
        return small or (self.sliding != "small" and first and out.pitch <= 64) or self.sliding == "all"

    def _convolution(self, name: str, layer: Any, window: Window, out: Form, first: bool) -> Convolution:
        form = window.form
        pitch = form.channels if first else form.pitch  # bytes lie close together
        window = replace(window, form=replace(form, channels=pitch, pitch=pitch))
        used, ones = window.taps * pitch, layer.bias is not None
        columns = up(used + ones, self.align)
        weight = self._matrix(
            name, window, list(range(window.taps)), pitch, out, columns * out.pitch, form.channels
        )
        if ones:
            self._piece(f"{name}.bias", (out.channels, 1, 1), (0,), 1, out.pitch, weight + used * out.pitch)
        return Convolution(out, Slide(window), weight, columns, ones, first)

    def linear(self, name: str, layer: nn.Linear, form: Form, first: bool) -> Product:
        """Take a linear layer as a convolution whose window is the whole map."""
        if layer.in_features != form.channels * form.pixels:
            raise Untranslatable(f"{name}: {layer.in_features} features of a map of another size")
        window = Window(form, (form.height, form.width), (1, 1), (0, 0))
        out = Form(1, 1, layer.out_features, up(layer.out_features, self.align))
        return self._direct(name, layer, window, out, list(range(form.pixels)), first)

    def norm(self, name: str, layer: Any, form: Form) -> Norm:
        """Place a BatchNorm's weights and running statistics."""
        if layer.momentum is None or layer.running_mean is None or layer.weight is None:
            raise Untranslatable(
                f"{name}: BatchNorm that counts batches, keeps no statistics or has no weights"
            )
        trains = self._trained(f"{name}.weight"), self._trained(f"{name}.bias")
        if trains[0] != trains[1]:
            raise Untranslatable(f"{name}: half of it is frozen")
        weight, bias = (self._vector(f"{name}.{part}", form) for part in ("weight", "bias"))
        running = tuple(self._statistic(f"{name}.running_{part}", form) for part in ("mean", "var"))
        return Norm(form, weight, bias, running, layer.momentum, layer.eps, scratch=not trains[0])  # type: ignore[arg-type]

    def _direct(
        self, name: str, layer: Any, window: Window, out: Form, taps: list[int], first: bool
    ) -> Product:
        pitch = window.form.pitch
        weight = self._matrix(name, window, taps, pitch, out, len(taps) * pitch * out.pitch)
        bias = None if layer.bias is None else self._vector(f"{name}.bias", out)
        return Product(
            out,
            window,
            "direct",
            weight,
            len(taps) * pitch,
            bias,
            False,
            self._frozen(name, layer),
            first=first,
        )

    def _spread(
        self, name: str, layer: Any, window: Window, out: Form, table: list[list[int]], first: bool
    ) -> Product:
        taps = sorted({tap for row in table for tap in row})
        pitch = window.form.pitch
        weight = self._matrix(name, window, taps, pitch, out, len(taps) * pitch * out.pitch)
        bias = None if layer.bias is None else self._vector(f"{name}.bias", out)
        places = [[taps.index(tap) for tap in row] for row in table]
        columns = window.form.floats
        return Product(
            out,
            window,
            "spread",
            weight,
            columns,
            bias,
            False,
            self._frozen(name, layer),
            places,
            first=first,
        )

    def _patches(self, name: str, layer: Any, window: Window, out: Form, first: bool) -> Product:
        used, channels = window.taps * window.form.channels, window.form.channels
        frozen = self._frozen(name, layer)
        ones = layer.bias is not None and frozen[0] == frozen[1]
        columns = up(used + ones, self.align)
        taps = list(range(window.taps))
        weight = self._matrix(name, window, taps, channels, out, columns * out.pitch)
        bias = None
        if ones:
            self._piece(f"{name}.bias", (out.channels, 1, 1), (0,), 1, out.pitch, weight + used * out.pitch)
        elif layer.bias is not None:
            bias = self._vector(f"{name}.bias", out)
        return Product(out, window, "patches", weight, columns, bias, ones, frozen, first=first)

    def _matrix(
        self,
        name: str,
        window: Window,
        taps: list[int],
        pitch: int,
        out: Form,
        numbers: int,
        channels: int | None = None,
    ) -> int:
        """Set a product's weights aside; those no image meets come behind, if they are kept at all."""
        name, frozen = f"{name}.weight", not self._trained(f"{name}.weight")
        shape = (out.channels, channels or window.form.channels, window.taps)
        offset = self.weights.room(numbers, frozen)
        self._piece(name, shape, tuple(taps), pitch, out.pitch, offset)
        unmet = tuple(tap for tap in range(window.taps) if tap not in taps)
        if unmet and not self.trim:
            behind = self.weights.room(len(unmet) * pitch * out.pitch, frozen)
            self._piece(name, shape, unmet, pitch, out.pitch, behind)
        return offset

    def _vector(self, name: str, form: Form) -> int:
        offset = self.weights.room(form.pitch, not self._trained(name))
        self._piece(name, (form.channels, 1, 1), (0,), 1, form.pitch, offset)
        return offset

    def _statistic(self, name: str, form: Form) -> int:
        if name not in self._buffers:
            raise Untranslatable(f"{name} is shared")
        offset = self.stats.room(form.pitch)
        start = self._buffers[name]
        self.stats.pieces.append(
            Piece(start, form.channels, 1, 1, taps=(0,), pitch=1, width=form.pitch, offset=offset)
        )
        return offset

    def _piece(
        self,
        name: str,
        shape: tuple[int, int, int],
        taps: tuple[int, ...],
        pitch: int,
        width: int,
        offset: int,
    ) -> None:
        self.weights.pieces.append(Piece(self._starts[name], *shape, taps, pitch, width, offset))

    def _trained(self, name: str) -> bool:
        if name not in self._trains:
            raise Untranslatable(f"{name} is shared")
        return self._trains[name]

    def _frozen(self, name: str, layer: Any) -> tuple[bool, bool]:
        bias = layer.bias is not None and not self._trained(f"{name}.bias")
        return not self._trained(f"{name}.weight"), bias


def _starts(named: dict[str, Tensor]) -> dict[str, int]:
    """Tell where each tensor begins in a flat model."""
    ends = np.cumsum([0, *(own.numel() for own in named.values())])
    return {name: int(start) for name, start in zip(named, ends, strict=False)}
