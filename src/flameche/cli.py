"""The command line: reads options, calls the library, prints. Errors are one line; results go to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flameche.errors import FlamecheError

app = typer.Typer(
    help="Clustered federated learning in which the server only adds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out_console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
log = Console(stderr=True, highlight=False)

ExperimentFile = Annotated[Path, typer.Argument(help="Experiment description (TOML).", metavar="EXP.toml")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a config value: a.b=c.", metavar="KEY=VALUE")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Only this seed.", min=0)]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
RunsOption = Annotated[Path, typer.Option("--out", help="Where run folders go.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
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
    summaries = _run_all([(experiment, seed) for experiment in experiments], out, device, fresh=True)
    page = write_report(out / "demo", out / "demo")
    _print_runs(summaries, as_json)
    if not as_json:
        out_console.print(f"\nReport: {page}", soft_wrap=True)


@app.command()
def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    out: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Run an experiment: every seed that is not finished yet, from its last checkpoint."""
    from flameche.experiments.config import load_experiment

    described = load_experiment(experiment, overrides or [])
    seeds = described.seeds if seed is None else (seed,)
    _print_runs(_run_all([(described, s) for s in seeds], out, device), as_json)
    if not as_json:
        log.print(
            f"Runs are under {out / described.name}; `flameche report {out}` draws them.", soft_wrap=True
        )


@app.command()
def cluster(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Metadata and clustering only: the same rounds, without training a model."""
    from flameche.experiments.config import load_experiment
    from flameche.experiments.run import cluster_experiment
    from flameche.training.device import choose_device

    described = load_experiment(experiment, overrides or [])
    where = choose_device(device)
    summaries = []
    with _bar() as bar:
        for s in described.seeds if seed is None else (seed,):
            task = bar.add_task(f"seed {s}: metadata", total=None)

            def progress(what: str, done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            summaries.append(cluster_experiment(described, s, device=where, progress=progress))
            bar.update(task, description=f"seed {s}: clustered", completed=1, total=1)
    _print_runs(summaries, as_json)


@app.command()
def report(
    runs: Annotated[
        Path, typer.Argument(help="A folder of runs, an experiment's folder, or one run.")
    ] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("report"),
) -> None:
    """Draw runs: report.html, tables (md, csv, tex) and figures (svg, pdf)."""
    from flameche.report import write_report

    out_console.print(str(write_report(runs, out)), soft_wrap=True)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the methods: what each needs of the server, and what clients upload."""
    from flameche.methods import METHODS

    rows = [
        {
            "method": kind,
            "name": m.title,
            "family": m.family,
            "server needs": m.needs,
            "clients upload": m.uploads,
        }
        for kind, m in METHODS.items()
    ]
    _print_rows(rows, as_json)


@app.command()
def datasets(as_json: JsonOption = False) -> None:
    """List the datasets: what is here, and how to get what is not."""
    from flameche.data import available

    infos = available()
    if as_json:
        _print_json([{**asdict(info), "where": str(info.where) if info.where else None} for info in infos])
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
    _print_rows(rows, as_json=False)
    for info in infos:
        if not info.found:
            out_console.print(f"\n{info.missing}", soft_wrap=True)
        elif info.note:
            out_console.print(f"\n{info.name}: {info.note}", soft_wrap=True)


def _run_all(
    jobs: Sequence[tuple[Any, int]], out: Path, device: str, fresh: bool = False
) -> list[dict[str, Any]]:
    """Run experiments one after another, with a bar each; `fresh` forgets finished ones."""
    from flameche.experiments.run import run_experiment
    from flameche.training.device import choose_device

    where = choose_device(device)
    summaries = []
    with _bar() as bar, _stoppable():
        for experiment, seed in jobs:
            label = f"{experiment.name} · {experiment.method.kind} · seed {seed}"
            task = bar.add_task(label, total=experiment.rounds)

            def progress(what: str, done: int, total: int, task: Any = task, label: str = label) -> None:
                bar.update(task, description=f"{label} · {what} {done}/{total}")

            played = False

            def on_round(record: dict[str, Any], task: Any = task, label: str = label) -> None:
                nonlocal played
                played = True
                bar.update(task, completed=record["round"], description=f"{label}{_scores(record)}")

            summary, folder = run_experiment(
                experiment, seed, out, device=where, progress=progress, on_round=on_round, fresh=fresh
            )
            bar.update(task, completed=experiment.rounds, description=f"{label}{_scores(summary)}")
            summaries.append(summary)
            if not played:
                log.print(f"{label}: finished earlier, read from {folder}", soft_wrap=True)
    return summaries


@contextmanager
def _stoppable() -> Iterator[None]:
    """Answer Ctrl-C with one line: what was played is kept."""
    try:
        yield
    except KeyboardInterrupt:
        print("flameche: stopped; the same command continues from the last checkpoint", file=sys.stderr)
        raise typer.Exit(130) from None


def _scores(record: dict[str, Any]) -> str:
    accuracy, ari = record["accuracy"], record["ari"]
    text = "" if accuracy is None or accuracy != accuracy else f" · accuracy {100 * accuracy:.1f}%"
    return text if ari is None or ari != ari else f"{text} · ARI {ari:.2f}"


def _bar() -> Any:
    """Make a progress display on stderr that stays quiet when nobody watches."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=log,
        disable=not log.is_terminal,
    )


def _print_runs(summaries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(summaries[0] if len(summaries) == 1 else summaries)
        return
    rows = [
        {
            "method": s["label"],
            "data": f"{s['dataset']} {s['setting']}",
            "seed": str(s["seed"]),
            "K": str(s["k"]),
            "ARI": _number(s["ari"]),
            "final": _number(s["ari_final"]),
            "DBI": _number(s["dbi"]),
            "CH": _number(s["ch"], ".1f"),
            "acc %": _number(s["accuracy"] and 100 * s["accuracy"]),
            "MB up": _number(s["bytes_up"] / 1e6),
            "down": _number(s["bytes_down"] / 1e6),
            "s": _number(s["wall_s"], ".1f"),
        }
        for s in summaries
    ]
    same = [key for key in ("data", "seed") if len({row[key] for row in rows}) == 1]
    about = " · ".join(rows[0][key] if key == "data" else f"{key} {rows[0][key]}" for key in same)
    kept = [key for key in rows[0] if key not in same and any(row[key] != "–" for row in rows)]
    if about:
        out_console.print(f"{about} · {summaries[0]['rounds']} rounds", style="bold")
    _print_rows([{key: row[key] for key in kept} for row in rows], as_json=False)
    for note in sorted({note for s in summaries for note in s.get("notes", [])}):
        log.print(f"note: {note}", soft_wrap=True)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0]:
        right = all(isinstance(row[key], int | float) or _is_number(row[key]) for row in rows)
        table.add_column(key, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*("yes" if v is True else "no" if v is False else str(v) for v in row.values()))
    out_console.print(table)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and set(text) <= set("0123456789.-–")


def main() -> None:
    """Run the command line; a refused input is one line and exit code 2, a failure exit code 1."""
    try:
        app()
    except FlamecheError as error:
        if "--debug" in sys.argv:
            raise
        print(f"flameche: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        reason = str(error).splitlines()[0] if str(error) else "no message"
        print(
            f"flameche: failed: {type(error).__name__}: {reason}; `flameche --debug ...` shows where",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
