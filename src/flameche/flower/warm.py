"""A process that has imported Flower, torch and flameche, and forks a copy for each program that is wanted.

It runs nothing itself, so that copies are clean; each copy is a process with memory of its own, as Flower
wants it.
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

from flameche.flower import shim

PROGRAMS = {  # console scripts of Flower, and what to call
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flower-supernode": "flameche.flower.prompt:supernode",
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
    "flwr-clientapp": "flameche.flower.agreed:clientapp",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
}
SOCKET_FILE = "socket"
NEEDED = (  # also what libraries import late: torch's optimisers take dynamo, two seconds of it
    *("flwr", "flwr.supernode.cli", "flwr.supernode.main", "flwr.supernode.runtime.run_clientapp"),
    *("flwr.superlink.cli", "flwr.supercore.cli", "httpcore", "h11", "uvicorn.protocols.http.auto"),
    *("flameche.flower.client_app", "flameche.flower.work", "flameche.flower.strategy"),
    *("flameche.crypto.bfv", "flameche.crypto.ckks", "flameche.crypto.paillier"),
    *("torch", "torch._dynamo", "tenseal", "gmpy2", "sklearn.datasets"),
)


def write_stand_ins(folder: Path) -> dict[str, str]:
    """Write programs that stand in for Flower's; return the environment in which they are found and warm."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # who can ask can run programs
    home = Path(sys.executable).parent
    for name in PROGRAMS:
        words = [sys.executable, "-I", "-S", shim.__file__, name, str(home / name)]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o700)
    path = os.pathsep.join([str(folder), str(home), os.environ.get("PATH", "")])
    return {shim.SOCKET: str(folder / SOCKET_FILE), "PATH": path}


def command(folder: Path) -> list[str]:
    """Tell how the warm process is started; once its socket is there it can be asked."""
    for left in (SOCKET_FILE, f"{SOCKET_FILE}.part"):
        (folder / left).unlink(missing_ok=True)
    return [sys.executable, "-P", "-m", "flameche.flower.warm", str(folder / SOCKET_FILE)]


def main() -> None:
    """Import everything, then fork a copy for each that asks; copies return from here and run."""
    file = sys.argv[1]
    for name in (*NEEDED, *{where.partition(":")[0] for where in PROGRAMS.values()}):
        try:
            importlib.import_module(name)
        except ImportError:  # the copy that needs it will say so
            continue
    gc.collect()
    gc.freeze()  # memory that copies never touch stays shared
    _become(*_serve(file))


def _serve(file: str) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Wait for requests, for ever; only copies come back from here, each with its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies are nobody's zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    with socket.socket(socket.AF_UNIX) as door:
        os.chdir(Path(file).parent)  # a socket's path must be short
        door.bind(f"{SOCKET_FILE}.part")
        door.listen(128)
        os.rename(f"{SOCKET_FILE}.part", SOCKET_FILE)
        while True:
            line, _ = door.accept()
            if (request := _hear(line)) is None:
                line.close()
                continue
            try:
                child = os.fork()
            except OSError:  # no room: who asked finds the line closed, and starts the real program
                child = -1
            if child == 0:
                return line, *request
            for handle in request[1]:
                os.close(handle)
            line.close()


def _hear(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    handles: list[int] = []
    try:
        line.settimeout(5.0)
        size, handles, _, _ = socket.recv_fds(line, 8, 3)
        data = b""
        while len(data) < int.from_bytes(size, "big") and (more := line.recv(1 << 16)):
            data += more
        line.settimeout(None)
        return json.loads(data), handles
    except (OSError, ValueError):
        for handle in handles:
            os.close(handle)
        return None


def _become(line: socket.socket, request: dict[str, Any], handles: list[int]) -> NoReturn:
    """Run the program that was asked for, as if started there: arguments, environment, folder, streams."""
    for sign in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(sign, signal.SIG_DFL if sign == signal.SIGCHLD else signal.default_int_handler)
    for at, handle in enumerate(handles):
        os.dup2(handle, at)
        os.close(handle)
    with suppress(OSError):  # its group is gone: so will it be
        os.setpgid(0, request["group"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    with suppress(OSError):  # what `ps` shows, on Linux
        Path("/proc/self/comm").write_text(request["name"])
    line.sendall(b"+")
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
    _leave(line, code if isinstance(code, int) else int(code is not None))


def _leave(line: socket.socket, code: int) -> NoReturn:
    """End as Python does, but without taking every module apart: that costs more than most messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Flower sends it to itself, also when it is ending already
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # whoever read this is gone
        sys.stdout.flush()
        sys.stderr.flush()
        line.sendall(str(code).encode())
    os._exit(code)


if __name__ == "__main__":
    main()
