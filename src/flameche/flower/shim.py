"""Stands in for one of Flower's programs: asks the warm process for a copy of itself that runs it.

    python -I -S shim.py NAME REAL ARGUMENTS...

Flower starts a process for every message, and a process that has only just imported Flower and torch is late.
Where no warm process answers, this becomes the real program; but not where a site runs agreed apps alone, of
which the real program knows nothing. Knows the standard library only.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys

SOCKET = "FLAMECHE_WARM"  # names the warm process's socket
AGREED = "FLAMECHE_AGREED"  # see agreed.py


def main() -> None:
    """Let the warm process do it, and end as the copy ends."""
    name, real, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    here = os.getcwd()
    about = {"name": name, "argv": [real, *arguments], "cwd": here, "group": os.getpgrp()}
    request = {**about, "env": dict(os.environ)}
    try:
        line = socket.socket(socket.AF_UNIX)
        folder, file = os.path.split(os.environ[SOCKET])
        os.chdir(folder)  # a socket's path must be short
        line.connect(file)
        data = json.dumps(request).encode()
        handles = array.array("i", [0, 1, 2])
        line.sendmsg([len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
        line.sendall(data)
        taken = line.recv(1) == b"+"
    except (OSError, KeyError):
        taken = False
    os.chdir(here)
    if not taken and os.environ.get(AGREED):
        sys.exit("flameche: the node's warm process is gone; start the node again")
    if not taken:
        os.execv(real, [real, *arguments])
    said = b""
    while more := line.recv(16):  # ends when the copy does
        said += more
    os._exit(int(said) if said else 1)


if __name__ == "__main__":
    main()
