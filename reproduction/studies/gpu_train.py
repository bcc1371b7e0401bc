"""Measures local training on one GPU: plain loop, vmap, stacked layers; a whole run; many clients; accuracy.

Prints a JSON line per finding, as it goes; a part that fails prints its error and the rest goes on.
python reproduction/studies/gpu_train.py [--quick] [--nets lenet5,resnet18] [--parts
check,tune,rounds,profile,layers, score,run,scale,accuracy]; `gpu_layers.py` has what measures single
layers. `table [outputs ...]` writes results/gpu-train.md, by `gpu_table.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import numpy as np
import torch
from gpu_layers import DEVICE, bench, layer_times, say, tune
from gpu_table import write

from flameche.data import build_federation, load_npz
from flameche.data.federation import Federation, Samples
from flameche.experiments.provenance import provenance
from flameche.models.build import build_model
from flameche.training.device import finish, prepare_torch
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.kernels.torch_ops import TorchOps
from flameche.training.loop import LoopTrainer
from flameche.training.models import average
from flameche.training.trainer import Sgd, TrainingPlan
from flameche.training.vectorised import VectorisedTrainer

SHAPES = {"lenet5": (1, 28, 28), "resnet18": (3, 32, 32), "small-cnn": (1, 8, 8)}
PLANS = {"lenet5": (5, 128), "resnet18": (10, 256), "small-cnn": (5, 32)}
BEST: dict[Any, Any] = {}  # tiles that `tune` found


def attempt(name: str, work: Callable[[], None]) -> None:
    """Do a part; if it fails, say so and go on."""
    start = time.perf_counter()
    try:
        work()
    except Exception as problem:
        tail = traceback.format_exc().splitlines()[-14:]
        say(part=name, error=f"{type(problem).__name__}: {str(problem)[:600]}", tail=tail)
    if DEVICE == "cuda":
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as problem:
            say(part=name, fatal=str(problem)[:300])
    say(part=name, took_s=round(time.perf_counter() - start, 2))


def federation(net: str, clients: int, size: int, tests: int, sizes: list[int] | None = None) -> Federation:
    """Random images whose classes can be learnt a little: a bright patch whose place tells the class."""
    rng, shape = np.random.default_rng(0), SHAPES[net]

    def samples(counts: list[int]) -> Samples:
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        y = rng.integers(0, 10, offsets[-1])
        x = rng.integers(0, 128, (offsets[-1], *shape), dtype=np.uint8)
        side = max(1, shape[1] // 7)
        for label in range(10):
            row, column = divmod(label, 4)
            place = (
                slice(None),
                slice(row * side, (row + 1) * side),
                slice(column * side, (column + 1) * side),
            )
            x[(y == label, *place)] += 100
        return Samples(x, y, offsets)

    group = np.arange(clients) * 4 // clients
    own = samples(sizes or [size] * clients)
    return Federation("made", "none", 10, own, samples([0] * clients), samples([tests] * 4), group, group)


def trainer(cls: Any, net: str, data: Federation, plan: TrainingPlan, **more: Any) -> Any:
    """Make one."""
    model = build_model(net, SHAPES[net], 10, seed=0)
    own = cls(model, data, plan, 7, device=DEVICE, **more)
    if hasattr(getattr(own, "_ops", None), "conv_kernels"):
        own._ops.conv_kernels.overrides.update(BEST)
    return own


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    """Give the relative distance."""
    return float((a - b).double().norm() / b.double().norm().clamp(min=1e-30))


def check(net: str, slidings: list[str]) -> None:
    """Compare with the plain loop: float64 to round-off, and gradients of one step in lower precisions."""
    # BatchNorm over a handful of values amplifies round-off: batches of a ResNet must not be tiny.
    sizes, batch = ([64, 65, 48, 33, 40], 32) if net == "resnet18" else ([40, 33, 17, 64, 2], 16)
    data, plan = federation(net, 5, 0, 8, sizes), TrainingPlan(epochs=1, batch=batch)
    who, pick = np.arange(5), np.zeros(5, np.int64)
    loop = trainer(LoopTrainer, net, data, plan, dtype=torch.float64)
    ours = trainer(StackedTrainer, net, data, plan, dtype=torch.float64)
    for number in (1, 2, 3):  # runs, captures, replays
        found = [each.train(each.initial(), pick, who, number) for each in (loop, ours)]
        gaps = {key: getattr(found[0], key) - getattr(found[1], key) for key in ("params", "buffers")}
        say(check=net, dtype="float64", round=number,
            **{key: float(gap.abs().max()) if gap.numel() else 0.0 for key, gap in gaps.items()})  # fmt: skip
    say(
        check=net,
        accuracy=bool(
            np.array_equal(loop.accuracy(loop.initial(), pick), ours.accuracy(ours.initial(), pick))
        ),
    )
    # One SGD step of rate 1 shows the gradient itself.
    one = TrainingPlan(epochs=1, batch=64)
    exact = trainer(LoopTrainer, net, data, one, dtype=torch.float64)
    start = exact.initial()
    truth = exact.train(start, pick, who, 1, sgd=Sgd(1.0))
    moved = truth.params - start.params
    kinds: list[tuple[str, dict[str, Any]]] = [("fp32 torch", {"ops": TorchOps()})]
    kinds += [(f"{each} {s}", {"implicit_convs": s}) for s in slidings for each in ("fp32", "tf32", "bf16")]
    for name, more in kinds:
        own = trainer(StackedTrainer, net, data, one, precision=name.split()[0], **more)
        for number in range(3):
            mine = own.train(own.initial(), pick, who, 1, sgd=Sgd(1.0))
            got = mine.params.double() - start.params
            say(check=net, gradient=name, call=number, off=round(off(got, moved), 6),
                buffers=round(off(mine.buffers.double(), truth.buffers), 6))  # fmt: skip


def timed(work: Callable[[int], Any], rounds: int, budget_s: float) -> tuple[float, list[float]]:
    """Time the first call, in s, and later ones, in ms."""
    start = time.perf_counter()
    work(0)
    first = time.perf_counter() - start
    found: list[float] = []
    begun = time.perf_counter()
    for number in range(1, rounds + 1):
        start = time.perf_counter()
        work(number)
        found.append(1000 * (time.perf_counter() - start))
        if time.perf_counter() - begun > budget_s and len(found) > 1:
            break
    return first, found


def ways(args: Any) -> list[tuple[str, Any, dict[str, Any]]]:
    """List the trainers to compare."""
    listed: list[tuple[str, Any, dict[str, Any]]] = [
        ("loop", LoopTrainer, {}),
        ("vmap", VectorisedTrainer, {}),
    ]
    for precision in args.precisions:
        for prim in args.prims:
            for sliding in args.sliding if prim == "triton" else ["small"]:
                more: dict[str, Any] = {"precision": precision, "implicit_convs": sliding}
                more |= {"ops": TorchOps()} if prim == "torch" else {}
                listed.append((f"fused {precision} {prim} {sliding}", StackedTrainer, more))
    return listed


def rounds(net: str, data: Federation, plan: TrainingPlan, args: Any, clients: int) -> None:
    """Time a round of every trainer."""
    who, pick = np.arange(clients), np.zeros(clients, np.int64)
    for name, cls, more in ways(args):
        if args.only and not name.startswith(tuple(args.only)):
            continue

        def work(name: str = name, cls: Any = cls, more: dict[str, Any] = more) -> None:
            own = trainer(cls, net, data, plan, **more)
            start = own.initial()
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            # Loops show their time in one round; captured graphs need two to be captured.
            first, times = timed(lambda n: own.train(start, pick, who, n + 1), args.rounds, 12.0)
            late = times[1:] or times
            peak = torch.cuda.max_memory_reserved() / 2**30 if DEVICE == "cuda" else 0.0
            say(net=net, way=name, round_ms=round(statistics.median(late), 2), least=round(min(late), 2),
                first_s=round(first, 2), second_ms=round(times[0], 1), n=len(late),
                peak_gib=round(peak, 2))  # fmt: skip
            if cls is StackedTrainer and "profile" in args.parts and DEVICE == "cuda" and "torch" not in name:
                profile(net, name, lambda: own.train(start, pick, who, 99))

        attempt(f"rounds {net} {name}", work)


def profile(net: str, name: str, work: Callable[[], Any]) -> None:
    """Print the kernels that took longest."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as record:
        work()
        finish(DEVICE)
    totals: dict[str, list[float]] = {}
    spans = []
    for event in record.events():
        if str(event.device_type).endswith("CUDA"):
            mine = totals.setdefault(event.name, [0.0, 0])
            mine[0] += event.time_range.elapsed_us()
            mine[1] += 1
            spans.append((event.time_range.start, event.time_range.end))
    busy = sum(each[0] for each in totals.values())
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    say(
        profile=net,
        way=name,
        busy_ms=round(busy / 1000, 2),
        wall_ms=round(wall / 1000, 2),
        kernels=len(spans),
    )
    for kernel, (us, calls) in sorted(totals.items(), key=lambda item: -item[1][0])[:25]:
        say(kernel=kernel[:110], ms=round(us / 1000, 3), calls=int(calls), us_each=round(us / calls, 1),
            share=round(us / busy, 3))  # fmt: skip


