"""A small experiment, and a fixture that runs the command line in this process."""

import sys

import pytest

from flameche.cli import main

TOML = """
rounds = 3
participation = 0.5
[data]
clients = 8
per_label = 6
heterogeneity = "csf"
label_skew = false
[training]
epochs = 1
batch = 32
threads = 1
[method]
kind = "flameche"
mode = "paper"
tau = 2
"""


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    return file


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line in a folder of its own; return exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["flameche", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


def refused(answer, *said):
    code, out, err = answer
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "Traceback" not in err
    for words in said:
        assert words in err
