"""The geometry of convolution and pooling: shapes, kernel positions, and which of them overlap the map."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class MapShape:
    """The shape of one image's values: a map of height x width with channels; features are a 1x1 map.

    `pitch` is the number of channels in memory, which may be larger; padding channels are zero.
    """

    height: int
    width: int
    channels: int
    pitch: int

    @property
    def pixels(self) -> int:
        """Return the number of pixels."""
        return self.height * self.width

    @property
    def numel(self) -> int:
        """Return the number of values in memory."""
        return self.pixels * self.pitch


@dataclass(frozen=True)
class Window:
    """A kernel or pooling window sliding over a map; its positions are called taps, row by row."""

    map_shape: MapShape
    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def taps(self) -> int:
        """Return the number of taps."""
        return self.kernel[0] * self.kernel[1]

    @property
    def out(self) -> Pair:
        """Return height and width of the output."""
        size = (self.map_shape.height, self.map_shape.width)
        height, width = (
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(size, self.kernel, self.stride, self.padding, strict=True)
        )
        return height, width

    @property
    def plain(self) -> bool:
        """Tell whether it is a 1x1 window with stride 1."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def table(self) -> list[list[int]]:
        """Return which tap connects each input pixel to each output pixel; -1 for none."""
        height, width = self.out
        found = []
        for y in range(self.map_shape.height):
            for x in range(self.map_shape.width):
                row = []
                for oy in range(height):
                    for ox in range(width):
                        ky = y + self.padding[0] - oy * self.stride[0]
                        kx = x + self.padding[1] - ox * self.stride[1]
                        inside = 0 <= ky < self.kernel[0] and 0 <= kx < self.kernel[1]
                        row.append(ky * self.kernel[1] + kx if inside else -1)
                found.append(row)
        return found


@dataclass(frozen=True)
class ConvPool:
    """A convolution followed by pooling, as one wider window with a wider stride."""

    window: Window
    pool: int = 1  # side and stride of the pooling window

    @property
    def kernel(self) -> Pair:
        """Return height and width of the wider window."""
        (kh, kw), (sh, sw) = self.window.kernel, self.window.stride
        return kh + sh * (self.pool - 1), kw + sw * (self.pool - 1)

    @property
    def stride(self) -> Pair:
        """Return the wider stride."""
        return self.window.stride[0] * self.pool, self.window.stride[1] * self.pool

    @property
    def out(self) -> Pair:
        """Return height and width after pooling."""
        return self.window.out[0] // self.pool, self.window.out[1] // self.pool


def round_up(n: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-n // step) * step
