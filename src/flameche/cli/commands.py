"""The app that puts all commands together, with the options that come before a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from flameche.cli import deploy, keys
from flameche.cli.assign import assign
from flameche.cli.audit import audit
from flameche.cli.listings import datasets, methods, schemes
from flameche.cli.options import VersionOption
from flameche.cli.report import report
from flameche.cli.run import cluster, demo, run
from flameche.cli.select_k import select_k
from flameche.companions import COMMANDS, HOW_TO_INSTALL, is_installed, load

app = typer.Typer(
    help="Clustered federated learning in which the server only adds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def flameche(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: VersionOption = False,
) -> None:
    """Clustered federated learning in which the server only adds."""


app.command()(assign)
app.command()(audit)
app.command("select-k")(select_k)
for command in (demo, run, cluster, report, methods, schemes, datasets):
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(deploy.app, name="deploy")


def _add_companion_commands() -> None:
    """Add the commands of companion packages; those of a missing package say how to install it."""
    for package in dict.fromkeys(COMMANDS.values()):
        if is_installed(package):
            load(package, "command", package).add_to(app)
    for name, package in COMMANDS.items():
        if not is_installed(package):
            any_words = {"allow_extra_args": True, "ignore_unknown_options": True}
            text = f"Not installed; {HOW_TO_INSTALL}."
            app.command(name, help=text, context_settings=any_words)(_not_installed(name, package))


def _not_installed(name: str, package: str) -> Callable[[], None]:
    """Make a command that fails with one line on how to install its package."""

    def command() -> None:
        load(package, "command", f"`flameche {name}`")

    return command


_add_companion_commands()
