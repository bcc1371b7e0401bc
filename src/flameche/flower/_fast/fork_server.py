"""A process that has imported Flower, torch and flameche, and forks itself for each program to be run.

It runs no program itself, so that each fork starts from the same state, as a process of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import shlex
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from flameche.flower._fast import launcher

PROGRAMS = {  # Flower's console scripts, and the functions that they call
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flower-supernode": "flameche.flower._fast.polling:supernode",
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
    "flwr-clientapp": "flameche.flower.app_allowlist:clientapp",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
}
SOCKET_FILE = "socket"
PRELOADED_MODULES = (  # also what libraries import late: torch's optimisers import dynamo, which takes 2 s
    *("flwr", "flwr.supernode.cli", "flwr.supernode.main", "flwr.supernode.runtime.run_clientapp"),
    *("flwr.superlink.cli", "flwr.supercore.cli", "httpcore", "h11", "uvicorn.protocols.http.auto"),
    *("flameche.flower.client_app", "flameche.flower.strategy"),
    *("flameche.crypto.bfv", "flameche.crypto.ckks", "flameche.crypto.paillier"),
    *("torch", "torch._dynamo", "tenseal", "gmpy2", "sklearn.datasets"),
)


def write_launchers(folder: Path) -> dict[str, str]:
    """Write programs that replace Flower's; return the environment variables by which they are found."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # whoever can reach the socket can run programs
    home = Path(sys.executable).parent
    for name in PROGRAMS:
        words = [sys.executable, "-I", "-S", launcher.__file__, name, str(home / name)]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o700)
    path = os.pathsep.join([str(folder), str(home), os.environ.get("PATH", "")])
    return {launcher.SOCKET: str(folder / SOCKET_FILE), "PATH": path}


def fork_server_command(folder: Path) -> list[str]:
    """Return the command that starts the fork server; it is ready once its socket exists."""
    for stale in (SOCKET_FILE, f"{SOCKET_FILE}.part"):
        (folder / stale).unlink(missing_ok=True)
    return [sys.executable, "-P", "-m", "flameche.flower._fast.fork_server", str(folder / SOCKET_FILE)]


def main() -> None:
    """Import all modules, then fork for each request; forks return from `_serve` and run their program."""
    file = sys.argv[1]
    for name in (*PRELOADED_MODULES, *{where.partition(":")[0] for where in PROGRAMS.values()}):
        try:
            importlib.import_module(name)
        except ImportError:  # a fork that needs it will report the error
            continue
    gc.collect()
    gc.freeze()  # keeps memory that forks never write to shared
    _run_program(*_serve(file))


def _serve(file: str) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Wait for requests, for ever; only forks return from here, each with its request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps forks that end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by our parent process
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(Path(file).parent)  # a socket's path must be short
        server.bind(f"{SOCKET_FILE}.part")
        server.listen(128)
        os.rename(f"{SOCKET_FILE}.part", SOCKET_FILE)
        while True:
            connection, _ = server.accept()
            if (request := _read_request(connection)) is None:
                connection.close()
                continue
            try:
                child = os.fork()
            except OSError:  # out of resources: the launcher sees a closed connection, and runs the program
                child = -1
            if child == 0:
                return connection, *request
            for stream in request[1]:
                os.close(stream)
            connection.close()


def _read_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read which program to run, and the caller's standard streams; None if the request is invalid."""
    streams: list[int] = []
    try:
        connection.settimeout(5.0)
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        data = b""
        while len(data) < int.from_bytes(size, "big") and (more := connection.recv(1 << 16)):
            data += more
        connection.settimeout(None)
        return json.loads(data), streams
    except (OSError, ValueError):
        for stream in streams:
            os.close(stream)
        return None


def _run_program(connection: socket.socket, request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run a program with the caller's arguments, environment, folder and standard streams."""
    for sign in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(sign, signal.SIG_DFL if sign == signal.SIGCHLD else signal.default_int_handler)
    for at, stream in enumerate(streams):
        os.dup2(stream, at)
        os.close(stream)
    with suppress(OSError):  # the caller's process group may have ended meanwhile
        os.setpgid(0, request["group"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    with suppress(OSError):  # the name that `ps` shows, on Linux
        Path("/proc/self/comm").write_text(request["name"])
    connection.sendall(b"+")
    module, _, function = PROGRAMS[request["name"]].partition(":")
    code: Any = 1
    try:
        code = getattr(importlib.import_module(module), function)()
    except SystemExit as leaving:
        code = leaving.code
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    _exit(connection, code if isinstance(code, int) else int(code is not None))


def _exit(connection: socket.socket, code: int) -> NoReturn:
    """Exit as Python does, but without finalising every module, which costs more than most messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Flower sends it to itself, even while it is exiting
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # the reader may have gone
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(str(code).encode())
    os._exit(code)


if __name__ == "__main__":
    main()
