"""Worker processes of the CPU trainer: the job queue they share, and starting, monitoring and ending them.

A job trains one client or evaluates one chunk of samples. Jobs lie in shared memory and every process takes
the next one, so the load balances itself; which process does a job does not change its result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from flameche.errors import TrainingError
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models
from flameche.training.shared_memory import Arrays, SharedArrays, Spec
from flameche.training.trainer import Ints, Part, Pull, Sgd


@dataclass(frozen=True)
class TrainTask:
    """Training; a job is (row of the models, client, row of the result)."""

    round: int
    strength: float | None  # of a proximal term, whose target is in shared memory too
    sgd: Sgd | None


@dataclass(frozen=True)
class ScoreTask:
    """Evaluation; a job is (row of the models, client, first sample, last sample + 1)."""

    part: Part


Task = TrainTask | ScoreTask


def job_queue(task: Task, models: Models, jobs: Ints, pull: Pull | None = None) -> SharedArrays:
    """Place models [M] and jobs [n ...] in shared memory, with space for the results."""
    arrays: dict[str, NDArray[Any]] = {"taken": np.zeros(1, np.int64), "jobs": jobs, **models.to_arrays()}
    extra: Spec = [("scores", "<f8", (len(jobs), 2))]
    if isinstance(task, TrainTask):
        extra = [
            (name, arrays[kind].dtype.str, (len(jobs), arrays[kind].shape[1]))
            for name, kind in (("trained", "params"), ("statistics", "buffers"))
        ]
    if pull is not None:
        arrays["target"] = pull.target.to_arrays()["params"][:1]
    return SharedArrays.from_arrays(arrays, extra)


def next_job(shared: SharedArrays) -> int:
    """Take the next job's number, under a file lock that the kernel releases if its holder dies."""
    import fcntl  # not on Windows, which has no worker processes

    taken = shared.arrays["taken"]
    fcntl.lockf(shared.fd, fcntl.LOCK_EX)
    try:
        number = int(taken[0])
        taken[0] = number + 1
    finally:
        fcntl.lockf(shared.fd, fcntl.LOCK_UN)
    return number


def run_jobs(
    trainer: LoopTrainer, task: Task, shared: SharedArrays, between: Callable[[], None] | None = None
) -> None:
    """Run jobs until none is left; call `between` after each."""
    arrays = {name: torch.from_numpy(array) for name, array in shared.arrays.items()}
    models = Models(arrays["params"], arrays["buffers"])
    jobs = shared.arrays["jobs"].tolist()
    with torch.random.fork_rng(devices=[]):
        while (number := next_job(shared)) < len(jobs):
            if isinstance(task, TrainTask):
                k, client, row = jobs[number]
                pull = None if task.strength is None else Pull(_target(arrays["target"]), task.strength)
                params, buffers = trainer.train_one(models, k, client, task.round, pull, task.sgd)
                arrays["trained"][row], arrays["statistics"][row] = params, buffers
            else:
                shared.arrays["scores"][number] = trainer.score_chunk(models, task.part, tuple(jobs[number]))
            if between:
                between()


def read_models(arrays: Arrays) -> Models:
    """Copy the trained models out of shared memory."""
    return Models(*(torch.from_numpy(arrays[name].copy()) for name in ("trained", "statistics")))


def _target(params: torch.Tensor) -> Models:
    return Models(params, params.new_empty(1, 0))


State = Literal["starting", "loading", "idle", "busy"]
# One thread each, whatever the libraries' defaults; no CUDA context.
WORKER_ENV = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class WorkerProcess:
    """A worker process and the socket to it."""

    def __init__(self) -> None:
        self.state: State = "starting"
        ours, its = Pipe()
        self.pipe: Connection[Any, Any] = ours
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flameche.training.worker", str(its.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,  # Ctrl-C goes to the parent only
            env={**os.environ, **WORKER_ENV, "PYTHONPATH": path},
        )
        its.close()

    def send(self, message: object, shared: SharedArrays) -> None:
        """Send a message and shared memory."""
        self.pipe.send(message)
        send_handle(self.pipe, shared.fd, self.process.pid)

    def kill(self) -> None:
        """Kill the process and wait for it; it holds nothing that must be saved."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self.pipe.close()


class WorkerPool:
    """Worker processes that share one trainer's data; none outlives the process that started it."""

    def __init__(self, workers: int, data: SharedArrays) -> None:
        self._data = data
        self._workers: list[WorkerProcess] = []
        self._end = weakref.finalize(self, _end_all, self._workers, data)  # also at interpreter exit
        try:
            for _ in range(workers):
                self._workers.append(WorkerProcess())
        except OSError as problem:
            _warn_not_started(str(problem))

    def assign(self, task: Task, jobs: SharedArrays) -> None:
        """Give the task to all workers that are ready by now, without waiting."""
        self.receive(0.0)
        for worker in self._workers:
            if worker.state == "idle":
                _send(worker, lambda w: w.send((task, jobs.spec), jobs), "busy")

    def wait_until_idle(self) -> None:
        """Wait until no worker is busy."""
        while any(worker.state == "busy" for worker in self._workers):
            self.receive(None)

    def wait_until_ready(self, seconds: float) -> int:
        """Wait for workers that are starting; return how many are ready."""
        deadline = time.monotonic() + seconds
        while any(w.state in ("starting", "loading") for w in self._workers) and time.monotonic() < deadline:
            self.receive(deadline - time.monotonic())
        return sum(worker.state in ("idle", "busy") for worker in self._workers)

    def receive(self, seconds: float | None) -> None:
        """Process the workers' messages."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), seconds):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                what, why = worker.pipe.recv()
            except (EOFError, OSError) as problem:
                what, why = "failed", _exit_reason(worker)
                if worker.state in ("idle", "busy"):
                    raise _died(worker) from problem
            if what == "failed" and worker.state == "busy":
                raise TrainingError(f"a training process failed: {why}")
            if what == "failed":  # it failed to start; the others continue
                self._workers.remove(worker)
                worker.kill()
                _warn_not_started(why)
            elif what == "hello":
                _send(worker, lambda w: w.send(self._data.spec, self._data), "loading")
            else:
                worker.state = "idle"

    @property
    def pids(self) -> list[int]:
        """List the process ids."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End all processes."""
        self._end()


def _end_all(workers: list[WorkerProcess], data: SharedArrays) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()
    data.close()


def _send(worker: WorkerProcess, say: Callable[[WorkerProcess], None], then: State) -> None:
    try:
        say(worker)
    except OSError as problem:
        raise _died(worker) from problem
    worker.state = then


def _died(worker: WorkerProcess) -> TrainingError:
    return TrainingError(
        f"a training process ended unexpectedly ({_exit_reason(worker)}); run again to go on from the last "
        "checkpoint, with fewer processes (training.threads) if memory was short"
    )


def _warn_not_started(why: str) -> None:
    warnings.warn(f"training with fewer processes: one could not start ({why})", stacklevel=3)


def _exit_reason(worker: WorkerProcess) -> str:
    """Describe how a process ended that no longer answers."""
    try:
        code = worker.process.wait(5)
    except subprocess.TimeoutExpired:
        return "it does not answer"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
