"""Replaces one of Flower's programs: asks the fork server for a process that runs it.

    python -I -S launcher.py NAME REAL ARGUMENTS...

Flower starts a process for every message, and one that first imports Flower and torch takes seconds. If no
fork server answers, this becomes the real program; but not at a site that restricts its node to some apps,
because the real program knows nothing of the allowlist. Imports the standard library only.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys

SOCKET = "FLAMECHE_FORK_SERVER"  # environment variable: the fork server's socket
ALLOWED_APPS = "FLAMECHE_ALLOWED_APPS"  # see app_allowlist.py


def main() -> None:
    """Have the fork server run the program, and exit with its exit code."""
    name, real, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    here = os.getcwd()
    program = {"name": name, "argv": [real, *arguments], "cwd": here, "group": os.getpgrp()}
    request = {**program, "env": dict(os.environ)}
    try:
        connection = socket.socket(socket.AF_UNIX)
        folder, file = os.path.split(os.environ[SOCKET])
        os.chdir(folder)  # a socket's path must be short
        connection.connect(file)
        data = json.dumps(request).encode()
        streams = array.array("i", [0, 1, 2])
        connection.sendmsg([len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(data)
        started = connection.recv(1) == b"+"
    except (OSError, KeyError):
        started = False
    os.chdir(here)
    if not started and os.environ.get(ALLOWED_APPS):
        sys.exit("flameche: the node's fork server has ended; start the node again")
    if not started:
        os.execv(real, [real, *arguments])
    exit_code = b""
    while more := connection.recv(16):  # until the forked process ends
        exit_code += more
    os._exit(int(exit_code) if exit_code else 1)


if __name__ == "__main__":
    main()
