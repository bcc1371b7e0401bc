"""A worker process of the CPU trainer: maps the federation's data from shared memory and runs jobs.

It ends when told to, or when its standard input closes because its parent is gone.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flameche.data.federation import Federation, Samples
from flameche.training.device import prepare_torch
from flameche.training.fast_layers import FastLoopTrainer
from flameche.training.shared_memory import SharedArrays
from flameche.training.worker_pool import Task, run_jobs

PARTS = ("train", "holdout", "test")


def main() -> None:
    """Serve the pool at the other end of a socket whose descriptor is the first argument."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pool: Connection[Any, Any] = Connection(int(sys.argv[1]))
    prepare_torch("cpu", 1)
    try:
        pool.send(("hello", None))
        try:
            trainer = _unpack_trainer(_receive(pool, pool.recv()))
        except Exception as problem:  # a user's model can raise anything
            pool.send(("failed", _one_line(problem)))
            return
        pool.send(("ready", None))
        while True:
            task, spec = pool.recv()
            _serve(pool, trainer, task, _receive(pool, spec))
    except (EOFError, OSError):
        return  # the pool was closed


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _receive(pool: Connection[Any, Any], spec: Any) -> SharedArrays:
    return SharedArrays(recv_handle(pool), spec)


def _serve(pool: Connection[Any, Any], trainer: FastLoopTrainer, task: Task, shared: SharedArrays) -> None:
    answer: tuple[str, str | None] = ("done", None)
    try:
        run_jobs(trainer, task, shared)
    except Exception as problem:  # a user's model can raise anything
        answer = ("failed", _one_line(problem))
    shared.close()
    pool.send(answer)


def _one_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"


def pack_trainer(
    trainer: FastLoopTrainer, federation: Federation, local: NDArray[Any] | None
) -> SharedArrays:
    """Place what a worker needs in shared memory: settings of the trainer, samples, local statistics."""
    recipe = (trainer.model, trainer.plan, trainer.seed, trainer.dtype)
    names = (federation.name, federation.setting, federation.classes)
    arrays: dict[str, Any] = {"recipe": np.frombuffer(pickle.dumps((recipe, names)), np.uint8)}
    for part in PARTS:
        samples: Samples = getattr(federation, part)
        arrays |= {f"{part}.x": samples.x, f"{part}.y": samples.y, f"{part}.offsets": samples.offsets}
    arrays |= {"test_of": federation.test_of, "group": federation.group}
    if local is not None:
        arrays["local"] = local
    return SharedArrays.from_arrays(arrays)


def _unpack_trainer(shared: SharedArrays) -> FastLoopTrainer:
    """Build the trainer that `pack_trainer` packed, on the shared data."""
    sys.path.append(os.getcwd())  # where a user's model may be defined
    given = shared.arrays
    (model, plan, seed, dtype), (name, setting, classes) = pickle.loads(given["recipe"].tobytes())
    train, held, test = (Samples(given[f"{p}.x"], given[f"{p}.y"], given[f"{p}.offsets"]) for p in PARTS)
    federation = Federation(name, setting, classes, train, held, test, given["test_of"], given["group"])
    trainer = FastLoopTrainer(model, federation, plan, seed, dtype=dtype)
    if "local" in given:
        trainer.use_local_buffers(torch.from_numpy(given["local"]))
    return trainer


if __name__ == "__main__":
    main()
