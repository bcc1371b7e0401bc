"""Pixel operations on stacks of 8-bit images [N Ch H W]: rotate, erode, dilate, reorder, zoom, invert.

All return uint8 of the same shape. Morphology follows OpenCV: flat all-ones k×k kernel, anchor at
(k//2, k//2) for erosion and dilation alike, pixels beyond the border do not take part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]

HEIGHT, WIDTH = 2, 3  # axes


def rotate(x: Images, degrees: int) -> Images:
    """Rotate counter-clockwise by a multiple of 90 degrees."""
    return np.ascontiguousarray(np.rot90(x, degrees // 90, axes=(HEIGHT, WIDTH)))


def erode(x: Images, k: int) -> Images:
    """Smallest value under a k×k window."""
    return _window(_window(x, k, HEIGHT, np.minimum, 255), k, WIDTH, np.minimum, 255)


def dilate(x: Images, k: int) -> Images:
    """Largest value under a k×k window: out(y, x) = max over dy, dx in [0, k) of in(y+dy-k//2, x+dx-k//2)."""
    return _window(_window(x, k, HEIGHT, np.maximum, 0), k, WIDTH, np.maximum, 0)


def _window(
    x: Images, k: int, axis: int, extreme: Callable[[Images, Images], Images], neutral: int
) -> Images:
    """Running extreme over k pixels along one axis; each pass doubles the span, so log2(k) passes."""
    before = k // 2
    pad = [(0, 0)] * x.ndim
    pad[axis] = (before, k - 1 - before)
    out: Images = np.pad(x, pad, constant_values=neutral)
    span = 1
    while span < k:
        step = min(span, k - span)
        low = [slice(None)] * x.ndim
        high = [slice(None)] * x.ndim
        low[axis], high[axis] = slice(None, -step), slice(step, None)
        out = extreme(out[tuple(low)], out[tuple(high)])
        span += step
    return out


def reorder_channels(x: Images, order: Sequence[int]) -> Images:
    """Channel i of the result is channel order[i] of `x`."""
    return np.ascontiguousarray(x[:, list(order)])


def invert(x: Images) -> Images:
    """255 - x."""
    return np.subtract(255, x, dtype=np.uint8)


def zoom_crop(x: Images) -> Images:
    """Keep the centre half in height and width, black around it (14×14 in 28×28: the authors' "zoom")."""
    rows, cols = _centre(x.shape[HEIGHT]), _centre(x.shape[WIDTH])
    out = np.zeros_like(x)
    out[:, :, rows, cols] = x[:, :, rows, cols]
    return out


def zoom_resize(x: Images) -> Images:
    """Enlarge the centre half to the full size, bilinear with half-pixel centres, rounded to 8 bits."""
    height, width = x.shape[HEIGHT:]
    crop = x[:, :, _centre(height), _centre(width)].astype(np.float32)
    tall = _bilinear(crop.shape[HEIGHT], height) @ crop
    return np.rint(tall @ _bilinear(crop.shape[WIDTH], width).T).astype(np.uint8)


def _centre(size: int) -> slice:
    half = max(size // 2, 1)
    start = (size - half) // 2
    return slice(start, start + half)


def _bilinear(small: int, large: int) -> NDArray[np.float32]:
    """Interpolation weights [large small]; beyond the outermost centres the edge pixel is repeated."""
    at = np.clip((np.arange(large) + 0.5) * small / large - 0.5, 0, small - 1)
    low = np.minimum(at.astype(int), max(small - 2, 0))
    high = np.minimum(low + 1, small - 1)
    weights = np.zeros((large, small), np.float32)
    rows = np.arange(large)
    np.add.at(weights, (rows, low), 1 - (at - low))
    np.add.at(weights, (rows, high), at - low)
    return weights
