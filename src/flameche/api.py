"""The functions behind `import flameche`: describe, cluster, run, assign, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flameche.errors import ConfigError
from flameche.experiments.assign_client import assign_new_client
from flameche.experiments.config import Experiment, load_experiment, parse_experiment
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.report import write_report as write_report_to
from flameche.training.device import choose_device

__all__ = ["assign", "cluster", "experiment", "load_experiment", "run", "write_report"]


def experiment(name: str = "experiment", **tables: Any) -> Experiment:
    """Describe an experiment by the keys of its TOML file: rounds=20, data={"clients": 20}, ..."""
    return parse_experiment({"name": name, **tables}, source="experiment")


def cluster(experiment: str | Path | Experiment, seed: int = 0, device: str = "auto") -> dict[str, Any]:
    """Cluster an experiment's clients by their metadata, without training; return the summary.

    experiment: what `experiment` or `load_experiment` gave, or the path of a TOML file.
    """
    return cluster_experiment(_described(experiment), seed, device=choose_device(device))


def run(
    experiment: str | Path | Experiment,
    seed: int = 0,
    out: str | Path = "runs",
    device: str = "auto",
    fresh: bool = False,
) -> dict[str, Any]:
    """Run an experiment to its end, from its last checkpoint if it has one; return the summary.

    experiment: what `experiment` or `load_experiment` gave, or the path of a TOML file. fresh: run it again,
    without anything that is stored of it.
    """
    where = choose_device(device)
    summary, _ = run_experiment(_described(experiment), seed, Path(out), device=where, fresh=fresh)
    return summary


def assign(
    run: str | Path,
    data: str | Path | tuple[Any, Any],
    model: str | Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Give a client that comes after training its cluster in a finished run: one E-step, no retraining.

    data: an npz with x and y, or the two arrays. model: where to write its cluster's model:
    "site.pt2", a program for plain PyTorch, or "site.pt", its weights and preprocessing.
    """
    own = data if isinstance(data, tuple) else Path(data)
    where = None if model is None else Path(model)
    return assign_new_client(Path(run), own, model=where, device=choose_device(device))


def write_report(runs: str | Path | None, out: str | Path, results: str | Path | None = None) -> Path:
    """Draw a folder of runs into out/report.html, with tables and figures beside it; return the page.

    results: a folder of stored runs (*.jsonl), for the paper's tables and figures too.
    """
    return write_report_to(
        None if runs is None else Path(runs), Path(out), None if results is None else Path(results)
    )


def _described(experiment: str | Path | Experiment) -> Experiment:
    if isinstance(experiment, Experiment):
        return experiment
    if not isinstance(experiment, str | Path):
        raise ConfigError(
            f"expected an experiment or the path of a TOML file, not a {type(experiment).__name__}; "
            "flameche.experiment(rounds=20, data={...}) makes an experiment"
        )
    return load_experiment(experiment)
