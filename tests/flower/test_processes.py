"""Nothing that was started outlives who started it; copies of a warm process are as good as new ones."""

import json
import os
import signal
import subprocess
import sys

import pytest

from flameche.errors import FlamecheError
from flameche.flower import process_reaper
from flameche.flower._fast import launcher
from flameche.flower.processes import ChildProcesses, free_ports, last_line
from tests.flower.conftest import until

FAMILY = (
    "sleep 321 & setsid sleep 321 & echo ready; wait"  # a child in the group, and one in a group of its own
)


def running(pids):
    return set(pids) & process_reaper.process_table().keys()


def started(log):
    return until(lambda: log.exists() and "ready" in log.read_text())


def test_ending_a_program_ends_all_that_it_started(tmp_path):
    with ChildProcesses() as processes:
        program = processes.start("family", ["sh", "-c", FAMILY], tmp_path / "log", {})
        started(tmp_path / "log")
        family = process_reaper.descendants([program.pid], process_reaper.process_table())
        assert len(family) == 3
        processes.stop([program])
        assert not running(family)


def test_who_does_not_listen_is_killed():
    words = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"]
    with subprocess.Popen(words, process_group=0, stdout=subprocess.PIPE) as deaf:
        deaf.stdout.readline()
        process_reaper.stop([deaf.pid], grace=0.3)
        assert deaf.wait() == -signal.SIGKILL


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_process_that_is_killed(tmp_path, sign):
    code = (
        "import sys, time; from pathlib import Path; from flameche.flower.processes import ChildProcesses\n"
        "program = ChildProcesses().start('family', ['sh', '-c', sys.argv[1]], Path(sys.argv[2]), {})\n"
        "print(program.pid, flush=True); time.sleep(100)"
    )
    words = [sys.executable, "-c", code, FAMILY, str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as victim:
        leader = int(victim.stdout.readline())
        started(tmp_path / "log")
        family = process_reaper.descendants([leader], process_reaper.process_table())
        assert len(family) == 3
        victim.send_signal(sign)
        victim.wait()
        until(lambda: not running(family))


@pytest.mark.parametrize("way", ["start", "follow"])
def test_ctrl_c_while_a_program_is_being_started_leaves_nothing(way, monkeypatch):
    born = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            born.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ChildProcesses() as processes:
            monkeypatch.setattr(subprocess, "Popen", Interrupted)
            ways = {
                "start": lambda: processes.start("it", ["sleep", "321"], None, {}),
                "follow": lambda: next(processes.stream("it", ["sleep", "321"], {})),
            }
            with pytest.raises(KeyboardInterrupt):
                ways[way]()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(born) == 1
    until(lambda: not running(born))


def test_a_program_that_ended_is_told_with_its_last_words(tmp_path):
    with ChildProcesses() as processes:
        program = processes.start(
            "the link", ["sh", "-c", "echo port is taken; exit 3"], tmp_path / "log", {}
        )
        program.wait()
        with pytest.raises(FlamecheError, match=r"the link ended \(exit code 3\): port is taken; see"):
            processes.check()


def test_a_program_that_was_killed_is_told_and_last_words_have_no_colours(tmp_path):
    (tmp_path / "log").write_text("\x1b[92mINFO \x1b[0m: all is well\n")
    assert last_line(tmp_path / "log") == "INFO : all is well"
    with ChildProcesses() as processes:
        assert not processes.ended
        processes.start("node 4", ["sleep", "100"], tmp_path / "log", {}).kill()
        until(lambda: processes.ended)
        assert processes.ended == [f"node 4 was killed (signal 9); see {tmp_path / 'log'}"]


def test_ports_are_free_and_distinct():
    ports = free_ports(20)
    assert len(set(ports)) == 20


TOLD = """
import json, os, sys
def main():
    import numpy as np
    from cryptography.hazmat.primitives.asymmetric import ec
    from pathlib import Path
    from flameche.crypto.keyfile import read_secret
    key = read_secret(Path(os.environ["KEY"])).client_key()
    print(json.dumps({
        "argv": sys.argv, "cwd": os.getcwd(), "word": os.environ["WORD"], "group": os.getpgrp(),
        "pid": os.getpid(),
        "drawn": [os.urandom(4).hex(), int(np.random.default_rng().integers(2**60)),
                  ec.generate_private_key(ec.SECP384R1()).private_numbers().private_value,
                  key.seal(np.ones(3)).hex()[:2000]],
    }))
    return 7 if "fail" in sys.argv else None
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Start a warm process that knows one small program."""
    from flameche.crypto.keyfile import write_secret
    from flameche.crypto.registry import make_scheme

    folder = tmp_path_factory.mktemp("warm")
    (folder / "told.py").write_text(TOLD)
    write_secret(folder / "client.key", make_scheme("bfv", clients=3))
    code = (
        "import sys, tenseal, flameche.flower._fast.fork_server as w\n"
        "w.PRELOADED_MODULES = ('told', 'flameche.crypto.keyfile',"
        "    'cryptography.hazmat.primitives.asymmetric.ec')\n"
        "w.PROGRAMS = {'told': 'told:main'}; sys.argv = ['warm', sys.argv[1]]; w.main()"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    with ChildProcesses() as processes:
        processes.start("warm", [sys.executable, "-c", code, str(folder / "socket")], folder / "log", env)
        until(lambda: (folder / "socket").exists() or processes.check())
        yield folder


def ask(warm, *arguments, cwd=None, **env):
    words = [sys.executable, "-I", "-S", launcher.__file__, "told", "/bin/echo", *arguments]
    told = {
        "WORD": "of the caller",
        "KEY": str(warm / "client.key"),
        launcher.SOCKET: str(warm / "socket"),
        **env,
    }
    return subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, env={**os.environ, **told}, check=False
    )


def test_a_copy_runs_as_if_it_had_been_started_there(warm, tmp_path):
    done = ask(warm, "a", "b c", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["argv"], told["cwd"]) == (0, ["/bin/echo", "a", "b c"], str(tmp_path))
    assert told["word"] == "of the caller" and told["group"] == os.getpgrp()
    assert ask(warm, "fail").returncode == 7


def test_copies_share_no_randomness(warm):
    one, other = (json.loads(ask(warm).stdout)["drawn"] for _ in range(2))
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_copies_leave_no_trace(warm):
    pid = json.loads(ask(warm).stdout)["pid"]
    until(lambda: not running([pid]))


def test_without_a_warm_process_the_real_program_runs(warm, tmp_path):
    done = ask(warm, "it", "is", "cold", cwd=tmp_path, **{launcher.SOCKET: str(warm / "nobody")})
    assert (done.returncode, done.stdout) == (0, "it is cold\n")


def test_but_not_where_only_agreed_apps_may_run(warm):
    done = ask(warm, **{launcher.SOCKET: str(warm / "nobody"), launcher.ALLOWED_APPS: "0" * 64})
    assert done.returncode == 1 and "start the node again" in done.stderr and not done.stdout
