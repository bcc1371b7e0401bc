"""Plays planned runs one after another, wherever they were sent; a failed one leaves its error behind."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flameche.errors import FlamecheError, RunBusy
from flameche.experiments.build import build_method
from flameche.experiments.config import Experiment
from flameche.experiments.keys import bound_advice
from flameche.experiments.metadata_store import metadata_of, world_of
from flameche.experiments.paper.plan import Planned
from flameche.experiments.run import cluster_experiment, record_of, run_experiment
from flameche.experiments.store import without_nan
from flameche.experiments.stored import Line, compact
from flameche.registry import METHODS
from flameche.simulation.engine import simulate
from flameche.training.device import device_gib, release

ERROR = "error.txt"
METADATA = ".metadata"  # folder of extracted metadata, beside the runs
SHARE = 0.5  # of a GPU's memory, for training in all processes together


@dataclass(frozen=True)
class Order:
    """Runs to play in this order, and how: beside how many other processes, each with how many threads."""

    planned: tuple[Planned, ...]
    runs: Path
    device: str = "cpu"
    jobs: int = 1
    threads: int = 0


@dataclass(frozen=True)
class News:
    """What became of a run of an order: it begins, a round ended, or how it ended.

    sound: False after an error that may have left the process, or its GPU, in no state to go on.
    """

    kind: Literal["begin", "round", "done", "failed", "busy"]
    index: int
    round: int = 0
    line: Line | None = None
    why: str = ""
    sound: bool = True


def play(order: Order, tell: Callable[[News], None]) -> None:
    """Play an order's runs; whatever goes wrong with one is told, and the next one played."""
    for index, planned in enumerate(order.planned):
        tell(News("begin", index))
        error = planned.folder(order.runs) / ERROR
        try:
            line = _played(planned, order, lambda record, n=index: tell(News("round", n, record["round"])))  # type: ignore[misc]
        except RunBusy as problem:
            tell(News("busy", index, why=str(problem)))
        except Exception as problem:
            leave_error(error, traceback.format_exc())
            tell(News("failed", index, why=_in_a_line(problem), sound=isinstance(problem, FlamecheError)))
        else:
            error.unlink(missing_ok=True)
            error.with_name("models.npz").unlink(missing_ok=True)  # 179 MB of a ResNet-18, and of no table
            tell(News("done", index, line=line))
        release(order.device)


def leave_error(file: Path, text: str) -> None:
    """Keep why a run failed in its folder; a disk that is full is no second error."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError:
        pass


def _played(planned: Planned, order: Order, on_round: Callable[[dict[str, Any]], None]) -> Line:
    experiment = _tuned(planned.experiment, order)
    if planned.training:
        summary, _ = run_experiment(
            experiment, planned.seed, order.runs, device=order.device, on_round=on_round
        )
    elif experiment.events or METHODS[experiment.method.kind].about.needs_terms:  # of its own metadata
        summary = cluster_experiment(experiment, planned.seed, device=order.device)
        summary |= {"dataset": planned.dataset, "setting": planned.setting}
    else:
        summary = _clustered(planned, experiment, order)
    return compact(planned, summary)


def _tuned(experiment: Experiment, order: Order) -> Experiment:
    """Set threads and memory, which change no result and no hash, to what other processes leave."""
    how = experiment.training
    memory = SHARE * device_gib() / order.jobs if order.device == "cuda" and order.jobs > 1 else how.memory
    training = how.model_copy(update={"threads": order.threads or how.threads, "memory": memory})
    return experiment.model_copy(update={"training": training})


def _clustered(planned: Planned, experiment: Experiment, order: Order) -> dict[str, Any]:
    """Cluster by metadata that are kept beside the runs: without images, where they are there already."""
    metadata, group = metadata_of(experiment, planned.seed, order.device, order.runs / METADATA)
    world = world_of(experiment, planned.seed, metadata, group)
    method = build_method(experiment, world)
    with bound_advice(experiment):
        result = simulate(method, world, experiment.participants)
    names = planned.dataset, planned.setting
    summary: dict[str, Any] = without_nan(
        record_of(experiment, planned.seed, names, world, method, result, order.device)
    )
    return {**summary, "accuracy": None}


def _in_a_line(problem: Exception) -> str:
    text = (str(problem).splitlines() or ["no message"])[0]
    return text if isinstance(problem, FlamecheError) else f"{type(problem).__name__}: {text}"
