"""Child processes that are guaranteed to end with this process, even if it is killed."""

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
from types import FrameType
from typing import IO

from flameche.errors import FlamecheError
from flameche.flower import process_reaper

Program = subprocess.Popen[bytes]
TAIL = 12  # lines at the end of a log that may hold the error
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # in Flower's logs


class ChildProcesses:
    """Programs that run beside this one, each in its own process group; use it in a `with` statement."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, Program, Path | None]] = {}
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", process_reaper.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not end it
        )

    def start(
        self, name: str, command: Sequence[str | Path], log: Path | None, env: Mapping[str, str]
    ) -> Program:
        """Start a program; its output goes to the log file, or to our own output."""
        if log is None:
            return self._start(name, command, None, env, None)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            return self._start(name, command, log, env, out)

    def stream(self, name: str, command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[str]:
        """Start a program and yield its lines; it is stopped with the iterator. FlamecheError if it fails."""
        with ExitStack() as stack:
            program = self._start(name, command, None, env, subprocess.PIPE, stack)
            assert program.stdout is not None
            yield from (line.decode(errors="replace").rstrip("\n") for line in program.stdout)
            if code := program.wait():
                raise FlamecheError(f"{name} failed (exit code {code})")

    def _start(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path | None,
        env: Mapping[str, str],
        out: IO[bytes] | int | None,
        stack: ExitStack | None = None,
    ) -> Program:
        """Start a program that the reaper knows, and that is stopped with the stack if there is one."""
        with _deferred_interrupt():
            program = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if out is None else subprocess.STDOUT,
                env={**os.environ, **env},
                process_group=0,  # in our session, so that a forked process may join the group
            )
            self._running[program.pid] = (name, program, log)
            self._tell_reaper(program.pid)
            if stack is not None:
                stack.callback(self.stop, [program])
                if program.stdout is not None:
                    stack.enter_context(program.stdout)
        return program

    @property
    def ids(self) -> list[int]:
        """List the ids of programs that were started and not stopped."""
        return list(self._running)

    @property
    def ended(self) -> list[str]:
        """Describe each program that ended by itself, with the last line of its log."""
        found = []
        for name, program, log in self._running.values():
            code = program.poll()
            if code is not None and code < 0:
                found.append(f"{name} was killed (signal {-code})" + ("" if log is None else f"; see {log}"))
            elif code is not None:
                reason = "" if log is None else f": {last_line(log)}; see {log}"
                found.append(f"{name} ended (exit code {code}){reason}")
        return found

    def check(self) -> None:
        """Raise FlamecheError if a program ended by itself."""
        for problem in self.ended:
            raise FlamecheError(problem)

    def stop(self, programs: Sequence[Program] | None = None) -> None:
        """Stop programs with all their descendants; without an argument, all programs."""
        stopping = [program for _, program, _ in self._running.values()] if programs is None else programs
        for program in stopping:
            program.poll()
        process_reaper.stop([program.pid for program in stopping])
        for program in stopping:
            program.wait()
            if self._running.pop(program.pid, None):
                self._tell_reaper(-program.pid)

    def close(self) -> None:
        """Stop everything, the reaper last."""
        self.stop()
        if self._reaper.stdin:
            self._reaper.stdin.close()
        self._reaper.wait()

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell_reaper(self, group: int) -> None:
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(b"%d\n" % group)
        self._reaper.stdin.flush()


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C until a program that is being started is known to the reaper."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C raises nothing here
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda sign, frame: received.append((sign, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            before(*received[0])


def last_line(log: Path) -> str:
    """Return the last line of a log that contains any text."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-TAIL:]
    except OSError:
        return "it left no log"
    plain = [COLOUR.sub("", line).strip() for line in lines]
    found = [line for line in plain if any(map(str.isalnum, line))]
    return found[-1][:300] if found else "it logged nothing"


def free_ports(count: int) -> list[int]:
    """Find ports of this machine that no program listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
