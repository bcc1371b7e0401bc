"""Sweeps: many runs in several worker processes; finished runs are skipped, interrupted ones resume.

Each process executes one run at a time, on a CPU with one thread; several share a GPU. Lines are written when
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

from flameche.training.device import usable_cores
from flameche_reproduction.image_sets import SETS
from flameche_reproduction.metadata_cache import cache_key
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.results_index import ResultLine, ResultsFile, ResultsIndex
from flameche_reproduction.run_worker import ERROR, Batch, RunEvent, write_error
from flameche_reproduction.runtime_estimate import relative_cost

GPU_JOBS = {"resnet18": 2, "lenet5": 4, "small-cnn": 4}  # processes that share a GPU
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class SweepResult:
    """The runs of a sweep by how they ended."""

    done: list[PlannedRun] = field(default_factory=list)
    failed: list[tuple[PlannedRun, str]] = field(default_factory=list)
    busy: list[PlannedRun] = field(default_factory=list)


OnEvent = Callable[[PlannedRun, RunEvent], None]
ShouldStart = Callable[[PlannedRun], bool]


def unique_runs(planned: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Remove duplicate runs; a clustering is part of the same run with training."""
    runs: dict[tuple[str, int], PlannedRun] = {}
    for run in planned:
        key = run.hash, run.seed
        if key not in runs or (run.training and not runs[key].training):
            runs[key] = run
    return list(runs.values())


def missing_runs(planned: Iterable[PlannedRun], stored: ResultsIndex) -> list[PlannedRun]:
    """List the runs that are not stored and can be run, each once."""
    return unique_runs(run for run in planned if not run.retired and stored.find(run) is None)


def take_share(planned: Sequence[PlannedRun], shard: tuple[int, int]) -> list[PlannedRun]:
    """Return one of n shares of about equal work; equal lists always give the same shares."""
    number, of = shard
    load, mine = [0.0] * of, []
    for run in sorted(planned, key=lambda run: -relative_cost(run)):
        least_loaded = min(range(of), key=lambda i: load[i])
        load[least_loaded] += relative_cost(run)
        if least_loaded == number:
            mine.append(run)
    batch = {id(run): place for place, run in enumerate(planned)}
    return sorted(mine, key=lambda run: batch[id(run)])


def default_jobs(planned: Sequence[PlannedRun], device: str) -> int:
    """Return the number of worker processes: one per core, or as many as fill a GPU."""
    if device == "cuda":
        return min((GPU_JOBS[SETS[run.dataset].net] for run in planned), default=1)
    return usable_cores()


def make_batches(
    planned: Sequence[PlannedRun], runs: Path, device: str, jobs: int, shared: bool = False
) -> list[Batch]:
    """Make batches of one run or of all clusterings by the same metadata; shared: others use the cores."""
    batches: dict[Any, list[PlannedRun]] = {}
    for run in planned:
        key = (run.hash, run.seed) if run.training else cache_key(run.experiment, run.seed)
        batches.setdefault(key, []).append(run)
    threads = 1 if (jobs > 1 or shared) and device == "cpu" else 0
    return [Batch(tuple(batch), runs.resolve(), device, jobs, threads) for batch in batches.values()]


def sweep(
    planned: Sequence[PlannedRun],
    runs: Path,
    lines: Path,
    *,
    device: str = "cpu",
    jobs: int = 0,
    ray: str = "",
    on_event: OnEvent | None = None,
    should_start: ShouldStart | None = None,
    extra: Mapping[str, Any] | None = None,
) -> SweepResult:
    """Run what is not stored yet, and write a line for each run that succeeds.

    `should_start` is asked before each run and may skip it; `extra` is added to every line.
    """
    jobs = min(jobs or default_jobs(planned, device), max(1, len(planned)))
    batches, result, out = (
        make_batches(planned, runs, device, jobs, bool(ray)),
        SweepResult(),
        ResultsFile(lines),
    )

    def handle(run: PlannedRun, event: RunEvent) -> None:
        if event.kind == "done" and event.line is not None:
            out.merge([{**event.line, **(extra or {})}])
            result.done.append(run)
        elif event.kind == "failed":
            result.failed.append((run, event.why))
        elif event.kind == "busy":
            result.busy.append(run)
        if on_event:
            on_event(run, event)

    if ray:
        from flameche_reproduction.ray_backend import run_on_ray

        run_on_ray(batches, ray, handle)
    else:
        _run_locally(batches, jobs, handle, should_start)
    return result


