"""The CPU trainer: the quick loop by several processes of one thread each, of which this one is the first.

Every process takes the next job from one queue in shared memory, largest first, so that all end together.
Who does a job changes no bit of its result, and neither does the number of processes. Processes start only
when so much has been trained that they are sure to pay, and join when they are ready; small calls stay here.
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
from flameche.training.fast_layers import QuickTrainer
from flameche.training.loop import Piece
from flameche.training.models import Models
from flameche.training.shared_memory import Segment
from flameche.training.trainer import Ints, Part, Pull, Sgd, TrainingPlan
from flameche.training.worker import describe
from flameche.training.worker_pool import Crew, Task, Training, Trying, queue, results, work

PATIENCE = 6.0  # seconds of work here before processes are started: twice what a start costs
LEAST_S = 0.02  # expected seconds of a call below which it is not shared
T = TypeVar("T")


class PoolTrainer(QuickTrainer):
    """Trains by up to `workers` processes, this one included; at most as many as there are cores."""

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        plan: TrainingPlan,
        seed: int,
        *,
        workers: int = 0,
        patience: float = PATIENCE,
        **options: Any,
    ) -> None:
        super().__init__(model, federation, plan, seed, **options)
        most = usable_cores() if os.name == "posix" and self.device == "cpu" else 1
        self._workers = min(workers or most, most)
        self._patience, self._spent = patience, 0.0
        self._pace: dict[type[Task], float] = {}  # seconds a sample, last time
        self._federation: Federation | None = federation
        self._crew: Crew | None = None

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Train clients [n], each from row pick[n] of models; the largest first."""
        task = Training(round, None if pull is None else pull.strength, sgd)
        samples = self.sizes[clients] * self.plan.epochs
        rows, pick = np.unique(pick, return_inverse=True)
        models, total = models.pick(rows), int(samples.sum())
        with _one_thread(), self._clocked(Training, total):
            if not self._shares(Training, len(clients), total):
                return super().train(models, pick, clients, round, pull, sgd)
            jobs = np.stack([pick, clients, np.arange(len(clients))], axis=1)
            jobs = jobs[np.argsort(-samples, kind="stable")]
            return self._share(task, queue(task, models, jobs, pull), lambda s: results(s.arrays))

    def _tried(self, models: Models, part: Part, pieces: list[Piece]) -> list[tuple[float, float]]:
        samples = sum(b - a for _, _, a, b in pieces)
        with _one_thread(), self._clocked(Trying, samples):
            if self._crew is None or not self._shares(Trying, len(pieces), samples):
                return super()._tried(models, part, pieces)
            task = Trying(part)
            jobs = queue(task, models, np.array(pieces, np.int64).reshape(-1, 4))
            return self._share(task, jobs, lambda s: [(a, b) for a, b in s.arrays["tried"].tolist()])

    def _shares(self, kind: type[Task], jobs: int, samples: int) -> bool:
        pays = samples * self._pace.get(kind, 1.0) >= LEAST_S
        return self._workers > 1 and jobs > 1 and pays

    def _share(self, task: Task, jobs: Segment, read: Callable[[Segment], T]) -> T:
        """Do a queue of jobs, with whoever is there; read the results out of it."""
        start = time.perf_counter()

        def between() -> None:
            if self._crew is None and self._spent + time.perf_counter() - start > self._patience:
                self._start()
            if self._crew is not None:
                self._crew.offer(task, jobs)

        try:
            if self._crew is not None:
                self._crew.offer(task, jobs)
            work(self, task, jobs, between)
            if self._crew is not None:
                self._crew.finish()
            return read(jobs)
        except BaseException:  # Ctrl-C too: processes in the middle of a task are of no more use
            self.close()
            raise
        finally:
            jobs.close()

    @contextmanager
    def _clocked(self, kind: type[Task], samples: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._spent += seconds
        self._pace[kind] = seconds / max(samples, 1)

    def _start(self) -> None:
        """Start the other processes; without them where the model cannot be sent."""
        federation, local = self._federation, self._local
        if federation is None:
            return
        self._federation = None
        try:
            data = describe(self, federation, None if local is None else local.numpy())
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            self._workers = 1
            warnings.warn(f"training by one process: the model cannot be sent ({problem})", stacklevel=2)
            return
        if local is not None:
            self.share_local(torch.from_numpy(data.arrays["local"]))
        self._crew = Crew(self._workers - 1, data)

    def start(self, seconds: float = 60.0) -> int:
        """Start the processes now and wait for them; say how many train, this one included."""
        if self._crew is None and self._workers > 1:
            self._start()
        return 1 + (self._crew.wait_until_ready(seconds) if self._crew is not None else 0)

    def close(self) -> None:
        """End the other processes; training goes on without them."""
        if self._crew is not None:
            self._crew.close()
        self._crew, self._workers = None, 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, so that bits depend on nothing but the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
