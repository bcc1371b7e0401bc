"""`flameche report`: draws runs into one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flameche.cli.options import JsonOption
from flameche.cli.output import out_console, print_json
from flameche.cli.progress import progress_bar


def report(
    runs: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of runs, an experiment's folder, or one run's; by default ./runs and ./results."
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option("--results", help="Stored runs (*.jsonl): the paper's tables and figures too."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("report"),
    as_json: JsonOption = False,
) -> None:
    """Draw runs: one report.html, and beside it tables (md, csv, tex) and figures (svg, pdf)."""
    from flameche.report import default_folders, write_report

    if runs is None and results is None:
        runs, results = default_folders()
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        page = str(write_report(runs, out, results, progress))
    if as_json:
        print_json({"report": page})
    else:
        out_console.print(page, soft_wrap=True)
