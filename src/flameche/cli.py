"""The command line: reads options, calls the library, prints. Errors are one line; results go to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.answering import answer
from flameche.auditing import audit
from flameche.choosing import select_k
from flameche.companions import COMMANDS, HOW_TO_INSTALL, is_installed, load
from flameche.deploying import app as deploy_app
from flameche.display import log, out_console, print_json, print_rows, print_runs, progress_bar, scores
from flameche.joining import assign
from flameche.keys import app as keys_app
from flameche.options import (
    AlwaysFreshOption,
    DeviceOption,
    ExperimentFile,
    FreshOption,
    JsonOption,
    Overrides,
    RunsOption,
    SeedOption,
    TrainerOption,
    VersionOption,
)

app = typer.Typer(
    help="Clustered federated learning in which the server only adds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(assign)
app.command()(audit)
app.command("select-k")(select_k)
app.add_typer(keys_app, name="keys")
app.add_typer(deploy_app, name="deploy")


def add_companion_commands() -> None:
    """Add the commands of companion packages; where one is not installed, its commands say how to get it."""
    for package in dict.fromkeys(COMMANDS.values()):
        if is_installed(package):
            load(package, "command", package).add_to(app)
    for name, package in COMMANDS.items():
        if not is_installed(package):
            anything = {"allow_extra_args": True, "ignore_unknown_options": True}
            told = f"Not installed; {HOW_TO_INSTALL}."
            app.command(name, help=told, context_settings=anything)(_refusing(name, package))


def _refusing(name: str, package: str) -> Callable[[], None]:
    """Make a command that says which package it needs."""

    def refuse() -> None:
        load(package, "command", f"`flameche {name}`")

    return refuse


add_companion_commands()


def usable_schemes(needs: str, family: str) -> str:
    """Tell under which schemes a method runs: metadata go under all, updates under two."""
    if needs == "terms":
        return "plain"
    return "all" if family == "metadata" else "plain; updates: secagg, ckks"


CONTINUES = {
    False: "the same command continues from the last checkpoint",
    True: "the same command without --fresh continues what was begun; stored runs that were not begun anew "
    "are shown as they are",
}
LETTERS = (
    "Work and bytes beyond FedAvg's, over a run; R rounds, N clients, n participants a round, K clusters, "
    "S restarts, M numbers in a model, d in a client's metadata."
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: VersionOption = False,
) -> None:
    """Clustered federated learning in which the server only adds."""


@app.command()
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
            "20 clients hold handwritten digits; in each of 4 hidden groups they are turned another way.\n"
            "FLAMECHE must find the groups from sums alone; FedAvg ignores them; Oracle is told them.",
            soft_wrap=True,
        )
    jobs = [(experiment, seed) for experiment in experiments]
    summaries = _run_all(jobs, out, device, fresh=True, stopped="the same command begins again")
    page = write_report(out / "demo", out / "demo")
    print_runs(summaries, as_json)
    if not as_json:
        out_console.print(f"\nReport: {page}", soft_wrap=True)


@app.command()
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

    Ends with code 1 if training diverged under any seed, after everything is stored and printed.
    """
    from flameche.experiments.config import config_hash, load_experiment

    changes = [*(overrides or []), *([f"training.trainer={trainer}"] if trainer else [])]
    described = load_experiment(experiment, changes)
    seeds = described.seeds if seed is None else (seed,)
    summaries = _run_all([(described, s) for s in seeds], out, device, fresh=fresh)
    print_runs(summaries, as_json)
    if not as_json:
        log.print(
            f"Runs: {out / described.name / config_hash(described)}; `flameche report {out}` draws them.",
            soft_wrap=True,
        )
    if any(summary.get("diverged") for summary in summaries):
        raise typer.Exit(1)


