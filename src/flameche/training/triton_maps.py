"""Triton kernels over maps: patches laid out and folded back, pooling, matrices of small maps.

Maps are [n H W P], channels last with pitch P; n runs over all clients' images. Every output is written by
one program, summed in a fixed order, so results repeat to the bit.
"""

# mypy: ignore-errors
# Kernels are written in Triton's language, whose types are not Python's.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def image_patches_kernel(
    data, index, out, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    COLUMNS: tl.constexpr, ONES: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gather bytes [N H W C] and write what each window sees of them, scaled to [-1, 1]."""
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
def patches_kernel(
    data, out, rows, H, W, HO, WO, P, C, KH, KW, SH, SW, PH, PW,
    COLUMNS: tl.constexpr, ONES: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write what each window sees, taps by channels."""
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
def fold_kernel(
    patches, into, out, rows, columns, H, W, HO, WO, P, C, SH, SW, PH, PW,
    KH: tl.constexpr, KW: tl.constexpr, ADD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Add up, at every place of the map, what the windows over it hold of it."""
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
def pool_kernel(
    data, out, where, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    P: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Take each window's largest value and which tap it is, the first of equals; 255 if ReLU stops it."""
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
def pool_back_kernel(
    grad, where, out, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    P: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Add up, at every place of the map, the gradients of windows whose largest value it was."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image, place = (r // (H * W)).to(tl.int64), r % (H * W)
    y, x = place // W + PH, place % W + PW
    total = tl.zeros((BR, BC), tl.float32)
    DX: tl.constexpr = (KW + SW - 1) // SW
    for d in tl.static_range((KH + SH - 1) // SH * DX):  # the windows over a place, last ones first
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
def spread_kernel(
    weights, table, out, stride, C, N, PLACES, OUTS, BC: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Copy taps [T C N] of each client to where they join a small map's places: out [M PLACES C OUTS N]."""
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
def collect_kernel(
    wide, pairs, out, stride, C, N, PLACES, OUTS, LONG: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Add up each tap's parts of the matrices that `spread_kernel` wrote; pairs [T LONG], -1 for none."""
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
