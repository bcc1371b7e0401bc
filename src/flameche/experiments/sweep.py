"""Sweeps: many runs by several processes; finished ones are skipped, killed ones go on, failed ones are kept.

Each process plays one run at a time, on a CPU with one thread; on a GPU a few share it. Lines are written as
runs end, so that a kill loses at most the rounds since a run's last checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from flameche.experiments.guess import weight
from flameche.experiments.metadata_store import key_of
from flameche.experiments.paper.plan import Planned
from flameche.experiments.paper.sets import SETS
from flameche.experiments.play import ERROR, News, Order, leave_error
from flameche.experiments.stored import Line, Lines, Stored
from flameche.training.device import usable_cores

GPU_JOBS = {"resnet18": 2, "lenet5": 4, "small-cnn": 4}  # processes that share a GPU
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Swept:
    """How a sweep ended."""

    done: list[Planned] = field(default_factory=list)
    failed: list[tuple[Planned, str]] = field(default_factory=list)
    busy: list[Planned] = field(default_factory=list)


Watch = Callable[[Planned, News], None]
Fits = Callable[[Planned], bool]


def unique(planned: Iterable[Planned]) -> list[Planned]:
    """List each run once; a clustering is part of the same run with training."""
    runs: dict[tuple[str, int], Planned] = {}
    for run in planned:
        key = run.hash, run.seed
        if key not in runs or (run.training and not runs[key].training):
            runs[key] = run
    return list(runs.values())


def missing(planned: Iterable[Planned], stored: Stored) -> list[Planned]:
    """List the runs that are not stored and can be played, each once."""
    return unique(run for run in planned if not run.gone and stored.find(run) is None)


def deal(planned: Sequence[Planned], shard: tuple[int, int]) -> list[Planned]:
    """Give one of n shares of about equal work; the shares of equal lists are always the same."""
    number, of = shard
    load, mine = [0.0] * of, []
    for run in sorted(planned, key=lambda run: -weight(run)):
        lightest = min(range(of), key=lambda i: load[i])
        load[lightest] += weight(run)
        if lightest == number:
            mine.append(run)
    order = {id(run): place for place, run in enumerate(planned)}
    return sorted(mine, key=lambda run: order[id(run)])


def default_jobs(planned: Sequence[Planned], device: str) -> int:
    """Choose how many processes: one a core, or as many as fill a GPU."""
    if device == "cuda":
        return min((GPU_JOBS[SETS[run.dataset].net] for run in planned), default=1)
    return usable_cores()


def orders_of(
    planned: Sequence[Planned], runs: Path, device: str, jobs: int, shared: bool = False
) -> list[Order]:
    """Make orders: one run each, but clusterings by the same metadata together; shared: on others' cores."""
    batches: dict[Any, list[Planned]] = {}
    for run in planned:
        key = (run.hash, run.seed) if run.training else key_of(run.experiment, run.seed)
        batches.setdefault(key, []).append(run)
    threads = 1 if (jobs > 1 or shared) and device == "cpu" else 0
    return [Order(tuple(batch), runs.resolve(), device, jobs, threads) for batch in batches.values()]


def sweep(
    planned: Sequence[Planned],
    runs: Path,
    lines: Path,
    *,
    device: str = "cpu",
    jobs: int = 0,
    ray: str = "",
    watch: Watch | None = None,
    fits: Fits | None = None,
    about: Mapping[str, Any] | None = None,
) -> Swept:
    """Play runs that are not stored yet, and write a line for each that ends well.

    `fits` is asked before a run begins, and leaves it out where it says no; `about` is added to every line.
    """
    jobs = min(jobs or default_jobs(planned, device), max(1, len(planned)))
    orders, swept, out = orders_of(planned, runs, device, jobs, bool(ray)), Swept(), Lines(lines)

    def hear(run: Planned, news: News) -> None:
        if news.kind == "done" and news.line is not None:
            out.merge([{**news.line, **(about or {})}])
            swept.done.append(run)
        elif news.kind == "failed":
            swept.failed.append((run, news.why))
        elif news.kind == "busy":
            swept.busy.append(run)
        if watch:
            watch(run, news)

    if ray:
        from flameche.experiments.ray_sweep import play_on_ray

        play_on_ray(orders, ray, hear)
    else:
        _play_here(orders, jobs, hear, fits)
    return swept