def scores(net: str, data: Federation, plan: TrainingPlan, args: Any, precision: str) -> None:
    """Time the scoring of four models, each on its own test set."""
    for sliding in args.sliding:
        own = trainer(StackedTrainer, net, data, plan, precision=precision, implicit_convs=sliding)
        models, pick = own.initial().pick(np.zeros(4, np.int64)), data.group
        first, times = timed(lambda n: own.accuracy(models, pick), 5, 10.0)  # noqa: B023
        say(score=net, precision=precision, sliding=sliding, ms=round(statistics.median(times), 2),
            first_s=round(first, 2), images=int(data.test.offsets[-1]))  # fmt: skip
        if "profile" in args.parts and DEVICE == "cuda":
            profile(net, f"score {precision} {sliding}", lambda: own.accuracy(models, pick))  # noqa: B023


def whole_run(net: str, args: Any, plan: TrainingPlan, precision: str, sliding: str) -> None:
    """Play a run: 100 clients, 20 a round, four clusters averaged and scored on 10,000 images each."""
    clients, size, tests = (8, 12, 16) if args.quick else (100, 500, 10_000)
    data = federation(net, clients, size, tests)
    begun = time.perf_counter()
    own = trainer(StackedTrainer, net, data, plan, precision=precision, implicit_convs=sliding)
    models, rng = own.initial(), np.random.default_rng(0)
    models = models.pick(np.zeros(4, np.int64))
    ready = time.perf_counter() - begun
    spent = {"train": 0.0, "average": 0.0, "score": 0.0}
    accuracy = np.zeros(1)
    number = 3 if args.quick else args.run_rounds
    begun = time.perf_counter()
    first = 0.0
    for r in range(1, number + 1):
        who = np.sort(rng.choice(clients, clients // 5, replace=False))
        a = time.perf_counter()
        trained = own.train(models, data.group[who], who, r)
        b = time.perf_counter()
        models = average(models, trained, data.group[who])
        finish(DEVICE)
        c = time.perf_counter()
        accuracy = own.accuracy(models, data.group)
        d = time.perf_counter()
        for key, value in zip(spent, (b - a, c - b, d - c), strict=True):
            spent[key] += value
        if r == 2:
            first = d - begun
    total = time.perf_counter() - begun
    say(run=net, precision=precision, sliding=sliding, rounds=number, total_s=round(total, 2),
        ready_s=round(ready, 2), first_two_s=round(first, 2), accuracy=round(float(accuracy.mean()), 4),
        **{key: round(value, 3) for key, value in spent.items()})  # fmt: skip


def scale(net: str, args: Any) -> None:
    """Train 25 to 200 of 1,000 clients a round: time, memory against the budget, by default and in 8 GiB."""
    clients, size, counts = (16, 12, (2, 4)) if args.quick else (1000, 500, (25, 50, 100, 200))
    epochs, batch = (1, 8) if args.quick else PLANS[net]
    data = federation(net, clients, size, 16)
    for budget in (None, 8.0):
        plan = TrainingPlan(epochs=epochs, batch=batch)
        own = trainer(StackedTrainer, net, data, plan, budget_gib=budget)
        start, rng = own.initial(), np.random.default_rng(0)
        for count in counts if budget is None else counts[-1:]:
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_reserved() / 2**30 if DEVICE == "cuda" else 0.0
            who = np.sort(rng.choice(clients, count, replace=False))
            pick = np.zeros(count, np.int64)
            first, times = timed(lambda n: own.train(start, pick, who, n), 2, 10.0)  # noqa: B023
            peak = torch.cuda.max_memory_reserved() / 2**30 if DEVICE == "cuda" else 0.0
            each = round(times[-1] / count, 2)
            say(scale=net, clients=count, round_ms=round(times[-1], 1), per_client_ms=each,
                first_s=round(first, 2), peak_gib=round(peak, 2), before_gib=round(before, 2),
                budget_gib=round(own._budget / 2**30, 2), width=[key[0] for key in own._stacks],
                each_gib=round(own._bytes_per_client / 2**30, 4))  # fmt: skip


def hard(seed: int, clients: int, size: int, tests: int) -> Federation:
    """Ten blurred shapes that overlap, moved about and under noise: learnt slowly and never quite."""
    rng = np.random.default_rng(seed)
    shapes = rng.normal(size=(10, 7, 7)).repeat(4, 1).repeat(4, 2) * 0.5 + rng.normal(size=(28, 28)) * 0.5

    def samples(counts: list[int]) -> Samples:
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        y = rng.integers(0, 10, offsets[-1])
        x = shapes[y]
        for axis in (1, 2):
            moved = rng.integers(-3, 4, len(x))
            for shift in range(-3, 4):
                x[moved == shift] = np.roll(x[moved == shift], shift, axis)
        x = x + rng.normal(size=x.shape) * 1.5
        return Samples(np.clip(x * 40 + 128, 0, 255).astype(np.uint8)[:, None], y, offsets)

    group = np.zeros(clients, np.int64)
    own, held, test = samples([size] * clients), samples([0] * clients), samples([tests])
    return Federation("hard", "none", 10, own, held, test, group, group)


def given(path: str, seed: int, clients: int, size: int) -> Federation:
    """Deal images of a user's npz."""
    dataset = load_npz(Path(path))
    return build_federation(dataset, seed=seed, clients=clients, groups=1, per_label=size // 10,
                            heterogeneity="none")  # fmt: skip


def accuracy(args: Any) -> None:
    """Train LeNet-5 for 20 rounds by every trainer and precision, over seeds: do they agree within noise?"""
    clients, size, tests, number = (3, 20, 50, 2) if args.quick else (10, 250, 5000, 20)
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {"loop fp32": (LoopTrainer, {})}
    kinds |= {f"fused {each}": (StackedTrainer, {"precision": each}) for each in ("fp32", "tf32", "bf16")}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for seed in range(3):
        data = given(args.data, seed, clients, size) if args.data else hard(seed, clients, size, tests)
        for name, (cls, more) in kinds.items():
            model = build_model("lenet5", data.shape, data.classes, seed=seed)
            own = cls(model, data, TrainingPlan(), seed, device=DEVICE, **more)
            models, none = own.initial(), np.zeros(clients, np.int64)
            for r in range(1, number + 1):
                models = average(models, own.train(models, none, np.arange(clients), r), none)
            found[name].append(float(own.accuracy(models, none).mean()))
    for name, scores in found.items():
        gaps = [a - b for a, b in zip(scores, found["loop fp32"], strict=True)]
        say(accuracy=name, data=args.data or "made", rounds=number, mean=round(statistics.mean(scores), 4),
            seeds=[round(each, 4) for each in scores], over_seeds_sd=round(statistics.stdev(scores), 4),
            gap_mean=round(statistics.mean(gaps), 4), gap_worst=round(max(map(abs, gaps)), 4))  # fmt: skip


def machine() -> None:
    """Say what this runs on, and how fast it copies."""
    found = provenance(DEVICE)
    if DEVICE == "cuda":
        source = torch.randn(2**28, device=DEVICE)
        target = torch.empty_like(source)
        us = bench(lambda: target.copy_(source))
        found["copy_tb_s"] = round(2 * source.numel() * 4 / us / 1e6, 2)
    say(**found)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__)
    listed = {"type": lambda text: [each for each in text.split(",") if each]}
    every = ["check", "tune", "rounds", "profile", "layers", "score", "run", "scale", "accuracy"]
    parser.add_argument("what", nargs="?", default="measure", choices=["measure", "table"])
    parser.add_argument("outputs", nargs="*", type=Path, help="of table: what measurements printed")
    parser.add_argument("--nets", default=["lenet5", "resnet18"], **listed)  # type: ignore[arg-type]
    parser.add_argument("--parts", default=every, **listed)  # type: ignore[arg-type]
    parser.add_argument("--precisions", default=["tf32", "bf16"], **listed)  # type: ignore[arg-type]
    parser.add_argument("--prims", default=["triton", "torch"], **listed)  # type: ignore[arg-type]
    parser.add_argument(
        "--sliding", default=["small"], help="of none,small,first,all: convolutions without patches", **listed
    )  # type: ignore[arg-type]
    parser.add_argument(
        "--only", default=[], help="ways to time, by how they begin: loop,vmap,fused", **listed
    )  # type: ignore[arg-type]
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--run-rounds", type=int, default=100)
    parser.add_argument("--data", default="", help="an npz for the accuracy part")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.what == "table":
        write(args.outputs)
        return
    prepare_torch(DEVICE, 1)
    attempt("machine", machine)
    if args.quick:
        args.rounds = 2
    for net in args.nets:
        one(net, args)
    if "accuracy" in args.parts:
        attempt("accuracy", lambda: accuracy(args))


def one(net: str, args: Any) -> None:
    """Measure a network."""
    clients, size, tests = (3, 20, 16) if args.quick else (20, 500, 10_000)
    epochs, batch = (1, 8) if args.quick else PLANS[net]
    plan, data = TrainingPlan(epochs=epochs, batch=batch), federation(net, clients, size, tests)

    def tuned(precision: str) -> None:
        own = trainer(StackedTrainer, net, data, plan, precision=precision, implicit_convs=args.sliding[-1])
        BEST.update(tune(own, net, clients, lambda layer: layer.reads_images or layer.map_shape.height >= 8))

    def layered(precision: str) -> None:
        layer_times(trainer(StackedTrainer, net, data, plan, precision=precision), net, clients, precision)

    if "check" in args.parts:
        attempt(f"check {net}", lambda: check(net, args.sliding))
    if "tune" in args.parts and DEVICE == "cuda":
        for precision in args.precisions:
            attempt(f"tune {net} {precision}", lambda: tuned(precision))  # noqa: B023
    if "rounds" in args.parts:
        rounds(net, data, plan, args, clients)
    for precision in args.precisions:
        if "layers" in args.parts:
            attempt(f"layers {net} {precision}", lambda: layered(precision))  # noqa: B023
        if "score" in args.parts:
            attempt(f"score {net} {precision}", lambda: scores(net, data, plan, args, precision))  # noqa: B023
        for sliding in args.sliding if "run" in args.parts else []:
            name = f"run {net} {precision} {sliding}"
            attempt(name, lambda: whole_run(net, args, plan, precision, sliding))  # noqa: B023
    if "scale" in args.parts:
        attempt(f"scale {net}", lambda: scale(net, args))


if __name__ == "__main__":
    main()
