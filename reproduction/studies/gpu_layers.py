"""Measures single layers of stacked training on one GPU, and tries tiles of the kernels that do them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from flameche.training.kernels import layers
from flameche.training.kernels.autodiff import Pass
from flameche.training.kernels.cuda_graphs import matmul_precision
from flameche.training.kernels.layers import BatchNorm, ImplicitConv, MatMul
from flameche.training.kernels.torch_ops import TorchOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def say(**found: Any) -> None:
    """Print one finding."""
    print(json.dumps(found), flush=True)


def bench(work: Callable[[], Any], repeat: int = 5) -> float:
    """Time a piece of device work, in us, inside a graph so that launches do not count."""
    if DEVICE != "cuda":
        start = time.perf_counter()
        work()
        return 1e6 * (time.perf_counter() - start)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            work()
    graph.replay()
    times = []
    for _ in range(3):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(1000 * a.elapsed_time(b) / repeat)
    return min(times)


def alike(step: Any) -> tuple[Any, ...]:
    """Tell what makes layers cost the same."""
    layer = step.layer
    rest = getattr(layer, "window", None), getattr(layer, "relu", False), len(step.inputs)
    return type(layer).__name__, layer.map_shape, *rest


def tune(own: Any, net: str, clients: int, only: Callable[[Any], bool]) -> dict[Any, Any]:
    """Time every convolution's kernels by tiles; give the best of each."""
    from flameche.training.kernels.triton_conv import KernelShape, Tile

    program, conv_kernels, batch, low = (
        own._network(True),
        own._ops.conv_kernels,
        own._batch,
        own._compute_dtype,
    )
    data, best, seen = own._samples["train"], {}, set()
    with matmul_precision(own._precision), torch.no_grad():
        for layer in (step.layer for step in program.steps):
            if not isinstance(layer, ImplicitConv) or not only(layer):
                continue
            map_shape, plan = layer.geometry.window.map_shape, layer.geometry
            shape = KernelShape(plan, layer.map_shape.pitch, layer.reads_images, low.itemsize)
            if shape in seen:
                continue
            seen.add(shape)
            weights = torch.randn(clients, layer.columns, layer.map_shape.pitch, device=DEVICE).to(low) / 9
            source: Any = torch.randn(clients, batch, *_map(map_shape), device=DEVICE).to(low)
            if layer.reads_images:
                index = torch.randint(0, len(data.y), (clients, batch), device=DEVICE)
                source = (own._channels_last_samples[id(data)], index)
            masked = layer.relu or plan.pool > 1
            saved = conv_kernels.forward(source, weights, plan, layer.bias, layer.relu, True)
            grad, out = torch.randn_like(saved.y), torch.zeros_like(weights)
            works: dict[str, Any] = {
                "forward": lambda: conv_kernels.forward(source, weights, plan, layer.bias, layer.relu, True),  # noqa: B023
                "weight": lambda: conv_kernels.weight_gradient(grad, saved, plan, masked, layer.bias, out),  # noqa: B023
            }
            if not layer.reads_images:
                works["input"] = lambda: conv_kernels.input_gradient(grad, saved, plan, masked, None)  # noqa: B023
            for kernel, work in works.items():
                times = {}
                for tile in _tiles(kernel, shape, Tile):
                    conv_kernels.overrides[kernel, shape] = tile
                    try:
                        times[tile] = round(bench(work), 1)
                    except Exception as problem:  # too much shared memory, say
                        say(tile=str(tile), kernel=kernel, error=f"{type(problem).__name__}: {problem}"[:200])
                if not times:
                    continue
                fast = min(times, key=lambda tile: times[tile])
                best[kernel, shape] = conv_kernels.overrides[kernel, shape] = fast
                every = {_short(tile): us for tile, us in sorted(times.items(), key=lambda each: each[1])}
                say(tune=net, kernel=kernel, width=low.itemsize, map=_map(map_shape),
                    window=plan.window.kernel, pool=plan.pool, out=layer.map_shape.pitch,
                    us=times[fast], tile=_short(fast), chosen=times.get(shape.tile(kernel)),
                    all=every)  # fmt: skip
                if kernel == "forward":  # its wide weights are read by the way back
                    saved = conv_kernels.forward(source, weights, plan, layer.bias, layer.relu, True)
    return best


def _map(map_shape: Any) -> tuple[int, int, int]:
    return map_shape.height, map_shape.width, map_shape.pitch


def _short(tile: Any) -> str:
    return f"{tile.rows}/{tile.depth}/{tile.across} w{tile.warps} s{tile.stages}"


def _tiles(kernel: str, shape: Any, make: Any) -> Iterator[Any]:
    """List tiles to try, the chosen one first."""
    own = shape.tile(kernel)
    yield own
    overrides = {
        "forward": [
            (64, 1, 4, 3),
            (128, 1, 8, 3),
            (128, 2, 4, 2),
            (256, 1, 8, 3),
            (64, 2, 4, 2),
            (64, 1, 4, 2),
        ],
        "weight": [
            (32, 1, 4, 3),
            (64, 1, 4, 2),
            (128, 1, 4, 2),
            (128, 1, 8, 2),
            (64, 1, 8, 3),
            (32, 1, 4, 4),
        ],
        "input": [
            (64, 1, 4, 2),
            (128, 1, 4, 3),
            (128, 1, 4, 2),
            (128, 1, 8, 3),
            (256, 1, 8, 2),
            (64, 1, 8, 3),
        ],
    }
    for rows, times, warps, stages in overrides[kernel]:
        depth = own.depth * times if times == 1 or own.depth < shape.depth else own.depth
        tile = replace(own, rows=rows, depth=depth, warps=warps, stages=stages)
        if tile != own:
            yield tile
    if kernel == "forward" and not shape.bytes and shape.geometry.pool == 1 and shape.wide > 64:
        yield replace(own, across=64)
    if kernel == "forward" and shape.bytes and shape.depth < 64:
        yield replace(own, depth=16)
    if kernel == "input" and shape.block > own.depth:
        yield replace(own, depth=own.depth * 2, rows=64, warps=4)


