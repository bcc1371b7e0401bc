"""The processes of a pool: started, given tasks, watched, ended. None outlives whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from typing import Any, Literal

from flameche.errors import TrainingError
from flameche.training.jobs import Task
from flameche.training.segment import Segment

State = Literal["starting", "learning", "idle", "busy"]
# One thread each, whatever libraries think of the machine; no second context on a GPU.
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Worker:
    """A process, and the socket to it."""

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
            start_new_session=True,  # Ctrl-C is for whoever started it
            env={**os.environ, **QUIET, "PYTHONPATH": path},
        )
        its.close()

    def give(self, message: object, segment: Segment) -> None:
        """Send a message and shared memory."""
        self.pipe.send(message)
        send_handle(self.pipe, segment.fd, self.process.pid)

    def end(self) -> None:
        """Kill the process and wait for it; it holds nothing that must be saved."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self.pipe.close()


class Crew:
    """Workers that share one trainer's data."""

    def __init__(self, workers: int, data: Segment) -> None:
        self._data = data
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _end_all, self._workers, data)  # also when Python ends
        try:
            for _ in range(workers):
                self._workers.append(Worker())
        except OSError as problem:
            _warn(str(problem))

    def offer(self, task: Task, jobs: Segment) -> None:
        """Hear who is there by now, without waiting, and give them the task."""
        self.hear(0.0)
        for worker in self._workers:
            if worker.state == "idle":
                _tell(worker, lambda w: w.give((task, jobs.spec), jobs), "busy")

    def finish(self) -> None:
        """Wait until nobody is busy."""
        while any(worker.state == "busy" for worker in self._workers):
            self.hear(None)

    def wait_until_ready(self, seconds: float) -> int:
        """Wait for all workers that are starting; count those that are there."""
        end = time.monotonic() + seconds
        while any(w.state in ("starting", "learning") for w in self._workers) and time.monotonic() < end:
            self.hear(end - time.monotonic())
        return sum(worker.state in ("idle", "busy") for worker in self._workers)

    def hear(self, seconds: float | None) -> None:
        """Take in what workers say."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), seconds):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                what, why = worker.pipe.recv()
            except (EOFError, OSError) as problem:
                what, why = "failed", _reason(worker)
                if worker.state in ("idle", "busy"):
                    raise _lost(worker) from problem
            if what == "failed" and worker.state == "busy":
                raise TrainingError(f"a training process failed: {why}")
            if what == "failed":  # it never came to work, which can go on without it
                self._workers.remove(worker)
                worker.end()
                _warn(why)
            elif what == "hello":
                _tell(worker, lambda w: w.give(self._data.spec, self._data), "learning")
            else:
                worker.state = "idle"

    @property
    def pids(self) -> list[int]:
        """List the processes' ids."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End all processes."""
        self._end()


def _end_all(workers: list[Worker], data: Segment) -> None:
    for worker in workers:
        worker.end()
    workers.clear()
    data.close()


def _tell(worker: Worker, say: Callable[[Worker], None], then: State) -> None:
    try:
        say(worker)
    except OSError as problem:
        raise _lost(worker) from problem
    worker.state = then


def _lost(worker: Worker) -> TrainingError:
    return TrainingError(
        f"a training process ended unexpectedly ({_reason(worker)}); run again to go on from the last "
        "checkpoint, with fewer processes (training.threads) if memory was short"
    )


def _warn(why: str) -> None:
    warnings.warn(f"training with fewer processes: one could not start ({why})", stacklevel=3)


def _reason(worker: Worker) -> str:
    """Say how a process ended that is no longer heard."""
    try:
        code = worker.process.wait(5)
    except subprocess.TimeoutExpired:
        return "it does not answer"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
