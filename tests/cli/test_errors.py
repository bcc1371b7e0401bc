"""How commands exit."""

import sys

import pytest
import typer

from flameche.cli.errors import run_app
from flameche.errors import BadInput, SealError


@pytest.mark.parametrize(
    ("raised", "code"),
    [(None, 0), (typer.Exit(3), 3), (BadInput("no"), 2), (SealError("no"), 1), (KeyboardInterrupt(), 130)],
)
def test_a_command_ends_with_the_code_of_what_it_raised(monkeypatch, capsys, raised, code):
    app = typer.Typer()

    @app.command()
    def only():
        if raised is not None:
            raise raised

    monkeypatch.setattr(sys, "argv", ["flameche"])
    try:
        run_app(app)
        ended = 0
    except SystemExit as stop:
        ended = stop.code
    assert ended == code
    assert capsys.readouterr().err == ("flameche: no\n" if code in (1, 2) else "")


def test_a_bug_is_one_line_and_exit_code_1_and_debug_shows_it(call, experiment, monkeypatch):
    from flameche.experiments import run as module

    def broken(*_args, **_kwargs):
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr(module, "build", broken)
    code, _, err = call("cluster", experiment)
    assert code == 1 and err.count("\n") == 1 and "boom" in err and "--debug" in err
    with pytest.raises(RuntimeError, match="boom"):
        call("--debug", "cluster", experiment)