class _Process:
    """A process that plays orders, and what it is at."""

    def __init__(self, device: str, threads: int) -> None:
        ours, its = Pipe()
        self.pipe: Connection[Any, Any] = ours
        self.order: Order | None = None
        self.at = 0
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 — as long as the process
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        quiet = ONE_THREAD if threads == 1 else {}
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flameche.experiments.worker", str(its.fileno())],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[its.fileno()],
            start_new_session=True,  # Ctrl-C is for whoever started it
            env={**os.environ, **quiet, **hidden, "PYTHONPATH": path},
        )
        its.close()

    def end(self) -> None:
        """Kill the process; its run has its checkpoint."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self.pipe.close()
        self.log.close()

    def last_words(self) -> str:
        """Say how a process ended that is no longer heard, with the end of what it printed."""
        self.process.kill()
        code = self.process.wait()
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - 4000))
        how = f"signal {-code}, perhaps for want of memory" if code < 0 else f"exit code {code}"
        return f"its process ended: {how}\n{self.log.read().decode(errors='replace')}"


def _play_here(orders: Sequence[Order], jobs: int, hear: Watch, fits: Fits | None = None) -> None:
    """Keep `jobs` processes busy until all orders are played; end them whatever happens."""
    waiting, crew = deque(orders), list[_Process]()
    try:
        while waiting or any(process.order for process in crew):
            while len(crew) < jobs and sum(process.order is None for process in crew) < len(waiting):
                crew.append(_Process(waiting[0].device, waiting[0].threads))
            for pipe in wait([process.pipe for process in crew]):
                process = next(process for process in crew if process.pipe is pipe)
                if not _listen(process, waiting, hear, fits):
                    crew.remove(process)
                    process.end()
    finally:
        for process in crew:
            process.end()


def _listen(process: _Process, waiting: deque[Order], hear: Watch, fits: Fits | None) -> bool:
    """Take in what a process says, and give it work; False if it is not to be used any more."""
    try:
        news: News | None = process.pipe.recv()
        if news is None:
            process.order = _next(waiting, fits)
            if process.order is None:
                return False
            process.pipe.send(process.order)
            return True
    except (EOFError, OSError):
        _lost(process, waiting, hear)
        return False
    assert process.order is not None
    process.at = news.index
    hear(process.order.planned[news.index], news)
    if not news.sound:  # the rest of the order goes to another process
        _give_back(process.order, news.index, waiting)
        return False
    return True


def _next(waiting: deque[Order], fits: Fits | None) -> Order | None:
    """Take the first order that fits; those before it are left out."""
    while waiting:
        order = waiting.popleft()
        if fits is None or fits(order.planned[0]):
            return order
    return None


def _lost(process: _Process, waiting: deque[Order], hear: Watch) -> None:
    """Note the run that a process died of, and have the rest of its order played by another."""
    if process.order is None:
        raise RuntimeError(f"a process could not start: {process.last_words()}")
    run, why = process.order.planned[process.at], process.last_words()
    leave_error(run.folder(process.order.runs) / ERROR, why)
    hear(run, News("failed", process.at, why=why.splitlines()[0]))
    _give_back(process.order, process.at, waiting)


def _give_back(order: Order, at: int, waiting: deque[Order]) -> None:
    if rest := order.planned[at + 1 :]:
        waiting.appendleft(Order(rest, order.runs, order.device, order.jobs, order.threads))


def lines_of(planned: Iterable[Planned], stored: Stored) -> list[Line]:
    """Give the lines of the runs that are stored."""
    return [line for run in planned if (line := stored.find(run)) is not None]
