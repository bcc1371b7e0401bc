"""Triton kernels over rows of channels (BatchNorm, ReLU, Adam) and over maps (im2col, pooling, small maps).

Rows are [M R P]: M clients, R rows (images by pixels), P channels, of which the first count[m] images are
real. Maps are [n H W P], channels last with pitch P; n runs over all clients' images. Every output is written
by one program and summed in a fixed order, so results repeat to the bit.
"""

# mypy: ignore-errors
# Kernels are written in Triton's language, whose types are not Python's.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def moments_kernel(
    x, count, parts, R, places, per, P, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Write mean and squared deviations of each part of rows: parts [M chunks 2 P] (Chan et al. 1983)."""
    m, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    real = tl.maximum(tl.load(count + m), 1).to(tl.int32) * places
    start = chunk * per
    stop = tl.minimum(tl.minimum(start + per, R), real)
    mean = tl.zeros((BC,), tl.float32)
    away = tl.zeros((BC,), tl.float32)
    seen = 0.0
    for a in range(start, stop, BR):
        r = a + tl.arange(0, BR)
        here = (r < stop)[:, None] & (c < P)[None, :]
        value = tl.load(x + (m * R + r)[:, None] * P + c[None, :], mask=here, other=0.0).to(tl.float32)
        n = tl.minimum(stop - a, BR).to(tl.float32)
        own = tl.sum(value, 0) / n
        off = tl.where(here, value - own[None, :], 0.0)
        gap = own - mean
        mean += gap * (n / (seen + n))
        away += tl.sum(off * off, 0) + gap * gap * (seen * n / (seen + n))
        seen += n
    at = parts + ((m * chunks + chunk) * 2) * P + c
    tl.store(at, mean, mask=c < P)
    tl.store(at + P, away, mask=c < P)


@triton.jit
def moments_end_kernel(
    parts, count, mean_out, scale_out, run_mean, run_var, stride, R, places, per, chunks, momentum, eps,
    P, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Combine the parts: mean and inverse standard deviation [M P]; update running statistics."""
    m = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    samples = tl.load(count + m)
    real = tl.minimum(tl.maximum(samples, 1).to(tl.int32) * places, R)
    k = tl.arange(0, BK)
    n = tl.minimum(tl.maximum(real - k * per, 0), per).to(tl.float32)
    here = (k < chunks)[:, None] & (c < P)[None, :]
    n = tl.where(k < chunks, n, 0.0)
    at = parts + ((m * chunks + k) * 2)[:, None] * P + c[None, :]
    means = tl.load(at, mask=here, other=0.0)
    away = tl.load(at + P, mask=here, other=0.0)
    total = real.to(tl.float32)
    mean = tl.sum(means * n[:, None], 0) / total
    gap = means - mean[None, :]
    away = tl.sum(away + tl.where(here, gap * gap * n[:, None], 0.0), 0)
    tl.store(mean_out + m * P + c, mean, mask=c < P)
    tl.store(scale_out + m * P + c, 1.0 / tl.sqrt(away / total + eps), mask=c < P)
    if samples > 0:
        old_mean = tl.load(run_mean + m * stride + c, mask=c < P)
        old_var = tl.load(run_var + m * stride + c, mask=c < P)
        wide = away / tl.maximum(total - 1.0, 1.0)
        tl.store(run_mean + m * stride + c, old_mean + momentum * (mean - old_mean), mask=c < P)
        tl.store(run_var + m * stride + c, old_var + momentum * (wide - old_var), mask=c < P)


