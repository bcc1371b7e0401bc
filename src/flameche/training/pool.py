"""The CPU trainer: the fast loop in several single-threaded processes, of which this one is the first.

Every process takes the next job from a queue in shared memory, largest first, so that all finish together.
Results depend neither on which process does a job nor on the number of processes, to the bit. Processes are
started only after enough training that starting them pays, and join when they are ready; small calls stay in
this process.
"""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from flameche.data.federation import Federation
from flameche.training.device import usable_cores
from flameche.training.fast_layers import FastLoopTrainer
from flameche.training.loop import ScoreChunk
from flameche.training.models import Models
from flameche.training.shared_memory import SharedArrays
from flameche.training.trainer import Ints, Part, Pull, Sgd, TrainingPlan
from flameche.training.worker import pack_trainer
from flameche.training.worker_pool import (
    ScoreTask,
    Task,
    TrainTask,
    WorkerPool,
    job_queue,
    read_models,
    run_jobs,
)

START_AFTER_S = 6.0  # seconds of training before processes are started: twice the cost of starting them
MIN_SHARED_S = 0.02  # calls expected to take less stay in this process
T = TypeVar("T")


class PoolTrainer(FastLoopTrainer):
    """Trains with up to `workers` processes including this one, at most one per core."""

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        plan: TrainingPlan,
        seed: int,
        *,
        workers: int = 0,
        start_after: float = START_AFTER_S,
        **options: Any,
    ) -> None:
        super().__init__(model, federation, plan, seed, **options)
        most = usable_cores() if os.name == "posix" and self.device == "cpu" else 1
        self._workers = min(workers or most, most)
        self._start_after, self._seconds_trained = start_after, 0.0
        self._seconds_per_sample: dict[type[Task], float] = {}  # of the last call
        self._federation: Federation | None = federation
        self._worker_pool: WorkerPool | None = None

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Train clients [n], each from row pick[n] of models, largest first."""
        task = TrainTask(round, None if pull is None else pull.strength, sgd)
        samples = self.sizes[clients] * self.plan.epochs
        rows, pick = np.unique(pick, return_inverse=True)
        models, total = models.pick(rows), int(samples.sum())
        with _one_thread(), self._timed(TrainTask, total):
            if not self._worth_sharing(TrainTask, len(clients), total):
                return super().train(models, pick, clients, round, pull, sgd)
            jobs = np.stack([pick, clients, np.arange(len(clients))], axis=1)
            jobs = jobs[np.argsort(-samples, kind="stable")]
            return self._run_shared(
                task, job_queue(task, models, jobs, pull), lambda s: read_models(s.arrays)
            )

    def _score_chunks(
        self, models: Models, part: Part, chunks: list[ScoreChunk]
    ) -> list[tuple[float, float]]:
        samples = sum(b - a for _, _, a, b in chunks)
        with _one_thread(), self._timed(ScoreTask, samples):
            if self._worker_pool is None or not self._worth_sharing(ScoreTask, len(chunks), samples):
                return super()._score_chunks(models, part, chunks)
            task = ScoreTask(part)
            jobs = job_queue(task, models, np.array(chunks, np.int64).reshape(-1, 4))
            return self._run_shared(task, jobs, lambda s: [(a, b) for a, b in s.arrays["scores"].tolist()])

    def _worth_sharing(self, kind: type[Task], jobs: int, samples: int) -> bool:
        pays = samples * self._seconds_per_sample.get(kind, 1.0) >= MIN_SHARED_S
        return self._workers > 1 and jobs > 1 and pays

    def _run_shared(self, task: Task, jobs: SharedArrays, read: Callable[[SharedArrays], T]) -> T:
        """Run a queue of jobs with all processes that are ready, and read the results."""
        start = time.perf_counter()

        def between() -> None:
            if (
                self._worker_pool is None
                and self._seconds_trained + time.perf_counter() - start > self._start_after
            ):
                self._start()
            if self._worker_pool is not None:
                self._worker_pool.assign(task, jobs)

        try:
            if self._worker_pool is not None:
                self._worker_pool.assign(task, jobs)
            run_jobs(self, task, jobs, between)
            if self._worker_pool is not None:
                self._worker_pool.wait_until_idle()
            return read(jobs)
        except BaseException:  # also Ctrl-C: workers interrupted in a task cannot be reused
            self.close()
            raise
        finally:
            jobs.close()

    @contextmanager
    def _timed(self, kind: type[Task], samples: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._seconds_trained += seconds
        self._seconds_per_sample[kind] = seconds / max(samples, 1)

    def _start(self) -> None:
        """Start the other processes, unless the model cannot be pickled."""
        federation, local = self._federation, self._local_buffers
        if federation is None:
            return
        self._federation = None
        try:
            data = pack_trainer(self, federation, None if local is None else local.numpy())
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            self._workers = 1
            warnings.warn(f"training in one process: the model cannot be pickled ({problem})", stacklevel=2)
            return
        if local is not None:
            self.use_local_buffers(torch.from_numpy(data.arrays["local"]))
        self._worker_pool = WorkerPool(self._workers - 1, data)

    def start(self, seconds: float = 60.0) -> int:
        """Start the processes now and wait for them; return how many train, including this one."""
        if self._worker_pool is None and self._workers > 1:
            self._start()
        return 1 + (self._worker_pool.wait_until_ready(seconds) if self._worker_pool is not None else 0)

    def close(self) -> None:
        """End the other processes; training continues in this one."""
        if self._worker_pool is not None:
            self._worker_pool.close()
        self._worker_pool, self._workers = None, 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, so that results do not depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