@app.command()
def cluster(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    fresh: AlwaysFreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Metadata and clustering only: the same rounds, without training a model."""
    from flameche.experiments.config import load_experiment
    from flameche.experiments.run import cluster_experiment
    from flameche.training.device import choose_device

    described = load_experiment(experiment, overrides or [])
    where = choose_device(device)
    summaries = []
    with progress_bar() as bar:
        for s in described.seeds if seed is None else (seed,):
            task = bar.add_task(f"seed {s}: metadata", total=None)

            def progress(what: str, done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            summaries.append(cluster_experiment(described, s, device=where, progress=progress))
            bar.update(task, description=f"seed {s}: clustered", completed=1, total=1)
    print_runs(summaries, as_json)


@app.command()
def report(
    runs: Annotated[
        Path | None,
        typer.Argument(help="A folder of runs, an experiment's, or one run; else ./runs and ./results."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option("--results", help="Stored runs (*.jsonl): the paper's tables and figures too."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("report"),
    as_json: JsonOption = False,
) -> None:
    """Draw runs: one report.html, and beside it tables (md, csv, tex) and figures (svg, pdf)."""
    from flameche.report import usual_places, write_report

    if runs is None and results is None:
        runs, results = usual_places()
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        page = str(
            write_report(
                runs,
                out,
                results,
                lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )
        )
    if as_json:
        print_json({"report": page})
    else:
        out_console.print(page, soft_wrap=True)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the methods: what each needs of the server, what clients upload, what it costs beyond FedAvg."""
    from flameche.methods import METHODS

    rows = [
        {
            "method": kind,
            "name": m.about.title,
            "family": m.about.family,
            "server sees": m.about.needs,
            "schemes": usable_schemes(m.about.needs, m.about.family),
            "clients upload": m.about.uploads,
            "server work": m.about.server,
            "client work": m.about.client,
            "up": m.about.up,
            "down": m.about.down,
        }
        for kind, m in METHODS.items()
    ]
    print_rows(rows, as_json)
    if not as_json:
        log.print(LETTERS, soft_wrap=True)


@app.command()
def schemes(as_json: JsonOption = False) -> None:
    """List the schemes: what each stands on, who opens sums, how secure it is, if it can sum updates."""
    from importlib.util import find_spec

    from flameche.registry import SCHEMES

    rows = [
        {
            "scheme": info.name,
            "what": info.title,
            "here": not info.needs or find_spec(info.needs) is not None,
            "needs": info.needs or "–",
            "sums opened by": info.opened_by,
            "security": info.security,
            "sums": "exact" if info.exact else "approximate",
            "updates": info.updates,
        }
        for info in SCHEMES.values()
    ]
    print_rows(rows, as_json)


@app.command()
def datasets(as_json: JsonOption = False) -> None:
    """List the datasets: what is here, and how to get what is not."""
    from flameche.data import available

    infos = available()
    if as_json:
        print_json([{**asdict(info), "where": str(info.where) if info.where else None} for info in infos])
        return
    rows = [
        {
            "dataset": info.name,
            "images": "x".join(map(str, (*info.size, info.channels))),
            "classes": info.classes,
            "train": info.train,
            "test": info.test,
            "here": info.found,
            "what": info.title,
        }
        for info in infos
    ]
    print_rows(rows, as_json=False)
    for info in infos:
        if not info.found:
            out_console.print(f"\n{info.missing}", soft_wrap=True)
        elif info.note:
            out_console.print(f"\n{info.name}: {info.note}", soft_wrap=True)


def _run_all(
    jobs: Sequence[tuple[Any, int]], out: Path, device: str, fresh: bool = False, stopped: str = ""
) -> list[dict[str, Any]]:
    """Run experiments one after another, with a bar each; `fresh` uses nothing that is stored of them.

    stopped: what to do after Ctrl-C, where it is not the usual.
    """
    from flameche.experiments.run import run_experiment
    from flameche.training.device import choose_device

    where = choose_device(device)
    summaries = []
    with progress_bar() as bar, _stoppable(stopped or CONTINUES[fresh]):
        for experiment, seed in jobs:
            label = f"{experiment.name} · {experiment.method.kind} · seed {seed}"
            task = bar.add_task(label, total=experiment.rounds)

            def progress(what: str, done: int, total: int, task: Any = task, label: str = label) -> None:
                bar.update(task, description=f"{label} · {what} {done}/{total}")

            played = False

            def on_round(record: dict[str, Any], task: Any = task, label: str = label) -> None:
                nonlocal played
                played = True
                bar.update(task, completed=record["round"], description=f"{label}{scores(record)}")

            summary, folder = run_experiment(
                experiment, seed, out, device=where, progress=progress, on_round=on_round, fresh=fresh
            )
            bar.update(task, completed=experiment.rounds, description=f"{label}{scores(summary)}")
            summaries.append(summary)
            if not played:
                log.print(f"{label}: finished earlier, read from {folder}", soft_wrap=True)
    return summaries


@contextmanager
def _stoppable(advice: str) -> Iterator[None]:
    """Answer Ctrl-C with one line: what was played is kept."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"flameche: stopped; {advice}", file=sys.stderr)
        raise typer.Exit(130) from None


def main() -> None:
    """Run the command line; a refused input is one line and exit code 2, a failure exit code 1."""
    answer(app)