@triton.jit
def affine_kernel(
    x, residual, out, mean, scale, weight, bias, mean_stride, weight_stride, R,
    P, ADD: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Scale and shift each channel, add a residual, apply ReLU."""
    m = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    there = c < P
    slope = tl.load(scale + m * mean_stride + c, mask=there, other=0.0)
    slope *= tl.load(weight + m * weight_stride + c, mask=there, other=0.0)
    shift = tl.load(bias + m * weight_stride + c, mask=there, other=0.0)
    shift -= tl.load(mean + m * mean_stride + c, mask=there, other=0.0) * slope
    at = (m * R + r)[:, None] * P + c[None, :]
    here = (r < R)[:, None] & there[None, :]
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) * slope[None, :] + shift[None, :]
    if ADD:
        value += tl.load(residual + at, mask=here, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def norm_sums_kernel(
    grad, x, y, mean, scale, parts, R, per,
    P, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Sum gradients, and gradients times normalised values, over each part; mask them by ReLU, in place."""
    m, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    centre = tl.load(mean + m * P + c, mask=c < P, other=0.0)
    width = tl.load(scale + m * P + c, mask=c < P, other=0.0)
    down = tl.zeros((BC,), tl.float32)
    along = tl.zeros((BC,), tl.float32)
    start = chunk * per
    stop = tl.minimum(start + per, R)
    for a in range(start, stop, BR):
        r = a + tl.arange(0, BR)
        here = (r < stop)[:, None] & (c < P)[None, :]
        at = (m * R + r)[:, None] * P + c[None, :]
        value = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        if RELU:
            passed = tl.load(y + at, mask=here, other=0.0).to(tl.float32) > 0
            value = tl.where(passed, value, 0.0)
            tl.store(grad + at, value.to(grad.dtype.element_ty), mask=here)
        unit = (tl.load(x + at, mask=here, other=0.0).to(tl.float32) - centre[None, :]) * width[None, :]
        down += tl.sum(value, 0)
        along += tl.sum(value * unit, 0)
    at = parts + ((m * chunks + chunk) * 2) * P + c
    tl.store(at, down, mask=c < P)
    tl.store(at + P, along, mask=c < P)


@triton.jit
def norm_sums_end_kernel(
    parts, sums, weight_grad, bias_grad, stride, chunks, P, BK: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Combine the parts: sums [M 2 P], and the gradients of weight and bias."""
    m = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    k = tl.arange(0, BK)
    here = (k < chunks)[:, None] & (c < P)[None, :]
    at = parts + ((m * chunks + k) * 2)[:, None] * P + c[None, :]
    down = tl.sum(tl.load(at, mask=here, other=0.0), 0)
    along = tl.sum(tl.load(at + P, mask=here, other=0.0), 0)
    tl.store(sums + (m * 2) * P + c, down, mask=c < P)
    tl.store(sums + (m * 2 + 1) * P + c, along, mask=c < P)
    tl.store(weight_grad + m * stride + c, along.to(weight_grad.dtype.element_ty), mask=c < P)
    tl.store(bias_grad + m * stride + c, down.to(bias_grad.dtype.element_ty), mask=c < P)


@triton.jit
def batch_norm_backward_kernel(
    grad, x, mean, scale, weight, sums, count, out, weight_stride, R, places,
    P, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write the gradient of BatchNorm's input; padding samples get none."""
    m = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    there = c < P
    real = tl.minimum(tl.maximum(tl.load(count + m), 1).to(tl.int32) * places, R)
    n = real.to(tl.float32)
    centre = tl.load(mean + m * P + c, mask=there, other=0.0)
    width = tl.load(scale + m * P + c, mask=there, other=0.0)
    slope = width * tl.load(weight + m * weight_stride + c, mask=there, other=0.0)
    down = tl.load(sums + (m * 2) * P + c, mask=there, other=0.0) / n
    along = tl.load(sums + (m * 2 + 1) * P + c, mask=there, other=0.0) / n
    at = (m * R + r)[:, None] * P + c[None, :]
    here = (r < R)[:, None] & there[None, :]
    value = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
    unit = (tl.load(x + at, mask=here, other=0.0).to(tl.float32) - centre[None, :]) * width[None, :]
    value = (value - down[None, :] - unit * along[None, :]) * slope[None, :]
    value = tl.where((r < real)[:, None], value, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def loss_gradient_kernel(
    logits, labels, index, count, out, batch, classes, pitch, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Write the gradient of each client's mean cross-entropy over its real samples by logits [M b pitch]."""
    m = tl.program_id(1).to(tl.int64)
    i, c = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BC)
    real = tl.load(count + m).to(tl.int32)
    at = (m * batch + i)[:, None] * pitch + c[None, :]
    here = (i < batch)[:, None] & (c < pitch)[None, :]
    known = here & (c < classes)[None, :]
    value = tl.load(logits + at, mask=known, other=float("-inf")).to(tl.float32)
    value = tl.where((i < batch)[:, None], value, tl.where((c < classes)[None, :], 0.0, float("-inf")))
    power = tl.exp(value - tl.max(value, 1)[:, None])
    sample = tl.load(index + m * batch + i, mask=i < batch, other=0)
    label = tl.load(labels + sample, mask=i < batch, other=0)
    share = power / tl.sum(power, 1)[:, None] - tl.where(label[:, None] == c[None, :], 1.0, 0.0)
    share *= tl.where(i < real, 1.0 / tl.maximum(real, 1).to(tl.float32), 0.0)[:, None]
    tl.store(out + at, tl.where(known, share, 0.0).to(out.dtype.element_ty), mask=here)


@triton.jit
def bias_relu_kernel(
    y, bias, R, stride, P, BIAS: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Add a bias and apply ReLU, in place."""
    m = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    here = (r < R)[:, None] & (c < P)[None, :]
    at = (m * R + r)[:, None] * P + c[None, :]
    value = tl.load(y + at, mask=here, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + m * stride + c, mask=c < P, other=0.0).to(tl.float32)[None, :]
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=here)


@triton.jit
def bias_relu_backward_kernel(
    grad, y, out, R, stride, P, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Zero gradients where ReLU was zero, in place, and sum them per channel."""
    m = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    total = tl.zeros((BR, BC), tl.float32)
    for start in range(0, R, BR):
        r = start + tl.arange(0, BR)
        here = (r < R)[:, None] & (c < P)[None, :]
        at = (m * R + r)[:, None] * P + c[None, :]
        value = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(tl.load(y + at, mask=here, other=0.0).to(tl.float32) > 0, value, 0.0)
            tl.store(grad + at, value.to(grad.dtype.element_ty), mask=here)
        total += value
    tl.store(out + m * stride + c, tl.sum(total, 0).to(out.dtype.element_ty), mask=c < P)


@triton.jit
def relu_backward_kernel(grad, y, total, BLOCK: tl.constexpr):
    """Zero gradients where ReLU was zero, in place."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < total
    value = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
    value = tl.where(tl.load(y + at, mask=here, other=0.0).to(tl.float32) > 0, value, 0.0)
    tl.store(grad + at, value.to(grad.dtype.element_ty), mask=here)


@triton.jit
def adam_kernel(
    weights, m, v, grad, low, done, count, sizes, longest, params_stride, moment_stride, grad_stride, total,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a step of Adam in one pass; rows without samples rest.

    done [1] counts the steps before this one, the t-th; sizes [longest 2] holds lr / (1 - beta1^t) and
    1 / sqrt(1 - beta2^t).
    """
    row = tl.program_id(1).to(tl.int64)
    if tl.load(count + row) > 0:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        here = at < total
        step = tl.minimum(tl.load(done).to(tl.int32) + 1, longest - 1)
        size, grow = tl.load(sizes + 2 * step), tl.load(sizes + 2 * step + 1)
        g = tl.load(grad + row * grad_stride + at, mask=here, other=0.0).to(tl.float32)
        first = tl.load(m + row * moment_stride + at, mask=here, other=0.0)
        second = tl.load(v + row * moment_stride + at, mask=here, other=0.0)
        weight = tl.load(weights + row * params_stride + at, mask=here, other=0.0)
        first += (g - first) * (1.0 - BETA1)
        second += (g * g - second) * (1.0 - BETA2)
        weight -= size * first / (tl.sqrt(second) * grow + EPS)
        tl.store(m + row * moment_stride + at, first, mask=here)
        tl.store(v + row * moment_stride + at, second, mask=here)
        tl.store(weights + row * params_stride + at, weight, mask=here)
        if LOW:
            tl.store(low + row * params_stride + at, weight.to(low.dtype.element_ty), mask=here)


@triton.jit
def im2col_images_kernel(
    data, index, out, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    COLUMNS: tl.constexpr, ONES: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gather bytes [N H W C] and lay out the input of each window, scaled to [-1, 1]."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    image, place = r // (HO * WO), r % (HO * WO)
    sample = tl.load(index + image, mask=r < rows, other=0).to(tl.int64)
    tap, c = k // C, k % C
    y = (place // WO)[:, None] * SH + (tap // KW)[None, :] - PH
    x = (place % WO)[:, None] * SW + (tap % KW)[None, :] - PW
    used = KH * KW * C
    inside = (r < rows)[:, None] & (k < used)[None, :] & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = sample[:, None] * (H * W * C) + ((y * W + x) * C + c[None, :])
    value = tl.load(data + at, mask=inside, other=0).to(tl.float32) / 127.5 - 1.0
    value = tl.where(inside, value, 0.0)
    if ONES:
        value = tl.where((k == used)[None, :], 1.0, value)
    to = r.to(tl.int64)[:, None] * COLUMNS + k[None, :]
    tl.store(out + to, value.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (k < COLUMNS)[None, :])


@triton.jit
def im2col_kernel(
    data, out, rows, H, W, HO, WO, P, C, KH, KW, SH, SW, PH, PW,
    COLUMNS: tl.constexpr, ONES: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Lay out the input of each window, taps by channels."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    image, place = (r // (HO * WO)).to(tl.int64), r % (HO * WO)
    tap, c = k // C, k % C
    y = (place // WO)[:, None] * SH + (tap // KW)[None, :] - PH
    x = (place % WO)[:, None] * SW + (tap % KW)[None, :] - PW
    used = KH * KW * C
    inside = (r < rows)[:, None] & (k < used)[None, :] & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = image[:, None] * (H * W * P) + ((y * W + x) * P + c[None, :])
    value = tl.load(data + at, mask=inside, other=0.0)
    if ONES:
        value = tl.where((k == used)[None, :], 1.0, value.to(tl.float32))
    to = r.to(tl.int64)[:, None] * COLUMNS + k[None, :]
    tl.store(out + to, value.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (k < COLUMNS)[None, :])


@triton.jit
def col2im_kernel(
    patches, into, out, rows, columns, H, W, HO, WO, P, C, SH, SW, PH, PW,
    KH: tl.constexpr, KW: tl.constexpr, ADD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Sum, at every pixel, the values of the windows that contain it."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image, place = (r // (H * W)).to(tl.int64), r % (H * W)
    y, x = place // W, place % W
    at = r.to(tl.int64)[:, None] * P + c[None, :]
    here = (r < rows)[:, None] & (c < P)[None, :]
    total = tl.zeros((BR, BC), tl.float32)
    if ADD:
        total += tl.load(into + at, mask=here, other=0.0).to(tl.float32)
    for tap in tl.static_range(KH * KW):
        ty, tx = y + PH - tap // KW, x + PW - tap % KW
        oy, ox = ty // SH, tx // SW
        met = (ty >= 0) & (tx >= 0) & (ty % SH == 0) & (tx % SW == 0) & (oy < HO) & (ox < WO) & (r < rows)
        row = (image * (HO * WO) + oy * WO + ox) * columns
        part = patches + row[:, None] + (tap * C + c)[None, :]
        total += tl.load(part, mask=met[:, None] & (c < C)[None, :], other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def max_pool_kernel(
    data, out, where, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    P: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write each window's maximum and its tap, the first of equals; 255 where ReLU blocks it."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image, place = (r // (HO * WO)).to(tl.int64), r % (HO * WO)
    best = tl.full((BR, BC), float("-inf"), tl.float32)
    found = tl.zeros((BR, BC), tl.int32)
    for tap in tl.static_range(KH * KW):
        y, x = (place // WO) * SH + tap // KW - PH, (place % WO) * SW + tap % KW - PW
        met = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (r < rows)
        part = data + (image * (H * W) + y * W + x)[:, None] * P + c[None, :]
        value = tl.load(part, mask=met[:, None] & (c < P)[None, :], other=float("-inf")).to(tl.float32)
        better = value > best
        best = tl.where(better, value, best)
        found = tl.where(better, tap, found)
    if RELU:
        found = tl.where(best > 0, found, 255)
        best = tl.maximum(best, 0.0)
    at = r.to(tl.int64)[:, None] * P + c[None, :]
    here = (r < rows)[:, None] & (c < P)[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=here)
    tl.store(where + at, found.to(tl.uint8), mask=here)


@triton.jit
def max_pool_backward_kernel(
    grad, where, out, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    P: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Sum, at every pixel, the gradients of windows whose maximum it was."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image, place = (r // (H * W)).to(tl.int64), r % (H * W)
    y, x = place // W + PH, place % W + PW
    total = tl.zeros((BR, BC), tl.float32)
    DX: tl.constexpr = (KW + SW - 1) // SW
    for d in tl.static_range((KH + SH - 1) // SH * DX):  # the windows that contain a pixel, last ones first
        oy, ox = y // SH - d // DX, x // SW - d % DX
        ky, kx = y - oy * SH, x - ox * SW
        met = (oy >= 0) & (oy < HO) & (ky < KH) & (ox >= 0) & (ox < WO) & (kx < KW) & (r < rows)
        at = (image * (HO * WO) + oy * WO + ox)[:, None] * P + c[None, :]
        inside = met[:, None] & (c < P)[None, :]
        found = tl.load(where + at, mask=inside, other=255).to(tl.int32)
        value = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(found == (ky * KW + kx)[:, None], value, 0.0)
    at = r.to(tl.int64)[:, None] * P + c[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (c < P)[None, :])


@triton.jit
def expand_taps_kernel(
    weights, table, out, stride, C, N, PLACES, OUTS, BC: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Copy taps [T C N] of each client to where they connect a map's pixels: out [M PLACES C OUTS N]."""
    m, pair = tl.program_id(0).to(tl.int64), tl.program_id(1)
    blocks = tl.cdiv(N, BO)
    c = (tl.program_id(2) // blocks) * BC + tl.arange(0, BC)
    o = (tl.program_id(2) % blocks) * BO + tl.arange(0, BO)
    tap = tl.load(table + pair)
    here = (c < C)[:, None] & (o < N)[None, :]
    value = tl.load(weights + m * stride + tap * C * N + c[:, None] * N + o[None, :], mask=here)
    i, p = pair // OUTS, pair % OUTS
    row = (m * PLACES + i) * C + c
    tl.store(out + row[:, None] * (OUTS * N) + p * N + o[None, :], value, mask=here)


@triton.jit
def collect_taps_kernel(
    wide, pairs, out, stride, C, N, PLACES, OUTS, LONG: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Sum each tap's blocks of the matrices that `expand_taps_kernel` wrote; pairs [T LONG], -1 for none."""
    m, tap = tl.program_id(0).to(tl.int64), tl.program_id(1)
    blocks = tl.cdiv(N, BO)
    c = (tl.program_id(2) // blocks) * BC + tl.arange(0, BC)
    o = (tl.program_id(2) % blocks) * BO + tl.arange(0, BO)
    here = (c < C)[:, None] & (o < N)[None, :]
    total = tl.zeros((BC, BO), tl.float32)
    for n in tl.static_range(LONG):
        pair = tl.load(pairs + tap * LONG + n)
        i, p = pair // OUTS, pair % OUTS
        row = (m * PLACES + i) * C + c
        part = wide + row[:, None] * (OUTS * N) + p * N + o[None, :]
        total += tl.load(part, mask=here & (pair >= 0), other=0.0).to(tl.float32)
    to = out + m * stride + tap * C * N + c[:, None] * N + o[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=here)
