"""`flameche demo`, `run` and `cluster`: run experiments, with a progress bar for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.cli.errors import exit_on_interrupt
from flameche.cli.options import (
    AlwaysFreshOption,
    DeviceOption,
    ExperimentFile,
    FreshOption,
    JsonOption,
    Overrides,
    RunsOption,
    SeedOption,
    TrainerOption,
)
from flameche.cli.output import log, out_console, print_runs
from flameche.cli.progress import progress_bar, scores

CONTINUE = "the same command continues from the last checkpoint"
CONTINUE_FRESH = (
    "the same command without --fresh continues what was begun; stored runs that were not begun anew "
    "are shown as they are"
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the run folder `demo` goes.")] = Path("runs"),
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Cluster and train 20 clients of 4 hidden groups on embedded data; write report.html."""
    from flameche.experiments.demo import demo_experiments
    from flameche.report import write_report

    experiments = demo_experiments()
    if not as_json:
        log.print(
            "20 clients hold handwritten digits; each of 4 hidden groups has them rotated by another angle.\n"
            "FLAMECHE must find the groups from sums alone; FedAvg ignores them; Oracle knows them.",
            soft_wrap=True,
        )
    jobs = [(experiment, seed) for experiment in experiments]
    summaries = _run_all(jobs, out, device, fresh=True, advice="the same command begins again")
    page = write_report(out / "demo", out / "demo")
    print_runs(summaries, as_json)
    if not as_json:
        out_console.print(f"\nReport: {page}", soft_wrap=True)


def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "",
    out: RunsOption = Path("runs"),
    fresh: FreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment: every seed that is not finished yet, from its last checkpoint.

    Exits with code 1 if training diverged under any seed, after everything is stored and printed.
    """
    from flameche.experiments.config import config_hash, load_experiment

    changes = [*(overrides or []), *([f"training.trainer={trainer}"] if trainer else [])]
    loaded = load_experiment(experiment, changes)
    jobs = [(loaded, each) for each in (loaded.seeds if seed is None else (seed,))]
    summaries = _run_all(jobs, out, device, fresh=fresh, advice=CONTINUE_FRESH if fresh else CONTINUE)
    print_runs(summaries, as_json)
    if not as_json:
        log.print(
            f"Runs: {out / loaded.name / config_hash(loaded)}; `flameche report {out}` draws them.",
            soft_wrap=True,
        )
    if any(summary.get("diverged") for summary in summaries):
        raise typer.Exit(1)


def cluster(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    fresh: AlwaysFreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compute metadata and cluster the clients: the same rounds as `run`, without training a model."""
    from flameche.experiments.config import load_experiment
    from flameche.experiments.run import cluster_experiment
    from flameche.training.device import choose_device

    loaded = load_experiment(experiment, overrides or [])
    device = choose_device(device)
    summaries = []
    with progress_bar() as bar:
        for each in loaded.seeds if seed is None else (seed,):
            task = bar.add_task(f"seed {each}: metadata", total=None)

            def progress(what: str, done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            summaries.append(cluster_experiment(loaded, each, device=device, progress=progress))
            bar.update(task, description=f"seed {each}: clustered", completed=1, total=1)
    print_runs(summaries, as_json)


def _run_all(
    jobs: Sequence[tuple[Any, int]], out: Path, device: str, *, fresh: bool, advice: str
) -> list[dict[str, Any]]:
    """Run experiments one after another and return their summaries.

    Args:
        jobs: pairs of an experiment and a seed.
        out: where run folders go.
        device: "auto", "cpu" or "cuda".
        fresh: ignore what is stored of these runs.
        advice: what to tell the user after Ctrl-C.
    """
    from flameche.experiments.run import run_experiment
    from flameche.training.device import choose_device

    device = choose_device(device)
    summaries = []
    with progress_bar() as bar, exit_on_interrupt(advice):
        for experiment, seed in jobs:
            label = f"{experiment.name} · {experiment.method.kind} · seed {seed}"
            task = bar.add_task(label, total=experiment.rounds)
            any_round = False

            def progress(what: str, done: int, total: int, task: Any = task, label: str = label) -> None:
                bar.update(task, description=f"{label} · {what} {done}/{total}")

            def on_round(record: dict[str, Any], task: Any = task, label: str = label) -> None:
                nonlocal any_round
                any_round = True
                bar.update(task, completed=record["round"], description=f"{label}{scores(record)}")

            summary, folder = run_experiment(
                experiment, seed, out, device=device, progress=progress, on_round=on_round, fresh=fresh
            )
            bar.update(task, completed=experiment.rounds, description=f"{label}{scores(summary)}")
            summaries.append(summary)
            if not any_round:
                log.print(f"{label}: finished earlier, read from {folder}", soft_wrap=True)
    return summaries
