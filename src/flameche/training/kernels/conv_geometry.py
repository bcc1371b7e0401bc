"""How a window slides over a map: shapes, taps, and which taps ever meet the map."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class MapShape:
    """The shape of one image's values: a map of height x width with channels, features being a 1x1 map.

    `pitch` is the number of channels in memory, which may be larger; those beyond are always zero.
    """

    height: int
    width: int
    channels: int
    pitch: int

    @property
    def pixels(self) -> int:
        """Count the places of the map."""
        return self.height * self.width

    @property
    def numel(self) -> int:
        """Count the values in memory."""
        return self.pixels * self.pitch


@dataclass(frozen=True)
class Window:
    """A window that slides over a map; its places are the taps, row by row."""

    map_shape: MapShape
    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def taps(self) -> int:
        """Count the places of the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def out(self) -> Pair:
        """Give height and width of what comes out."""
        size = (self.map_shape.height, self.map_shape.width)
        height, width = (
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(size, self.kernel, self.stride, self.padding, strict=True)
        )
        return height, width

    @property
    def plain(self) -> bool:
        """Tell whether every place of the map is its own window."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def table(self) -> list[list[int]]:
        """Tell which tap joins each place of the map to each place of what comes out; -1 for none."""
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
    """A window, and the pooling of what comes out of it: one sliding of a wider window by a wider stride."""

    window: Window
    pool: int = 1  # side and stride of the pooling window

    @property
    def kernel(self) -> Pair:
        """Give height and width of the wider window."""
        (kh, kw), (sh, sw) = self.window.kernel, self.window.stride
        return kh + sh * (self.pool - 1), kw + sw * (self.pool - 1)

    @property
    def stride(self) -> Pair:
        """Give the wider stride."""
        return self.window.stride[0] * self.pool, self.window.stride[1] * self.pool

    @property
    def out(self) -> Pair:
        """Give height and width of what is left after pooling."""
        return self.window.out[0] // self.pool, self.window.out[1] // self.pool


def round_up(n: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-n // step) * step