def layer_times(own: Any, net: str, clients: int, precision: str) -> None:
    """Time every layer's parts by themselves, one line per distinct layer."""
    program, ops, batch = own._network(True), own._ops, own._batch
    low, seen = own._compute_dtype, set()
    count = torch.full((clients,), batch, device=DEVICE)
    with matmul_precision(own._precision), torch.no_grad():
        kinds = [alike(step) for step in program.steps]
        for step, kind in zip(program.steps, kinds, strict=True):
            layer, many = step.layer, kinds.count(kind)
            if kind in seen:
                continue
            seen.add(kind)
            found: dict[str, Any] = {}
            if isinstance(layer, MatMul):
                found = product_times(own, layer, clients, batch, low, ops)
            elif isinstance(layer, BatchNorm):
                map_shape = layer.map_shape
                shape = (clients, batch, map_shape.height, map_shape.width, map_shape.pitch)
                x, res, grad = (torch.randn(shape, device=DEVICE).to(low) for _ in range(3))
                weight = torch.ones(clients, map_shape.pitch, device=DEVICE)
                run = (torch.zeros_like(weight), torch.ones_like(weight))
                residual = res if len(step.inputs) > 1 else None
                saved = ops.batch_norm(x, count, weight, weight, run, 0.1, 1e-5, residual, layer.relu)
                size = x.numel() * x.element_size()
                given = (x, count, weight, weight, run, 0.1, 1e-5, residual, layer.relu)
                backwards = (grad, saved, count, weight, (weight, weight), layer.relu)
                ahead = bench(partial(ops.batch_norm, *given))
                back = bench(partial(ops.batch_norm_backward, *backwards))
                found = {"ahead_us": round(ahead, 1), "back_us": round(back, 1),
                         "map_mb": round(size / 1e6, 1), "maps_us": round(size / 4.3e6, 1)}  # fmt: skip
            if found:
                say(net=net, precision=precision, layer=type(layer).__name__, times=many,
                    form=[layer.map_shape.height, layer.map_shape.width, layer.map_shape.pitch],
                    relu=bool(layer.relu), **found)  # fmt: skip


def product_times(
    own: Any, layer: MatMul, clients: int, batch: int, low: Any, ops: TorchOps
) -> dict[str, Any]:
    """Time a product's parts: laying out, forward, gradients by both sides, folding."""
    map_shape, images = layer.window.map_shape, own._samples["train"]
    program = own._network(True)
    packed = torch.randn(clients, program.weights.total, device=DEVICE).to(low)
    x = torch.randn(clients, batch, map_shape.height, map_shape.width, map_shape.pitch, device=DEVICE).to(low)
    index = torch.randint(0, len(images.y), (clients, batch), device=DEVICE)
    run = Pass(
        ops, packed, packed.float(), packed.float(), data=(own._channels_last_samples[id(images)], index)
    )
    rows, weights = layer._operand(run, [x]), layer._matrix(run)
    grad = torch.randn(*rows.shape[:2], weights.shape[2], device=DEVICE).to(low)
    flops = 2.0 * rows.numel() * weights.shape[2]
    size = (rows.numel() + grad.numel() + weights.numel()) * rows.element_size()
    found: dict[str, Any] = {"lower": layer.lowering, "rows": list(rows.shape), "out": weights.shape[2]}
    if layer.lowering != "direct":
        found["lay_out_us"] = round(bench(lambda: (layer._operand(run, [x]), layer._matrix(run))), 1)
    found["ahead_us"] = round(bench(lambda: torch.bmm(rows, weights)), 1)
    found["floor_us"] = round(size / 4.3e6, 1)
    found["tflops_ahead"] = round(flops / found["ahead_us"] / 1e6, 1)
    back = torch.bmm(grad, weights.transpose(1, 2))
    if not layer.reads_images:
        found["back_us"] = round(bench(lambda: torch.bmm(grad, weights.transpose(1, 2))), 1)
        if layer.lowering == "im2col":
            found["fold_us"] = round(bench(lambda: ops.col2im(back, layer.window, None)), 1)
    found["weigh_us"] = {}
    parts = 1
    while parts <= 64 and rows.shape[1] % parts == 0 and rows.shape[1] // parts >= 32:
        cut = [each.view(clients * parts, -1, each.shape[2]) for each in (rows, grad)]

        def weigh(cut: Any = cut, parts: int = parts) -> Any:
            out = torch.bmm(cut[0].transpose(1, 2), cut[1])
            return out if parts == 1 else out.view(clients, parts, *out.shape[1:]).sum(1)

        found["weigh_us"][parts] = round(bench(weigh), 1)
        parts *= 2
    found["chosen"] = layers._split_count(rows, grad)
    return found
