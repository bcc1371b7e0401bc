"""Where every weight lies: from the flat models that travel to the packed ones that train, and back.

A packed model has each layer's weights as the matrix its product needs, aligned, trained ones first. Weights
that no image ever meets (the outer taps of a 3x3 window over a 1x1 map) never change and stay out of it,
unless a proximal term moves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from flameche.training.windows import up

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
