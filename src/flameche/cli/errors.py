"""Turns exceptions into one line on stderr and an exit code: 2 for bad input, 1 for failures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from flameche.errors import FlamecheError

# The class of all usage errors of the click package that typer is built on, which it does not export.
UsageError: Any = typer.BadParameter.__bases__[0]


def run_app(app: typer.Typer) -> None:
    """Run a command-line app; `--debug` lets exceptions through, with their tracebacks.

    Raises:
        SystemExit: with the exit code, unless the command succeeded.
    """
    debug = "--debug" in sys.argv
    try:
        code = app(standalone_mode=False, prog_name="flameche")
    except UsageError as error:
        _exit(2, _usage_message(error))
    except FlamecheError as error:
        if debug:
            raise
        _exit(error.exit_code, str(error))
    except Exception as error:
        if debug:
            raise
        reason = str(error).splitlines()[0] if str(error) else "no message"
        _exit(1, f"failed: {type(error).__name__}: {reason}; `flameche --debug ...` shows where")
    if code:  # of typer.Exit
        raise SystemExit(code)


@contextmanager
def exit_on_interrupt(advice: str) -> Iterator[None]:
    """On Ctrl-C, print one line that says how to continue, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"flameche: stopped; {advice}", file=sys.stderr)
        raise typer.Exit(130) from None


def _usage_message(error: Any) -> str:
    """Describe a usage error in one line; return "" if typer has printed the command's help instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    text = " ".join(error.format_message().split()).rstrip(".")
    where = "" if error.ctx is None else f" (see `{error.ctx.command_path} --help`)"
    return f"{text[:1].lower()}{text[1:]}{where}"


def _exit(code: int, message: str) -> NoReturn:
    if message:
        print(f"flameche: {message}", file=sys.stderr)
    raise SystemExit(code) from None
