"""What holds for every command: its help, its options, its usage errors; and the lists."""

import json
import subprocess
import sys

import pytest
from rich.text import Text
from typer.main import get_command

import flameche
from flameche.cli.commands import app
from tests.cli.conftest import refused


def test_lists(call):
    for command, word in (("methods", "flameche"), ("datasets", "digits"), ("schemes", "bfv")):
        code, out, _ = call(command)
        assert code == 0 and word in out
        code, out, _ = call(command, "--json")
        assert any(word in row.values() for row in json.loads(out))


def commands(group=None, path=()):
    """Every command, by the words that call it."""
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(("path", "command"), [pytest.param(*c, id=" ".join(c[0])) for c in commands()])
def test_wrong_words_are_one_line_and_exit_code_2_for_every_command(call, path, command):
    refused(call(*path, "--no-such-option"), "--no-such-option", f"{' '.join(path)} --help")
    for option in command.params:
        if option.param_type_name == "option" and option.type.name.startswith(("integer", "float")):
            refused(call(*path, option.opts[0], "x"), option.opts[0], "'x'")
            if getattr(option.type, "min", None) is not None:
                refused(call(*path, option.opts[0], option.type.min - 1), option.opts[0], "not in the range")
        elif option.param_type_name == "argument" and option.required:
            refused(call(*path), "missing argument")


def test_an_unknown_command_is_one_line_and_a_group_alone_shows_its_help(call):
    refused(call("demoo"), "no such command 'demoo'", "flameche --help")
    for words in ((), ("bench",), ("keys",)):
        code, out, err = call(*words)
        assert code == 2 and "Usage: flameche" in out + err
    assert call("demo", "--help")[0] == 0


def test_help_lists_the_commands():
    answer = subprocess.run(
        [sys.executable, "-m", "flameche", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("demo", "run", "cluster", "report", "methods", "datasets"):
        assert command in answer.stdout


def test_the_version_is_printed(call):
    assert call("--version") == (0, f"flameche {flameche.__version__}\n", "")


def texts_of(command):
    """The help of a command, its options and its own commands."""
    yield from (text for text in (command.help, *(getattr(p, "help", None) for p in command.params)) if text)
    for below in getattr(command, "commands", {}).values():
        yield from texts_of(below)


def test_no_help_loses_its_brackets(call):
    texts = list(texts_of(get_command(app)))
    assert len(texts) > 60
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "[")
    said = " ".join(call("assign", "--help")[1].replace("│", "").split())
    assert "x [n H W], [n Ch H W] or [n H W Ch]; y [n]." in said


def test_every_command_that_prints_results_takes_json(call, experiment):
    """As README says; demo and bench are asked for their options only."""
    call("run", experiment, "--device", "cpu")
    assert json.loads(call("report", "runs", "--json")[1]) == {"report": "report/report.html"}
    for words in (
        *(
            ("demo",),
            ("run",),
            ("cluster",),
            ("select-k",),
            ("report",),
            ("methods",),
            ("schemes",),
            ("datasets",),
        ),
        *(("keys", "new"), ("keys", "show"), ("bench", "crypto")),
    ):
        assert "--json" in call(*words, "--help")[1], words


def test_schemes_lists_which_can_protect_updates(call):
    rows = json.loads(call("schemes", "--json")[1])
    assert {row["scheme"] for row in rows if row["updates"]} == {"secagg", "ckks"}
