"""Starts programs that must end with us: each in a group of its own, ended by its id, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from flameche.errors import FlamecheError
from flameche.flower import guard

Program = subprocess.Popen[bytes]
TAIL = 12  # lines of a log that are worth showing
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # in what Flower logs


class Processes:
    """Programs that run beside this one; none outlives it, even if it is killed."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, Program, Path | None]] = {}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for whoever started it
        )

    def start(
        self, name: str, command: Sequence[str | Path], log: Path | None, env: Mapping[str, str]
    ) -> Program:
        """Start a program; what it prints goes to the log, or where our own words go."""
        with _uninterrupted(), ExitStack() as stack:
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
            out = None if log is None else stack.enter_context(log.open("ab"))
            program = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if out is None else subprocess.STDOUT,
                env={**os.environ, **env},
                process_group=0,  # in our session: a copy of a warm process may join it
            )
            self._keep(name, program, log)
        return program

    def follow(self, name: str, command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[str]:
        """Start a program and yield its lines; it ends with whoever reads them. FlamecheError if it fails."""
        with ExitStack() as stack:
            with _uninterrupted():
                program = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **env},
                    process_group=0,
                )
                self._keep(name, program, None)
                stack.callback(self.end, [program])
                assert program.stdout is not None
                lines = stack.enter_context(program.stdout)
            yield from (line.decode(errors="replace").rstrip("\n") for line in lines)
            if code := program.wait():
                raise FlamecheError(f"{name} failed (exit code {code})")

    @property
    def ids(self) -> list[int]:
        """List the ids of what was started and not ended."""
        return list(self._running)

    @property
    def ended(self) -> list[str]:
        """Say of each program that ended by itself how, with the last line that it printed."""
        found = []
        for name, program, log in self._running.values():
            code = program.poll()
            if code is not None and code < 0:
                found.append(f"{name} was killed (signal {-code})" + ("" if log is None else f"; see {log}"))
            elif code is not None:
                said = "" if log is None else f": {last_words(log)}; see {log}"
                found.append(f"{name} ended (exit code {code}){said}")
        return found

    def check(self) -> None:
        """Fail if a program ended by itself."""
        for problem in self.ended:
            raise FlamecheError(problem)

    def end(self, programs: Sequence[Program] | None = None) -> None:
        """End programs and all that they started; without an argument, every one."""
        ending = [program for _, program, _ in self._running.values()] if programs is None else programs
        for program in ending:
            program.poll()
        guard.end([program.pid for program in ending])
        for program in ending:
            program.wait()
            if self._running.pop(program.pid, None):
                self._tell(-program.pid)

    def close(self) -> None:
        """End everything, the guard last."""
        self.end()
        if self._guard.stdin:
            self._guard.stdin.close()
        self._guard.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, name: str, program: Program, log: Path | None) -> None:
        self._running[program.pid] = (name, program, log)
        self._tell(program.pid)

    def _tell(self, group: int) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % group)
        self._guard.stdin.flush()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C until a program that is being started is known to its guard, which is to end it."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield  # nothing is raised here
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda sign, frame: came.append((sign, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


def last_words(log: Path) -> str:
    """Give the last line of a log that says something."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-TAIL:]
    except OSError:
        return "it left no log"
    plain = [COLOUR.sub("", line).strip() for line in lines]
    said = [line for line in plain if any(map(str.isalnum, line))]
    return said[-1][:300] if said else "it said nothing"


def free_ports(count: int) -> list[int]:
    """Find ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
