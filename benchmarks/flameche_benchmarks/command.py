"""`flameche bench`: runs a benchmark, shows its tables, writes them down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flameche.cli.options import DeviceOption, JsonOption
from flameche.errors import BadInput, StoreError
from flameche_benchmarks.crypto_tables import TextTable

app = typer.Typer(help="Measure against reference implementations, in one run.", no_args_is_help=True)


def add_to(commands: typer.Typer) -> None:
    """Add `bench` and `overhead` to the commands of `flameche`."""
    commands.add_typer(app, name="bench")
    commands.command()(overhead)


@app.callback()
def benchmarks() -> None:
    """Measure against reference implementations, in one run."""


@app.command()
def crypto(
    as_json: JsonOption = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Half a minute: metadata only, few repeats.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write bench-crypto.json and bench-crypto.md here.")
    ] = None,
) -> None:
    """Measure every scheme: client and server time, bytes, a round; beside phe and the paper's figures."""
    from flameche_benchmarks.crypto import measure
    from flameche_benchmarks.crypto_plan import Plan
    from flameche_benchmarks.crypto_tables import crypto_markdown

    plan = Plan.quick() if quick else Plan()
    with _progress() as bar:
        task = bar.add_task("crypto", total=None)
        found = measure(plan, lambda what, i, n: bar.update(task, description=what, completed=i, total=n))
    if out is not None:
        _write(out, "bench-crypto", found, crypto_markdown(found))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        from flameche_benchmarks.crypto_tables import crypto_heading, crypto_tables

        _show(crypto_heading(found), crypto_tables(found))


@app.command()
def train(
    models: Annotated[
        list[str] | None, typer.Option("--model", help="lenet5 or resnet18; both by default.")
    ] = None,
    clients: Annotated[
        list[int] | None, typer.Option("--clients", help="Clients a round; 20 and 100 by default.", min=2)
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute or two: a fifth of the clients, less work.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write bench-train.json and bench-train.md here.")
    ] = None,
) -> None:
    """Measure a round of local training: the plain loop, ours, and Flower's Ray simulation if installed."""
    from flameche.training.device import choose_device
    from flameche_benchmarks.train import cases, measure, train_heading, train_markdown, train_tables

    known = ("lenet5", "resnet18")
    unknown = [model for model in models or [] if model not in known]
    if unknown:
        raise BadInput(f"--model {unknown[0]}: expected {' or '.join(known)}")
    rounds = cases(models or known, clients or (20, 100), quick, choose_device(device))
    with _progress() as bar:
        task = bar.add_task("train", total=None)
        found = measure(rounds, lambda what, i, n: bar.update(task, description=what, completed=i, total=n))
    if out is not None:
        _write(out, "bench-train", found, train_markdown(found))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(train_heading(found), train_tables(found))


@app.command()
def cluster(
    as_json: JsonOption = False,
    quick: Annotated[bool, typer.Option("--quick", help="A minute: smaller sizes, few repeats.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write bench-cluster.json and bench-cluster.md here.")
    ] = None,
) -> None:
    """Measure how clustering grows with clients, metadata and clusters; and 100,000 clients in rounds."""
    from flameche_benchmarks.cluster import Grid, cluster_heading, cluster_markdown, cluster_tables, measure

    with _progress() as bar:
        task = bar.add_task("cluster", total=None)
        found = measure(
            Grid.quick() if quick else Grid(),
            lambda what, i, n: bar.update(task, description=what, completed=i, total=n),
        )
    if out is not None:
        _write(out, "bench-cluster", found, cluster_markdown(found))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(cluster_heading(found), cluster_tables(found))


def overhead(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Methods to measure; all by default.", metavar="METHOD")
    ] = None,
    most: Annotated[int, typer.Option("--clients", help="The largest number of clients.", min=100)] = 1600,
    rounds: Annotated[
        int, typer.Option("--rounds", help="Rounds; all clients are seen after five.", min=5)
    ] = 10,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write overhead.json and overhead.md here.")
    ] = None,
) -> None:
    """Measure what each method costs beyond FedAvg, for growing N and K, and fit the growth."""
    from flameche.methods import METHODS
    from flameche_benchmarks.overhead import Grid, measure, overhead_markdown, overhead_tables

    unknown = [kind for kind in methods or [] if kind not in METHODS]
    if unknown:
        raise BadInput(f"there is no method '{unknown[0]}'; known are {', '.join(METHODS)}")
    kinds = methods or [kind for kind in METHODS if kind not in ("fedavg", "oracle")]
    grid = Grid(clients=(*(n for n in Grid().clients if n < most), most), rounds=rounds)
    with _progress() as bar:
        task = bar.add_task("overhead", total=None)
        found = measure(
            kinds, grid, lambda what, i, n: bar.update(task, description=what, completed=i, total=n)
        )
    if out is not None:
        _write(out, "overhead", found, overhead_markdown(found))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show([], overhead_tables(found))


def _write(out: Path, name: str, found: dict[str, Any], page: str) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / f"{name}.md").write_text(page)
    except OSError as error:
        raise StoreError(f"--out {out}: cannot be written ({error.strerror})") from error


def _progress() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    log = Console(stderr=True)
    columns = (TextColumn("{task.description:26}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=log, disable=not log.is_terminal, transient=True)


def _show(head: list[str], tables: list[TextTable]) -> None:
    """Print all tables, for windows of 100 columns."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    for line in head:
        console.print(line)
    for made in tables:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, key in enumerate(made.rows[0]):
            table.add_column(key, justify="right" if i else "left", no_wrap=not i)
        for row in made.rows:
            table.add_row(*row.values(), style="dim" if row.get("scheme", "").startswith("paper") else None)
        console.print(f"\n{made.title}", style="bold")
        console.print(table)
        if made.note:
            console.print(made.note, style="dim")
