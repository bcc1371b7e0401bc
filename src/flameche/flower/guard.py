"""A process of its own that ends others when whoever started it is gone; knows the standard library only.

It reads process ids from its standard input, one a line (with a minus: forget it). When the input ends, it
ends those that are left, with their groups and all that they started: politely, then not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main() -> None:
    """Listen, then end what is left."""
    kept: list[int] = []
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            kept.append(number)
        elif -number in kept:
            kept.remove(-number)
    end(kept)


def end(leaders: list[int], patience: float = 10.0) -> None:
    """Ask groups of processes, and what they started, to end; kill what has not after so many seconds."""
    found: dict[int, str] = {}
    for sign in (signal.SIGTERM, signal.SIGKILL):
        asked: set[int] = set()
        finish = time.monotonic() + patience
        while True:
            table = processes()
            found |= {pid: table[pid][2] for pid in households(leaders, table)}
            left = {pid for pid, born in found.items() if pid in table and table[pid][2] == born}
            for pid in left - asked:  # also those that began only now
                _signal(pid, sign)
            asked |= left
            if not left:
                return
            if time.monotonic() > finish:
                break
            time.sleep(0.05)


def households(leaders: list[int], table: dict[int, tuple[int, int, str]]) -> set[int]:
    """Find the processes of these groups, and all that they started, in whatever group."""
    groups, found = set(leaders), set[int]()
    while (
        more := {pid for pid, (parent, group, _) in table.items() if group in groups or parent in found}
        - found
    ):
        found |= more
    return found


def processes() -> dict[int, tuple[int, int, str]]:
    """List running processes: parent, group and hour of birth; not those that only wait to be waited for."""
    found = {}
    if not os.path.isdir("/proc/self"):
        columns = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="]
        for line in subprocess.run(columns, capture_output=True, text=True, check=False).stdout.splitlines():
            pid, parent, group, state, born = line.split(None, 4)
            if not state.startswith("Z"):
                found[int(pid)] = (int(parent), int(group), born)
        return found
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if fields[0] not in "ZX":
            found[int(entry)] = (int(fields[1]), int(fields[2]), fields[19])
    return found


def _signal(pid: int, sign: int) -> None:
    try:
        os.kill(pid, sign)
    except (ProcessLookupError, PermissionError):  # gone, or by now somebody else's
        return


if __name__ == "__main__":
    main()
