"""How the command line ends: errors are one line, with exit code 2 for bad input, 1 for failures."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer

from flameche.errors import FlamecheError

USAGE: Any = typer.BadParameter.__bases__[0]  # UsageError of the click that typer stands on


def answer(app: typer.Typer) -> None:
    """Run a command line."""
    debug = "--debug" in sys.argv
    try:
        code = app(standalone_mode=False, prog_name="flameche")
    except USAGE as error:
        _end(2, _usage(error))
    except FlamecheError as error:
        if debug:
            raise
        _end(error.exit_code, str(error))
    except Exception as error:
        if debug:
            raise
        reason = str(error).splitlines()[0] if str(error) else "no message"
        _end(1, f"failed: {type(error).__name__}: {reason}; `flameche --debug ...` shows where")
    if code:  # of typer.Exit
        raise SystemExit(code)


def _usage(error: Any) -> str:
    """Say in a line what is wrong with a command's words; nothing where its help was printed instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    text = " ".join(error.format_message().split()).rstrip(".")
    where = "" if error.ctx is None else f" (see `{error.ctx.command_path} --help`)"
    return f"{text[:1].lower()}{text[1:]}{where}"


def _end(code: int, text: str) -> NoReturn:
    if text:
        print(f"flameche: {text}", file=sys.stderr)
    raise SystemExit(code) from None
