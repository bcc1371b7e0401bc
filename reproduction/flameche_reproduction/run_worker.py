"""Runs a batch of planned runs one after another, in a worker process or on a Ray node."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flameche.errors import FlamecheError, RunBusy
from flameche.experiments.build import build_method
from flameche.experiments.config import Experiment
from flameche.experiments.keys import bound_advice
from flameche.experiments.run import cluster_experiment, record_of, run_experiment
from flameche.experiments.run_folder import without_nan
from flameche.registry import METHODS
from flameche.simulation.engine import simulate
from flameche.training.device import device_gib, release
from flameche_reproduction.metadata_cache import cached_metadata, clustering_world
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.results_index import ResultLine, result_line

ERROR = "error.txt"
METADATA = ".metadata"  # folder of extracted metadata, beside the runs
GPU_SHARE = 0.5  # of a GPU's memory, for training in all processes together


@dataclass(frozen=True)
class Batch:
    """Runs to execute one after another; the device, how many workers share it, and a worker's threads."""

    planned: tuple[PlannedRun, ...]
    runs: Path
    device: str = "cpu"
    jobs: int = 1
    threads: int = 0


@dataclass(frozen=True)
class RunEvent:
    """An event of a run in a batch: it begins, a round ended, or the run ended.

    healthy: False after an error that may have left the process or its GPU unusable.
    """

    kind: Literal["begin", "round", "done", "failed", "busy"]
    index: int
    round: int = 0
    line: ResultLine | None = None
    why: str = ""
    healthy: bool = True


def play_batch(batch: Batch, report: Callable[[RunEvent], None]) -> None:
    """Run a batch; an error of one run is reported and written to its folder, and the next one begins."""
    for index, planned in enumerate(batch.planned):
        report(RunEvent("begin", index))
        error = planned.folder(batch.runs) / ERROR
        try:
            line = _run_one(planned, batch, partial(_report_round, report, index))
        except RunBusy as problem:
            report(RunEvent("busy", index, why=str(problem)))
        except Exception as problem:
            write_error(error, traceback.format_exc())
            report(
                RunEvent("failed", index, why=_one_line(problem), healthy=isinstance(problem, FlamecheError))
            )
        else:
            error.unlink(missing_ok=True)
            error.with_name("models.npz").unlink(missing_ok=True)  # 179 MB of a ResNet-18, and of no table
            report(RunEvent("done", index, line=line))
        release(batch.device)


def _report_round(report: Callable[[RunEvent], None], index: int, record: dict[str, Any]) -> None:
    report(RunEvent("round", index, record["round"]))


def write_error(file: Path, text: str) -> None:
    """Write an error into a run's folder; a full disk is ignored."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError:
        pass


def _run_one(planned: PlannedRun, batch: Batch, on_round: Callable[[dict[str, Any]], None]) -> ResultLine:
    experiment = _with_resources(planned.experiment, batch)
    if planned.training:
        summary, _ = run_experiment(
            experiment, planned.seed, batch.runs, device=batch.device, on_round=on_round
        )
    elif experiment.events or METHODS[experiment.method.kind].about.needs_terms:  # of its own metadata
        summary = cluster_experiment(experiment, planned.seed, device=batch.device)
        summary |= {"dataset": planned.dataset, "setting": planned.setting}
    else:
        summary = _cluster(planned, experiment, batch)
    return result_line(planned, summary)


def _with_resources(experiment: Experiment, batch: Batch) -> Experiment:
    """Limit threads and GPU memory to the process's share; neither changes a result or the config's hash."""
    how = experiment.training
    memory = (
        GPU_SHARE * device_gib() / batch.jobs if batch.device == "cuda" and batch.jobs > 1 else how.memory
    )
    training = how.model_copy(update={"threads": batch.threads or how.threads, "memory": memory})
    return experiment.model_copy(update={"training": training})


def _cluster(planned: PlannedRun, experiment: Experiment, batch: Batch) -> dict[str, Any]:
    """Cluster by cached metadata, without loading images where they are cached already."""
    metadata, group = cached_metadata(experiment, planned.seed, batch.device, batch.runs / METADATA)
    world = clustering_world(experiment, planned.seed, metadata, group)
    method = build_method(experiment, world)
    with bound_advice(experiment):
        result = simulate(method, world, experiment.participants)
    names = planned.dataset, planned.setting
    summary: dict[str, Any] = without_nan(
        record_of(experiment, planned.seed, names, world, method, result, batch.device)
    )
    return {**summary, "accuracy": None}


def _one_line(problem: Exception) -> str:
    text = (str(problem).splitlines() or ["no message"])[0]
    return text if isinstance(problem, FlamecheError) else f"{type(problem).__name__}: {text}"
