"""One contender of `bench train`, in a process of its own: trains rounds and prints their seconds as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from flameche.data.federation import Federation, Samples
from flameche.models.build import build_model
from flameche.rng import stream
from flameche.training.device import finish, peak_device_memory, prepare_torch
from flameche.training.factory import make_trainer
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.loop import LoopTrainer
from flameche.training.pool import PoolTrainer
from flameche.training.trainer import Trainer, TrainingPlan
from flameche.training.vectorised import VectorisedTrainer
from flameche_benchmarks.machine import cpu_seconds, process_tree

CLASSES = 10


def noise_federation(clients: int, samples: int, shape: tuple[int, ...]) -> Federation:
    """Build a federation of one group whose images are noise."""
    rng = stream(0, "bench", "train")
    count = clients * samples
    offsets = np.arange(clients + 1) * samples
    x = rng.integers(0, 256, (count, *shape), np.uint8)
    train = Samples(x, rng.integers(0, CLASSES, count), offsets)
    nothing = Samples(x[:0], train.y[:0], 0 * offsets)
    test = Samples(x[:CLASSES], train.y[:CLASSES], np.array([0, CLASSES]))
    group = np.zeros(clients, np.int64)
    return Federation("noise", "none", CLASSES, train, nothing, test, group, group)


def build_trainer(contender: str, case: dict[str, Any], clients: int | None = None) -> Trainer:
    """Build a contender's trainer."""
    federation = noise_federation(clients or case["clients"], case["samples"], case["shape"])
    model = build_model(case["model"], federation.shape, CLASSES, 0)
    given = (model, federation, TrainingPlan(case["epochs"], case["batch"]), 0)
    if contender == "auto":
        return make_trainer("auto", *given, device=case["device"])
    if contender == "loop":
        return LoopTrainer(*given, device=case["device"])
    if contender == "vmap":
        return VectorisedTrainer(*given, device=case["device"])
    precision: Any = contender.removeprefix("fused ")
    return StackedTrainer(*given, device=case["device"], precision=precision)


def train_rounds(trainer: Trainer, case: dict[str, Any]) -> dict[str, Any]:
    """Train rounds; return the wall and CPU seconds of each."""
    clients = np.arange(case["clients"])
    models = trainer.initial()
    started, seconds, cpu = _start_pool(trainer), list[float](), list[float]()
    begin = time.perf_counter()
    while len(seconds) < 2 or (
        len(seconds) < case["rounds"] and time.perf_counter() - begin < case["seconds"]
    ):
        start, spent = time.perf_counter(), cpu_seconds(process_tree(os.getpid()))
        trainer.train(models, 0 * clients, clients, len(seconds) + 1)
        finish(case["device"])
        seconds.append(time.perf_counter() - start)
        cpu.append(cpu_seconds(process_tree(os.getpid())) - spent)
    seconds[0] += started
    return {"seconds": seconds, "cpu": cpu, "cuda_mb": peak_device_memory(case["device"]) / 1e6}


def _start_pool(trainer: Trainer) -> float:
    """Start a pool's processes now rather than on first use; return the seconds that takes."""
    start = time.perf_counter()
    if isinstance(trainer, PoolTrainer):
        trainer.start()
    return time.perf_counter() - start


def main() -> None:
    """Run the contender named first on the case given second."""
    contender, case = sys.argv[1], json.loads(sys.argv[2])
    case["shape"] = tuple(case["shape"])
    prepare_torch(case["device"], 1)
    trainer = build_trainer(contender, case)
    found = train_rounds(trainer, case)
    trainer.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
