"""The operations of stacked layers in plain torch, besides matrix products; `triton_ops` has them for CUDA.

Maps are [M b H W C], channels last. The first count[M] samples of a batch are real; the others are padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from flameche.models.features import to_input
from flameche.training.kernels.conv_geometry import ConvPool, MapShape, Window

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # the defaults of torch.optim.Adam
Table = list[list[int]]
Source = Tensor | tuple[Tensor, Tensor]  # a map, or bytes and the index of those to use
RELU_BLOCKED = 255  # instead of the maximum's tap where ReLU is zero


@dataclass(frozen=True)
class SavedNorm:
    """What the backward pass of BatchNorm needs."""

    x: Tensor
    y: Tensor
    mean: Tensor  # [M C]
    scale: Tensor  # [M C], inverse standard deviation


@dataclass(frozen=True)
class SavedConv:
    """What the backward pass of a convolution with pooling needs."""

    source: Source
    y: Tensor
    where: Tensor | None  # position of the maximum in its pooling window, or `RELU_BLOCKED`
    rows: Tensor | None = None  # the im2col matrix, if there is one
    wide: Tensor | None = None  # expanded weights, if there are any


class TorchOps:
    """The operations on any device in any precision."""

    def __init__(self) -> None:
        self._tables: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def _as_tensor(self, table: Table, near: Tensor) -> Tensor:
        """Keep a table on the device: it cannot be copied there while a graph is captured."""
        key = tuple(map(tuple, table))
        if key not in self._tables:
            self._tables[key] = torch.tensor(table, device=near.device)
        return self._tables[key]

    def load_images(self, data: Tensor, index: Tensor, pitch: int, dtype: torch.dtype) -> Tensor:
        """Gather bytes [n H W C] by index [M b] and scale them to the network's input."""
        found = to_input(data[index], dtype)
        return pad(found, (0, pitch - found.shape[-1])) if pitch > found.shape[-1] else found

    def im2col_images(
        self, data: Tensor, index: Tensor, window: Window, columns: int, append_one: bool, dtype: torch.dtype
    ) -> Tensor:
        """Gather bytes and apply `im2col`."""
        return self.im2col(
            self.load_images(data, index, window.map_shape.pitch, dtype), window, columns, append_one
        )

    def im2col(self, x: Tensor, window: Window, columns: int, append_one: bool) -> Tensor:
        """Lay out the input of each window [M b*H'*W' columns], taps by channels; a one if asked; zeros.

        The one multiplies a bias that lies below the weights.
        """
        (kh, kw), (sh, sw), (ph, pw) = window.kernel, window.stride, window.padding
        channels, (height, width) = window.map_shape.channels, window.out
        x = x[..., :channels]
        if ph or pw:
            x = pad(x, (0, 0, pw, pw, ph, ph))
        seen = x.unfold(2, kh, sh).unfold(3, kw, sw).permute(0, 1, 2, 3, 5, 6, 4)
        used = kh * kw * channels
        out = x.new_zeros(*x.shape[:2], height, width, columns)
        out[..., :used].view(seen.shape).copy_(seen)
        if append_one:
            out[..., used] = 1
        return out.flatten(1, 3)

    def col2im(self, patches: Tensor, window: Window, into: Tensor | None) -> Tensor:
        """Sum overlapping windows, the backward pass of `im2col`; added to `into` if given."""
        (kh, kw), (sh, sw), (ph, pw) = window.kernel, window.stride, window.padding
        map_shape, (height, width) = window.map_shape, window.out
        stack = patches.view(len(patches), -1, height, width, patches.shape[2])
        shape = (map_shape.height + 2 * ph, map_shape.width + 2 * pw, map_shape.pitch)
        wide = patches.new_zeros(*stack.shape[:2], *shape)
        for tap in range(kh * kw):
            ky, kx = divmod(tap, kw)
            target = wide[:, :, ky : ky + sh * height : sh, kx : kx + sw * width : sw, : map_shape.channels]
            target[:, :, :height, :width] += stack[
                ..., tap * map_shape.channels : (tap + 1) * map_shape.channels
            ]
        inner = wide[:, :, ph : ph + map_shape.height, pw : pw + map_shape.width]
        return inner.contiguous() if into is None else into.add_(inner)

    def expand_taps(self, weights: Tensor, table: Table) -> Tensor:
        """Build the matrix from a whole small map to the whole output, from weights of taps [M T C O]."""
        places = self._as_tensor(table, weights)
        return weights[:, places].permute(0, 1, 3, 2, 4).flatten(3, 4).flatten(1, 2)

    def collect_taps(self, wide: Tensor, table: Table, out: Tensor) -> None:
        """Sum each tap's blocks of `expand_taps`' matrix into out [M T C O], its backward pass."""
        blocks = wide.view(len(wide), len(table), out.shape[2], len(table[0]), out.shape[3])
        for tap in range(out.shape[1]):
            parts = [blocks[:, i, :, o] for i, row in enumerate(table) for o, t in enumerate(row) if t == tap]
            out[:, tap] = torch.stack(parts).sum(0)

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
        """Normalise by the real samples' statistics, add a residual, apply ReLU, update running statistics.

        Clients without real samples keep their running statistics.
        """
        real, n = _real_samples(x, count)
        mean = (x * real).sum((1, 2, 3)).to(weight.dtype) / n
        away = (x - _over_maps(mean).to(x.dtype)) * real
        var = (away * away).sum((1, 2, 3)).to(weight.dtype) / n
        share = momentum * (count > 0)[:, None].to(weight.dtype)
        running[0].add_(share * (mean - running[0]))
        running[1].add_(share * (var * n / (n - 1).clamp(min=1) - running[1]))
        scale = (var + eps).rsqrt()
        y = self.affine(x, mean, scale, weight, bias, residual, relu)
        return SavedNorm(x, y, mean, scale)

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
        slope = scale * weight
        y = x * _over_maps(slope).to(x.dtype) + _over_maps(bias - mean * slope).to(x.dtype)
        if residual is not None:
            y += residual
        return y.relu_() if relu else y

    def batch_norm_backward(
        self,
        grad: Tensor,
        saved: SavedNorm,
        count: Tensor,
        weight: Tensor,
        out: tuple[Tensor, Tensor],
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and residual; write those of weight and bias to `out`.

        `grad` is overwritten; padding samples get no gradient.
        """
        if relu:
            grad.mul_(saved.y > 0)
        real, n = _real_samples(saved.x, count)
        unit = (saved.x - _over_maps(saved.mean).to(grad.dtype)) * _over_maps(saved.scale).to(grad.dtype)
        down, along = (each.sum((1, 2, 3)).to(weight.dtype) for each in (grad, grad * unit))
        out[0].copy_(along)
        out[1].copy_(down)
        lean = _over_maps(down / n).to(grad.dtype) + unit * _over_maps(along / n).to(grad.dtype)
        return (grad - lean * real) * _over_maps(saved.scale * weight).to(grad.dtype), grad

    def max_pool(self, x: Tensor, window: Window, relu: bool) -> tuple[Tensor, Tensor]:
        """Return each window's maximum and its tap; with ReLU if asked, `RELU_BLOCKED` where it is 0."""
        parts = _slices(x, window, float("-inf"))
        best = parts[0].clone()
        where = torch.zeros_like(best, dtype=torch.uint8)
        for tap, part in enumerate(parts[1:], start=1):
            better = part > best
            best = torch.where(better, part, best)
            where.masked_fill_(better, tap)
        if relu:
            where.masked_fill_(best <= 0, RELU_BLOCKED)
        return (best.relu_() if relu else best), where

    def max_pool_backward(self, grad: Tensor, where: Tensor, window: Window) -> Tensor:
        """Route each gradient to where its maximum was."""
        (ph, pw), map_shape = window.padding, window.map_shape
        wide = grad.new_zeros(
            *grad.shape[:2], map_shape.height + 2 * ph, map_shape.width + 2 * pw, grad.shape[-1]
        )
        for tap, part in enumerate(_views(wide, window)):
            part += grad * (where == tap)
        return wide[:, :, ph : ph + map_shape.height, pw : pw + map_shape.width].contiguous()

    def conv_pool(
        self, source: Source, weights: Tensor, geometry: ConvPool, bias: bool, relu: bool, keep: bool
    ) -> SavedConv:
        """Convolve and pool; weights [M columns N], with a bias in the row below the taps.

        keep: a backward pass follows.
        """
        window, map_shape = geometry.window, geometry.window.map_shape
        x = self.load_images(*source, map_shape.pitch, weights.dtype) if isinstance(source, tuple) else source
        rows = self.im2col(x, window, weights.shape[1], bias)
        y = torch.bmm(rows, weights).view(*x.shape[:2], *window.out, -1)
        out, where = self.max_pool(y, _pool_window(geometry, weights), relu)
        return SavedConv(source, out, where, rows if keep else None)

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
        """Write the weights' gradient to out; return the map's, added to `into`, if wanted."""
        assert saved.rows is not None and saved.where is not None
        grad = self.max_pool_backward(grad, saved.where, _pool_window(geometry, weights))
        flat = grad.view(len(grad), -1, grad.shape[4])
        if out is not None:
            torch.bmm(saved.rows.transpose(1, 2), flat, out=out)
        return (
            self.col2im(torch.bmm(flat, weights.transpose(1, 2)), geometry.window, into) if wanted else None
        )

    def loss_gradient(
        self, logits: Tensor, labels: Tensor, index: Tensor, count: Tensor, classes: int
    ) -> Tensor:
        """Return the gradient of each client's mean loss over its real samples by logits [M b 1 1 pitch]."""
        wide = logits[:, :, 0, 0, :classes]
        wide = wide if wide.dtype == torch.float64 else wide.float()
        real = torch.arange(index.shape[1], device=index.device) < count[:, None]
        weight = real.to(wide.dtype) / count.clamp(min=1)[:, None]
        hit = labels[index][..., None] == torch.arange(classes, device=index.device)
        grad = torch.zeros_like(logits)
        grad[:, :, 0, 0, :classes] = (torch.softmax(wide, 2) - hit.to(wide.dtype)) * weight[..., None]
        return grad

    def bias_relu(self, y: Tensor, bias: Tensor | None, relu: bool) -> None:
        """Add a bias [M C] to y [M .. C] and apply ReLU, in place."""
        if bias is not None:
            y.add_(_over_maps(bias))
        if relu:
            y.relu_()

    def bias_relu_backward(self, grad: Tensor, y: Tensor | None, out: Tensor | None) -> None:
        """Zero the gradient where ReLU's output y is zero, in place; write the bias's to out [M C]."""
        if y is not None:
            grad.mul_(y > 0)
        if out is not None:
            torch.sum(grad, (1, 2, 3), out=out)

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
        """Step like torch.optim.Adam (Kingma & Ba 2015) in place; rows [P] without real samples rest.

        done [1] counts the steps taken before by clients that do not rest; `low` receives a copy in lower
        precision.
        """
        turn, steps = (count > 0)[:, None].to(params.dtype), (done + 1).double()
        grad = grad.to(params.dtype)
        m.add_((grad - m) * ((1 - BETA1) * turn))
        v.add_((grad * grad - v) * ((1 - BETA2) * turn))
        size = (lr / (1 - BETA1**steps)).to(params.dtype) * turn
        root = (1 - BETA2**steps).sqrt().to(params.dtype)
        params.sub_(size * m / ((v.sqrt() / root).add_(EPS)))
        if low is not None:
            low.copy_(params)


def _pool_window(geometry: ConvPool, weights: Tensor) -> Window:
    """Return the window that pools the output of a convolution with these weights."""
    map_shape, size = (
        MapShape(*geometry.window.out, weights.shape[2], weights.shape[2]),
        (geometry.pool, geometry.pool),
    )
    return Window(map_shape, size, size, (0, 0))


def _over_maps(each: Tensor) -> Tensor:
    """Broadcast [M C] over maps."""
    return each[:, None, None, None, :]


def _real_samples(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mark the real samples [M b 1 1 1]; count their values per channel [M 1], at least 1."""
    seen = count.clamp(min=1)
    real = torch.arange(x.shape[1], device=x.device) < seen[:, None]
    n = (seen * x.shape[2] * x.shape[3])[:, None]
    return real[:, :, None, None, None].to(x.dtype), n.to(
        x.dtype if x.dtype == torch.float64 else torch.float32
    )


def _slices(x: Tensor, window: Window, beyond: float) -> list[Tensor]:
    """Return the values each tap sees, [M b H' W' C] each."""
    ph, pw = window.padding
    return _views(pad(x, (0, 0, pw, pw, ph, ph), value=beyond) if ph or pw else x, window)


def _views(x: Tensor, window: Window) -> list[Tensor]:
    (kh, kw), (sh, sw), (height, width) = window.kernel, window.stride, window.out
    return [
        x[:, :, ky : ky + sh * (height - 1) + 1 : sh, kx : kx + sw * (width - 1) + 1 : sw]
        for ky in range(kh)
        for kx in range(kw)
    ]
