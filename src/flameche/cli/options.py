"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flameche import __version__

ExperimentFile = Annotated[Path, typer.Argument(help="Experiment description (TOML).", metavar="EXP.toml")]
RunFolder = Annotated[Path, typer.Argument(help="A finished run: runs/<name>/<hash>/<seed>.", metavar="RUN")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a config value: a.b=c.", metavar="KEY=VALUE")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Only this seed.", min=0)]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
TrainerOption = Annotated[
    str, typer.Option("--trainer", help="auto, pool, vectorised, or loop, the reference for the others.")
]
RunsOption = Annotated[Path, typer.Option("--out", help="Where run folders go.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Run it again and ignore what is stored of it.")]
AlwaysFreshOption = Annotated[  # so that notes and scripts may pass --fresh to every command that computes
    bool, typer.Option("--fresh", help="Compute it again. Nothing is stored, so this is always done.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def print_version(wanted: bool) -> None:
    """Print the version and exit, if `--version` was given."""
    if wanted:
        print(f"flameche {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
]