class _Worker:
    """A worker process and the batch that it works on."""

    def __init__(self, device: str, threads: int) -> None:
        ours, its = Pipe()
        self.pipe: Connection[Any, Any] = ours
        self.batch: Batch | None = None
        self.at = 0
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 — as long as the process
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        quiet = ONE_THREAD if threads == 1 else {}
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flameche_reproduction.worker_process", str(its.fileno())],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[its.fileno()],
            start_new_session=True,  # Ctrl-C is for whoever started it
            env={**os.environ, **quiet, **hidden, "PYTHONPATH": path},
        )
        its.close()

    def end(self) -> None:
        """Kill the process; its run can resume from a checkpoint."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self.pipe.close()
        self.log.close()

    def exit_reason(self) -> str:
        """Describe how the process ended, with the end of its output."""
        self.process.kill()
        code = self.process.wait()
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - 4000))
        how = f"signal {-code}, perhaps for want of memory" if code < 0 else f"exit code {code}"
        return f"its process ended: {how}\n{self.log.read().decode(errors='replace')}"


def _run_locally(
    batches: Sequence[Batch], jobs: int, handle: OnEvent, should_start: ShouldStart | None = None
) -> None:
    """Keep `jobs` processes busy until all batches are done; kill them on any exit."""
    waiting, workers = deque(batches), list[_Worker]()
    try:
        while waiting or any(process.batch for process in workers):
            while len(workers) < jobs and sum(process.batch is None for process in workers) < len(waiting):
                workers.append(_Worker(waiting[0].device, waiting[0].threads))
            for pipe in wait([process.pipe for process in workers]):
                process = next(process for process in workers if process.pipe is pipe)
                if not _receive(process, waiting, handle, should_start):
                    workers.remove(process)
                    process.end()
    finally:
        for process in workers:
            process.end()


def _receive(
    process: _Worker, waiting: deque[Batch], handle: OnEvent, should_start: ShouldStart | None
) -> bool:
    """Handle a message of a worker; send a batch if it is idle. False if it must not be used again."""
    try:
        event: RunEvent | None = process.pipe.recv()
        if event is None:
            process.batch = _next_batch(waiting, should_start)
            if process.batch is None:
                return False
            process.pipe.send(process.batch)
            return True
    except (EOFError, OSError):
        _handle_crash(process, waiting, handle)
        return False
    assert process.batch is not None
    process.at = event.index
    handle(process.batch.planned[event.index], event)
    if not event.healthy:  # the rest of the order goes to another process
        _requeue(process.batch, event.index, waiting)
        return False
    return True


def _next_batch(waiting: deque[Batch], should_start: ShouldStart | None) -> Batch | None:
    """Take the first batch that should start; those before it are skipped."""
    while waiting:
        batch = waiting.popleft()
        if should_start is None or should_start(batch.planned[0]):
            return batch
    return None


def _handle_crash(process: _Worker, waiting: deque[Batch], handle: OnEvent) -> None:
    """Record the run during which a worker died as failed, and requeue the rest of its batch."""
    if process.batch is None:
        raise RuntimeError(f"a process could not start: {process.exit_reason()}")
    run, why = process.batch.planned[process.at], process.exit_reason()
    write_error(run.folder(process.batch.runs) / ERROR, why)
    handle(run, RunEvent("failed", process.at, why=why.splitlines()[0]))
    _requeue(process.batch, process.at, waiting)


def _requeue(batch: Batch, at: int, waiting: deque[Batch]) -> None:
    if rest := batch.planned[at + 1 :]:
        waiting.appendleft(Batch(rest, batch.runs, batch.device, batch.jobs, batch.threads))


def stored_lines(planned: Iterable[PlannedRun], stored: ResultsIndex) -> list[ResultLine]:
    """Return the lines of the runs that are stored."""
    return [line for run in planned if (line := stored.find(run)) is not None]
