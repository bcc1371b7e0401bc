"""What training processes do together: a queue of jobs in shared memory, of which each takes the next.

Jobs are clients to train or samples to try. Who does a job changes no result, so the queue balances itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flameche.training.loop import LoopTrainer
from flameche.training.models import Models
from flameche.training.segment import Arrays, Segment, Spec
from flameche.training.trainer import Ints, Part, Pull, Sgd


@dataclass(frozen=True)
class Training:
    """Train: a job is (row of the models, client, row of the result)."""

    round: int
    strength: float | None  # of a pull, whose target lies in shared memory too
    sgd: Sgd | None


@dataclass(frozen=True)
class Trying:
    """Try: a job is (row of the models, client, first sample, last sample + 1)."""

    part: Part


Task = Training | Trying


def queue(task: Task, models: Models, jobs: Ints, pull: Pull | None = None) -> Segment:
    """Lay models [M] and jobs [n ·] out in shared memory, with room for results."""
    arrays: dict[str, NDArray[Any]] = {"taken": np.zeros(1, np.int64), "jobs": jobs, **models.to_arrays()}
    room: Spec = [("tried", "<f8", (len(jobs), 2))]
    if isinstance(task, Training):
        room = [
            (name, arrays[kind].dtype.str, (len(jobs), arrays[kind].shape[1]))
            for name, kind in (("trained", "params"), ("statistics", "buffers"))
        ]
    if pull is not None:
        arrays["target"] = pull.target.to_arrays()["params"][:1]
    return Segment.holding(arrays, room)


def take(segment: Segment) -> int:
    """Take the next job's number; the lock is the kernel's, who frees it if its holder dies."""
    import fcntl  # not on Windows, where nothing is shared

    taken = segment.arrays["taken"]
    fcntl.lockf(segment.fd, fcntl.LOCK_EX)
    try:
        number = int(taken[0])
        taken[0] = number + 1
    finally:
        fcntl.lockf(segment.fd, fcntl.LOCK_UN)
    return number


def work(
    trainer: LoopTrainer, task: Task, segment: Segment, between: Callable[[], None] | None = None
) -> None:
    """Do jobs until none is left; call `between` after each."""
    arrays = {name: torch.from_numpy(array) for name, array in segment.arrays.items()}
    models = Models(arrays["params"], arrays["buffers"])
    jobs = segment.arrays["jobs"].tolist()
    with torch.random.fork_rng(devices=[]):
        while (number := take(segment)) < len(jobs):
            if isinstance(task, Training):
                k, client, row = jobs[number]
                pull = None if task.strength is None else Pull(_target(arrays["target"]), task.strength)
                params, buffers = trainer.train_one(models, k, client, task.round, pull, task.sgd)
                arrays["trained"][row], arrays["statistics"][row] = params, buffers
            else:
                segment.arrays["tried"][number] = trainer.try_piece(models, task.part, tuple(jobs[number]))
            if between:
                between()


def results(arrays: Arrays) -> Models:
    """Copy trained models out of shared memory."""
    return Models(*(torch.from_numpy(arrays[name].copy()) for name in ("trained", "statistics")))


def _target(params: torch.Tensor) -> Models:
    return Models(params, params.new_empty(1, 0))
