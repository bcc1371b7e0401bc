"""What every test is given: an empty home, no network, and a count of skipped tests that cannot grow."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flameche.data import available, data_folder
from tests.skips import ALLOWED, THERE, too_many

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("192.0.2.1", 80)  # of a net that is reserved for documents


def test_home_cache_and_data_are_empty_and_made_for_the_tests(tmp_path):
    home = Path.home()
    assert home.parents[1] == tmp_path.parent and not list(home.iterdir())
    assert data_folder().is_relative_to(home)
    assert [info.name for info in available() if info.found] == ["digits"]
    assert all(Path(os.environ[f"XDG_{name}_HOME"]).is_relative_to(home) for name in ("CACHE", "CONFIG"))


def test_only_this_machine_can_be_connected_to():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    for connect in (
        lambda: socket.create_connection(ELSEWHERE),
        lambda: socket.getaddrinfo("example.org", 443),
    ):
        with pytest.raises(ConnectionRefusedError, match="tests have no network"):
            connect()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line, pytest.raises(ConnectionRefusedError):
        line.sendto(b"", ELSEWHERE)


def test_processes_that_tests_start_have_no_network_either():
    code = f"import socket; socket.create_connection({ELSEWHERE})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "tests have no network" in done.stderr


def test_more_skipped_tests_than_are_allowed_are_told_by_their_reason():
    reason, allowed = next(iter(ALLOWED.items()))
    assert too_many([f"Skipped: {reason}"] * allowed) == []
    assert too_many([f"Skipped: {reason}"] * (allowed + 1)) == [
        f"{allowed + 1} skipped, {allowed} allowed: {reason}"
    ]
    assert too_many(["for once"]) == ["1 skipped, 0 allowed: for once"]


def test_nothing_is_skipped_for_want_of_what_is_there():
    assert all(reason in ALLOWED for reasons in THERE.values() for reason in reasons)
    flower, chromium = THERE["flower"][0], THERE["chromium"][0]
    assert too_many([flower, chromium], ["flower"]) == [f"1 skipped, 0 allowed: {flower}"]


def test_a_run_fails_that_skips_for_want_of_what_is_said_to_be_there(tmp_path):
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_one(): pytest.skip('needs Chromium')\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "--rootdir", str(tmp_path), str(tmp_path)]
    for have, code in (("flower", 0), ("flower chromium", 1)):
        environment = {**os.environ, "FLAMECHE_TESTS_HAVE": have}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
        assert done.returncode == code, done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_run_fails_in_which_a_test_is_skipped_for_a_new_reason(tmp_path, workers):
    body = "import pytest\ndef test_one(): pytest.skip('{}')\ndef test_other(): pass\n"
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", *workers, "--rootdir", str(tmp_path)]
    for reason, code in (("needs Chromium", 0), ("not today", 1)):
        (tmp_path / "test_it.py").write_text(body.format(reason))
        done = subprocess.run(
            [*command, str(tmp_path / "test_it.py")], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == code, done.stdout
        assert ("1 skipped, 0 allowed: not today" in done.stdout) == (code == 1)


def test_a_browser_that_does_not_start_is_one_of_the_reasons_that_are_known(tmp_path):
    stub = tmp_path / "chromium"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    file = ROOT / "tests" / "report" / "test_browser.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "renders", str(file)],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0 and "1 skipped" in done.stdout, done.stdout


@pytest.mark.parametrize("starts", [True, False])
def test_ci_runs_the_tests_under_an_empty_home_and_without_the_machines_environment(
    starts, tmp_path, monkeypatch
):
    told = tmp_path / "told"
    words = '"$1 ${PIP_INDEX_URL-none} $(ls -A "$HOME" | wc -l) have ${FLAMECHE_TESTS_HAVE-} $HOME"'
    for name, body in (("make", f"echo {words} >> {told}"), ("chromium", f"exit {int(not starts)}")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    (Path.home() / ".cache").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", "theirs")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    subprocess.run([ROOT / ".ci" / "run"], check=True)
    (setup, first), (test, second) = (line.rsplit(" ", 1) for line in told.read_text().splitlines())
    assert (setup.split(), first) == (["setup", "theirs", "1", "have"], str(Path.home()))
    assert test.split()[:4] == ["test", "none", "0", "have"]
    assert second != first and not Path(second).exists()
    have = set(test.split()[4:])
    assert "flower" in have <= set(THERE) and ("chromium" in have) == starts
