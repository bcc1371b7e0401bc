"""The commands: what they write, what they refuse in one line; nothing stays when they are stopped."""

import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flameche.cli import deploy, main
from flameche.cli.commands import app
from tests.flower.conftest import heed_interrupts, mentioning, until

NODE = ("node", "--insecure", "--number", "0", "--folder", "x", "--superlink")


def call(*words):
    return CliRunner().invoke(app, ["deploy", *map(str, words)])


def refused(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["flameche", "deploy", *map(str, words)])
    with pytest.raises(SystemExit) as leaving:
        main()
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("flameche: ") for line in said] == [False] * (len(said) - 1) + [True]
    return leaving.value.code, said[-1]


def test_an_app_is_written(tmp_path):
    done = call("init", tmp_path / "scans", "--nodes", 7, "--scheme", "ckks", "--classes", "ill, healthy")
    assert done.exit_code == 0 and len(done.output.splitlines()) == 5
    text = (tmp_path / "scans" / "experiment.toml").read_text()
    assert "clients = 7" in text and 'kind = "ckks"' in text
    assert 'classes = "ill, healthy"' in (tmp_path / "scans" / "pyproject.toml").read_text()


@pytest.mark.parametrize("words", [("--classes", text) for text in ("1", "ill,ill", "3,", ",", " ", "-3")])
def test_an_app_for_classes_that_cannot_be_is_not_written(tmp_path, monkeypatch, capsys, words):
    code, said = refused(monkeypatch, capsys, "init", tmp_path / "scans", *words)
    assert code == 2 and "expected the number of classes" in said and not (tmp_path / "scans").exists()


def test_own_data_without_the_number_of_classes_start_nothing(tmp_path, monkeypatch, capsys):
    pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")
    monkeypatch.chdir(tmp_path)
    assert call("init", "scans").exit_code == 0
    code, said = refused(monkeypatch, capsys, "local", "--app", "scans")
    assert code == 2 and 'classes = "" in the app' in said and "at all sites together" in said
    assert not (tmp_path / "deployment").exists()


def test_certificates_and_identities_are_written(tmp_path):
    assert call("certificates", tmp_path / "tls", "--host", "10.0.0.1", "--host", "link").exit_code == 0
    assert call("identity", tmp_path / "site").exit_code == 0
    assert (tmp_path / "site" / "node.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "words", [("local",), ("agree", "app"), ("node", "--superlink", "x:1", "--number", "0", "--folder", "x")]
)
def test_without_flower_one_line_says_what_is_missing(monkeypatch, capsys, words):
    monkeypatch.setattr(deploy, "find_spec", lambda name: None)
    code, said = refused(monkeypatch, capsys, *words)
    assert code == 2 and "needs flwr: pip install 'flameche[flower]'" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("local", "--app", "nowhere"), "not a Flower app"),
        (("local", "--scheme", "rot13"), "scheme.kind"),
        (("local", "--set", "method.kind=fedgroup", "--scheme", "plain"), "does not run on a network"),
        (
            ("local", "--set", "training.server_lr=0.5", "--scheme", "plain"),
            "server_lr does not run on a network",
        ),
        (
            ("local", "--set", "training.absent=stay", "--scheme", "plain"),
            'absent = "stay" does not run on a network',
        ),
        (("local", "--data", "nowhere"), "holds neither 0.npz"),
        (("local", "--set", "name='a b'"), "name"),
        (("agree", "nowhere"), "is not an app"),
        (("node", "--superlink", "x:1", "--number", "0", "--folder", "x"), "--root-certificates"),
        ((*NODE, "x:1", "--key", "n"), "no such"),
        ((*NODE, "x:1", "--key", __file__), "not a key file"),
        ((*NODE, "x"), "expected HOST:PORT"),
        ((*NODE, "x:1", "--device", "tpu"), "expected auto, cpu or cuda"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, why):
    pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")
    monkeypatch.chdir(tmp_path)
    code, said = refused(monkeypatch, capsys, *words)
    assert code == 2 and why in said


@pytest.mark.parametrize(
    ("sign", "when", "code"),
    [(signal.SIGINT, "starting Flower", 130), (signal.SIGKILL, "rounds of 3 of 3 nodes", -signal.SIGKILL)],
)
def test_nothing_stays_when_it_is_stopped_or_killed(tmp_path, sign, when, code):
    pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")
    command = [sys.executable, "-m", "flameche", "deploy", "local", "--nodes", "3", "--scheme", "plain"]
    with subprocess.Popen(
        [*command, "--folder", str(tmp_path / "d"), "--out", str(tmp_path / "r")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_interrupts,
    ) as program:  # fmt: skip
        for line in program.stdout:
            if when in line:
                break
        until(lambda: len(mentioning(tmp_path)) > 1)
        program.send_signal(sign)
        assert ("the same command continues" in program.stdout.read()) == (sign == signal.SIGINT)
        assert program.wait() == code
    until(lambda: not mentioning(tmp_path))
