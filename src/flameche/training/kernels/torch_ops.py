"""What stacked layers are made of besides matrix products, in plain torch; `kernels` has the same for CUDA.

Maps are [M b H W C], channels last. Of a batch, the first count[M] samples are real; the others fill it up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from flameche.models.features import to_input
from flameche.training.kernels.conv_geometry import Form, Slide, Window

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's own
Table = list[list[int]]
Source = Tensor | tuple[Tensor, Tensor]  # a map, or bytes and which of them
DEAD = 255  # in place of the tap whose value was largest: ReLU let none through


@dataclass(frozen=True)
class Normed:
    """What the way back through a BatchNorm needs."""

    x: Tensor
    y: Tensor
    mean: Tensor  # [M C]
    scale: Tensor  # [M C], one over the standard deviation


@dataclass(frozen=True)
class Slid:
    """What the way back through a convolution and its pooling needs."""

    source: Source
    y: Tensor
    where: Tensor | None  # the largest value's place in its pooling window, `DEAD` for none
    rows: Tensor | None = None  # what each window saw, where it was laid out
    wide: Tensor | None = None  # weights for all places of the pooling window, where they were


class Plain:
    """The primitives on any device and in any precision."""

    def __init__(self) -> None:
        self._tables: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def _tabled(self, table: Table, near: Tensor) -> Tensor:
        """Keep a table on the device: while a graph is captured, none can be sent there."""
        key = tuple(map(tuple, table))
        if key not in self._tables:
            self._tables[key] = torch.tensor(table, device=near.device)
        return self._tables[key]

    def images(self, data: Tensor, index: Tensor, pitch: int, dtype: torch.dtype) -> Tensor:
        """Gather bytes [n H W C] by index [M b] and scale them to what a network is fed."""
        found = to_input(data[index], dtype)
        return pad(found, (0, pitch - found.shape[-1])) if pitch > found.shape[-1] else found

    def image_patches(
        self, data: Tensor, index: Tensor, window: Window, columns: int, ones: bool, dtype: torch.dtype
    ) -> Tensor:
        """Gather bytes and lay out their patches: `patches` of `images`."""
        return self.patches(self.images(data, index, window.form.pitch, dtype), window, columns, ones)

    def patches(self, x: Tensor, window: Window, columns: int, ones: bool) -> Tensor:
        """Lay out what each window sees [M b*H'*W' columns], taps by channels; then a one, if asked, zeros.

        The one multiplies a bias that lies below the weights.
        """
        (kh, kw), (sh, sw), (ph, pw) = window.kernel, window.stride, window.padding
        channels, (height, width) = window.form.channels, window.out
        x = x[..., :channels]
        if ph or pw:
            x = pad(x, (0, 0, pw, pw, ph, ph))
        seen = x.unfold(2, kh, sh).unfold(3, kw, sw).permute(0, 1, 2, 3, 5, 6, 4)
        used = kh * kw * channels
        out = x.new_zeros(*x.shape[:2], height, width, columns)
        out[..., :used].view(seen.shape).copy_(seen)
        if ones:
            out[..., used] = 1
        return out.flatten(1, 3)

    def fold(self, patches: Tensor, window: Window, into: Tensor | None) -> Tensor:
        """Add up patches where they overlap, the way back of `patches`; on top of `into` if given."""
        (kh, kw), (sh, sw), (ph, pw) = window.kernel, window.stride, window.padding
        form, (height, width) = window.form, window.out
        stack = patches.view(len(patches), -1, height, width, patches.shape[2])
        shape = (form.height + 2 * ph, form.width + 2 * pw, form.pitch)
        wide = patches.new_zeros(*stack.shape[:2], *shape)
        for tap in range(kh * kw):
            ky, kx = divmod(tap, kw)
            target = wide[:, :, ky : ky + sh * height : sh, kx : kx + sw * width : sw, : form.channels]
            target[:, :, :height, :width] += stack[..., tap * form.channels : (tap + 1) * form.channels]
        inner = wide[:, :, ph : ph + form.height, pw : pw + form.width]
        return inner.contiguous() if into is None else into.add_(inner)

    def spread(self, weights: Tensor, table: Table) -> Tensor:
        """Build the matrix from all of a small map to all that comes out, of taps' weights [M T C O]."""
        places = self._tabled(table, weights)
        return weights[:, places].permute(0, 1, 3, 2, 4).flatten(3, 4).flatten(1, 2)

    def collect(self, wide: Tensor, table: Table, out: Tensor) -> None:
        """Add up each tap's part of `spread`'s matrix into out [M T C O], the way back."""
        blocks = wide.view(len(wide), len(table), out.shape[2], len(table[0]), out.shape[3])
        for tap in range(out.shape[1]):
            parts = [blocks[:, i, :, o] for i, row in enumerate(table) for o, t in enumerate(row) if t == tap]
            out[:, tap] = torch.stack(parts).sum(0)

    def norm(
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
    ) -> Normed:
        """Normalise by the real samples' statistics; add a residual; apply ReLU; update what runs.

        Clients without a real sample keep their running statistics.
        """
        real, n = _real(x, count)
        mean = (x * real).sum((1, 2, 3)).to(weight.dtype) / n
        away = (x - _wide(mean).to(x.dtype)) * real
        var = (away * away).sum((1, 2, 3)).to(weight.dtype) / n
        share = momentum * (count > 0)[:, None].to(weight.dtype)
        running[0].add_(share * (mean - running[0]))
        running[1].add_(share * (var * n / (n - 1).clamp(min=1) - running[1]))
        scale = (var + eps).rsqrt()
        y = self.affine(x, mean, scale, weight, bias, residual, relu)
        return Normed(x, y, mean, scale)

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
        """Shift and scale each channel; add a residual; apply ReLU."""
        slope = scale * weight
        y = x * _wide(slope).to(x.dtype) + _wide(bias - mean * slope).to(x.dtype)
        if residual is not None:
            y += residual
        return y.relu_() if relu else y

    def norm_back(
        self,
        grad: Tensor,
        saved: Normed,
        count: Tensor,
        weight: Tensor,
        out: tuple[Tensor, Tensor],
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        """Go back through `norm`: the gradients of its input and of its residual; of its weights into `out`.

        `grad` is overwritten; samples that are not real get no gradient.
        """
        if relu:
            grad.mul_(saved.y > 0)
        real, n = _real(saved.x, count)
        unit = (saved.x - _wide(saved.mean).to(grad.dtype)) * _wide(saved.scale).to(grad.dtype)
        down, along = (each.sum((1, 2, 3)).to(weight.dtype) for each in (grad, grad * unit))
        out[0].copy_(along)
        out[1].copy_(down)
        lean = _wide(down / n).to(grad.dtype) + unit * _wide(along / n).to(grad.dtype)
        return (grad - lean * real) * _wide(saved.scale * weight).to(grad.dtype), grad

    def pool(self, x: Tensor, window: Window, relu: bool) -> tuple[Tensor, Tensor]:
        """Take each window's largest value and which tap it is; after ReLU if asked, with `DEAD` for none."""
        parts = _slices(x, window, float("-inf"))
        best = parts[0].clone()
        where = torch.zeros_like(best, dtype=torch.uint8)
        for tap, part in enumerate(parts[1:], start=1):
            better = part > best
            best = torch.where(better, part, best)
            where.masked_fill_(better, tap)
        if relu:
            where.masked_fill_(best <= 0, DEAD)
        return (best.relu_() if relu else best), where

    def pool_back(self, grad: Tensor, where: Tensor, window: Window) -> Tensor:
        """Send each gradient to where its value came from."""
        (ph, pw), form = window.padding, window.form
        wide = grad.new_zeros(*grad.shape[:2], form.height + 2 * ph, form.width + 2 * pw, grad.shape[-1])
        for tap, part in enumerate(_views(wide, window)):
            part += grad * (where == tap)
        return wide[:, :, ph : ph + form.height, pw : pw + form.width].contiguous()

    def slide(self, source: Source, weights: Tensor, plan: Slide, bias: bool, relu: bool, keep: bool) -> Slid:
        """Convolve and pool; weights [M columns N], a bias below what the window sees.

        keep: there will be a way back.
        """
        window, form = plan.window, plan.window.form
        x = self.images(*source, form.pitch, weights.dtype) if isinstance(source, tuple) else source
        rows = self.patches(x, window, weights.shape[1], bias)
        y = torch.bmm(rows, weights).view(*x.shape[:2], *window.out, -1)
        out, where = self.pool(y, _pooling(plan, weights), relu)
        return Slid(source, out, where, rows if keep else None)

    def slide_back(
        self,
        grad: Tensor,
        saved: Slid,
        weights: Tensor,
        plan: Slide,
        relu: bool,
        out: Tensor | None,
        bias: bool,
        into: Tensor | None,
        wanted: bool,
    ) -> Tensor | None:
        """Go back: the weights' gradient goes to out, the map's on top of `into`, if wanted."""
        assert saved.rows is not None and saved.where is not None
        grad = self.pool_back(grad, saved.where, _pooling(plan, weights))
        flat = grad.view(len(grad), -1, grad.shape[4])
        if out is not None:
            torch.bmm(saved.rows.transpose(1, 2), flat, out=out)
        return self.fold(torch.bmm(flat, weights.transpose(1, 2)), plan.window, into) if wanted else None

    def slope(self, logits: Tensor, labels: Tensor, index: Tensor, count: Tensor, classes: int) -> Tensor:
        """Give the gradient of each client's mean loss over its real samples by logits [M b 1 1 pitch]."""
        wide = logits[:, :, 0, 0, :classes]
        wide = wide if wide.dtype == torch.float64 else wide.float()
        real = torch.arange(index.shape[1], device=index.device) < count[:, None]
        weight = real.to(wide.dtype) / count.clamp(min=1)[:, None]
        hit = labels[index][..., None] == torch.arange(classes, device=index.device)
        grad = torch.zeros_like(logits)
        grad[:, :, 0, 0, :classes] = (torch.softmax(wide, 2) - hit.to(wide.dtype)) * weight[..., None]
        return grad

    def activate(self, y: Tensor, bias: Tensor | None, relu: bool) -> None:
        """Add a bias [M C] to y [M .. C] and apply ReLU, in place."""
        if bias is not None:
            y.add_(_wide(bias))
        if relu:
            y.relu_()

    def activate_back(self, grad: Tensor, y: Tensor | None, out: Tensor | None) -> None:
        """Stop the gradient where ReLU's value y is zero, in place; the bias's goes to out [M C]."""
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
        """Step as torch.optim.Adam does (Kingma & Ba 2015), in place; rows [P] without real samples rest.

        done [1] counts the steps taken before, by all that do not rest; `low` gets a copy in lower precision.
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


def _pooling(plan: Slide, weights: Tensor) -> Window:
    """Give the window that pools what a convolution by these weights makes."""
    form, size = Form(*plan.window.out, weights.shape[2], weights.shape[2]), (plan.pool, plan.pool)
    return Window(form, size, size, (0, 0))


def _wide(each: Tensor) -> Tensor:
    """Lay [M C] over maps."""
    return each[:, None, None, None, :]


def _real(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mark the real samples [M b 1 1 1] and count their values per channel [M 1]; one if there are none."""
    seen = count.clamp(min=1)
    real = torch.arange(x.shape[1], device=x.device) < seen[:, None]
    n = (seen * x.shape[2] * x.shape[3])[:, None]
    return real[:, :, None, None, None].to(x.dtype), n.to(
        x.dtype if x.dtype == torch.float64 else torch.float32
    )


def _slices(x: Tensor, window: Window, beyond: float) -> list[Tensor]:
    """Show what each tap sees, [M b H' W' C] each."""
    ph, pw = window.padding
    return _views(pad(x, (0, 0, pw, pw, ph, ph), value=beyond) if ph or pw else x, window)


def _views(x: Tensor, window: Window) -> list[Tensor]:
    (kh, kw), (sh, sw), (height, width) = window.kernel, window.stride, window.out
    return [
        x[:, :, ky : ky + sh * (height - 1) + 1 : sh, kx : kx + sw * (width - 1) + 1 : sw]
        for ky in range(kh)
        for kx in range(kw)
    ]
