"""Triton kernels of convolutions without im2col, pooled or not, from bytes or maps; backward passes.

A convolution and its pooling are one wider window with a wider stride that has an output for every position
of the pooling window: expanded weights [KK J] with KK = KY KX P, J = SUBS BN, of which the maximum of SUBS
counts. Its three products read the maps in place. `conv_geometry.ConvPool` has the geometry.
"""

# mypy: ignore-errors
# Kernels are written in Triton's language, whose types are not Python's.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _window_values(
    source, index, m, r, k, rows, images,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, HP: tl.constexpr,
    WP: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Load what windows r see at positions k, [r k]; bytes are gathered by index and scaled to [-1, 1]."""
    image, place = r // (HP * WP), r % (HP * WP)
    top, left = (place // WP) * SY - PH, (place % WP) * SX - PW
    if BYTES:
        first = tl.load(index + m * images + image, mask=r < rows, other=0).to(tl.int64) * (H * W * P)
    else:
        first = (m * images + image) * (H * W * P)
    tap = k // P
    ky, kx = tap // KX, tap % KX
    inside = (r < rows)[:, None] & (tap < KY * KX)[None, :]
    if PH > 0 or PW > 0:
        y, x = top[:, None] + ky[None, :], left[:, None] + kx[None, :]
        inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = (first + (top * W + left) * P)[:, None] + ((ky * W + kx) * P + k % P)[None, :]
    value = tl.load(source + at, mask=inside, other=0)
    if BYTES:
        value = tl.where(inside, value.to(tl.float32) / 127.5 - 1.0, 0.0)
    return value


@triton.jit
def _routed_gradient(
    grad, where, row, met, j, N: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Load the gradient of every position of the pooling window [r j]: only the maximum's is not zero."""
    n = j % BN
    here = met[:, None] & (n < N)[None, :]
    at = row[:, None] * N + n[None, :]
    value = tl.load(grad + at, mask=here, other=0.0)
    if MASKED:
        found = tl.load(where + at, mask=here, other=255).to(tl.int32)
        value = tl.where(found == (j // BN)[None, :], value, tl.zeros_like(value))
    return value


@triton.jit
def _wait_for_dot(total, real):
    """Read a sum before its next part is prepared, so that its product has finished by then.

    Triton lets a product run on into the next iteration. If its left operand lies in registers, assemblers
    before CUDA 13.3 overwrite it with the next iteration's values while it is still read
    (triton-lang/triton#9433). Rows that are not real are zero already.
    """
    return tl.where(real[:, None], total, 0.0)


@triton.jit
def expand_weights_kernel(
    weights, wide, turned, stride,
    P: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    KY: tl.constexpr, KX: tl.constexpr, POOL: tl.constexpr, N: tl.constexpr, BN: tl.constexpr,
    J: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write each client's expanded weights as [COLUMNS J] and [J COLUMNS], zeros where nothing overlaps."""
    m = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    j = tl.arange(0, J)
    tap, sub, n = k // P, j // BN, j % BN
    y = (tap // KX)[:, None] - (sub // POOL * SH)[None, :]
    x = (tap % KX)[:, None] - (sub % POOL * SW)[None, :]
    met = (tap < KY * KX)[:, None] & (n < N)[None, :] & (y >= 0) & (y < KH) & (x >= 0) & (x < KW)
    at = ((y * KW + x) * P + (k % P)[:, None]) * N + n[None, :]
    value = tl.load(weights + m * stride + at, mask=met, other=0.0)
    here = (k < COLUMNS)[:, None]
    tl.store(wide + (m * COLUMNS + k)[:, None] * J + j[None, :], value, mask=here)
    tl.store(turned + (m * J + j)[None, :] * COLUMNS + k[:, None], value, mask=here)


@triton.jit(do_not_specialize=["rows", "images"])
def conv_pool_kernel(
    source, index, turned, bias, out, where, rows, images, stride,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, HP: tl.constexpr,
    WP: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, J: tl.constexpr, COLUMNS: tl.constexpr,
    SUBS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr, BYTES: tl.constexpr,
    ROUND: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Convolve, add the bias, take the maximum of each pooling window, apply ReLU; keep its position."""
    m = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    total = tl.zeros((BR, BJ), tl.float32)
    for start in range(0, COLUMNS, BK):
        k = start + tl.arange(0, BK)
        seen = _window_values(
            source, index, m, r, k, rows, images, H, W, P, KY, KX, SY, SX, PH, PW, HP, WP, BYTES
        )
        weights = tl.load(turned + (m * J + j)[:, None] * COLUMNS + k[None, :])
        total = tl.dot(seen.to(weights.dtype), tl.trans(weights), total, input_precision=ROUND)
        if BYTES:
            total = _wait_for_dot(total, r < rows)
    if SUBS == 1:
        best, n = total, j
        found = tl.zeros((BR, BJ), tl.int32)
    else:
        best, found = tl.max(tl.reshape(total, (BR, SUBS, BN)), 1, return_indices=True)
        n = tl.arange(0, BN)
    if BIAS:
        best += tl.load(bias + m * stride + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if RELU:
        found = tl.where(best > 0, found, 255)
        best = tl.maximum(best, 0.0)
    at = (m * rows + r)[:, None] * N + n[None, :]
    here = (r < rows)[:, None] & (n < N)[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=here)
    if KEEP:
        tl.store(where + at, found.to(tl.uint8), mask=here)


@triton.jit(do_not_specialize=["rows", "images", "per"])
def conv_weight_gradient_kernel(
    source, index, grad, where, parts, rows, images, per,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, HP: tl.constexpr,
    WP: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, J: tl.constexpr, COLUMNS: tl.constexpr,
    MASKED: tl.constexpr, BYTES: tl.constexpr, ROUND: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    BJ: tl.constexpr,
):  # fmt: skip
    """Sum window inputs times gradients over a part of the windows: parts [M parts COLUMNS J].

    A one follows the window's values; its row is the gradient of the bias.
    """
    m, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    blocks = J // BJ
    k = (tl.program_id(0) // blocks) * BK + tl.arange(0, BK)
    j = (tl.program_id(0) % blocks) * BJ + tl.arange(0, BJ)
    total = tl.zeros((BK, BJ), tl.float32)
    stop = tl.minimum(part * per + per, rows)
    for start in range(part * per, stop, BR):
        r = start + tl.arange(0, BR)
        value = _routed_gradient(grad, where, m * rows + r, r < rows, j, N, BN, MASKED)
        seen = _window_values(
            source, index, m, r, k, rows, images, H, W, P, KY, KX, SY, SX, PH, PW, HP, WP, BYTES
        )
        seen = seen.to(value.dtype) + (k == KY * KX * P).to(value.dtype)[None, :]
        total = tl.dot(tl.trans(seen), value, total, input_precision=ROUND)
        total = _wait_for_dot(total, k < COLUMNS)
    at = ((m * tl.num_programs(1) + part) * COLUMNS + k)[:, None] * J + j[None, :]
    tl.store(parts + at, total, mask=(k < COLUMNS)[:, None])


@triton.jit(do_not_specialize=["count", "used"])
def sum_weight_gradient_kernel(
    parts, out, stride, count, used,
    P: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    KY: tl.constexpr, KX: tl.constexpr, POOL: tl.constexpr, N: tl.constexpr, BN: tl.constexpr,
    J: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the parts of the expanded weights' gradient that belong to each weight, and to the bias below."""
    m = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k, n = at // N, at % N
    tap = k // P
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(count):
        for sub in tl.static_range(POOL * POOL):
            y, x = tap // KW + sub // POOL * SH, tap % KW + sub % POOL * SW
            row = tl.where(tap < KH * KW, (y * KX + x) * P + k % P, KY * KX * P)
            where = ((m * count + part) * COLUMNS + row) * J + sub * BN + n
            total += tl.load(parts + where, mask=at < used, other=0.0)
    tl.store(out + m * stride + at, total.to(out.dtype.element_ty), mask=at < used)


@triton.jit(do_not_specialize=["rows", "images"])
def conv_input_gradient_kernel(
    grad, where, wide, into, out, rows, images, stride,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, HP: tl.constexpr,
    WP: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, N: tl.constexpr, BN: tl.constexpr,
    J: tl.constexpr, MASKED: tl.constexpr, ADD: tl.constexpr, ROUND: tl.constexpr, BR: tl.constexpr,
    BQ: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the map, SY by SX pixels at a time, from all windows that contain them."""
    m = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    DY: tl.constexpr = (KY + SY - 1) // SY
    DX: tl.constexpr = (KX + SX - 1) // SX
    image, place = r // (HB * WB), r % (HB * WB)
    i, l = place // WB, place % WB  # noqa: E741
    a, b, c = q // (SX * P), q // P % SX, q % P
    total = tl.zeros((BR, BQ), tl.float32)
    for turn in range(DY * DX * (J // BJ)):
        d = turn // (J // BJ)
        j = turn % (J // BJ) * BJ + tl.arange(0, BJ)
        py, px = i - d // DX, l - d % DX
        met = (r < rows) & (py >= 0) & (py < HP) & (px >= 0) & (px < WP)
        value = _routed_gradient(
            grad, where, (m * images + image) * (HP * WP) + py * WP + px, met, j, N, BN, MASKED
        )
        ky, kx = a + SY * (d // DX), b + SX * (d % DX)
        inside = (a < SY) & (ky < KY) & (kx < KX)
        at = ((ky * KX + kx) * P + c)[:, None] * J + j[None, :]
        weights = tl.load(wide + m * stride + at, mask=inside[:, None], other=0.0)
        total = tl.dot(value.to(weights.dtype), tl.trans(weights), total, input_precision=ROUND)
        total = _wait_for_dot(total, r < rows)
    y, x = (i * SY - PH)[:, None] + a[None, :], (l * SX - PW)[:, None] + b[None, :]
    here = (r < rows)[:, None] & (a < SY)[None, :] & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = ((m * images + image) * (H * W))[:, None] * P + (y * W + x) * P + c[None, :]
    if ADD:
        total += tl.load(into + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)
