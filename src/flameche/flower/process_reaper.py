"""A separate process that stops other processes when their parent has ended; standard library only.

It reads process ids from its standard input, one a line; a negative one is no longer to be stopped. When the
input ends, it stops the remaining processes, their groups and all their descendants: SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main() -> None:
    """Read process ids, then stop those that remain."""
    remaining: list[int] = []
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            remaining.append(number)
        elif -number in remaining:
            remaining.remove(-number)
    stop(remaining)


def stop(leaders: list[int], grace: float = 10.0) -> None:
    """Terminate process groups and their descendants; kill those that still run after `grace` seconds."""
    found: dict[int, str] = {}
    for sign in (signal.SIGTERM, signal.SIGKILL):
        signalled: set[int] = set()
        deadline = time.monotonic() + grace
        while True:
            table = process_table()
            found |= {pid: table[pid][2] for pid in descendants(leaders, table)}
            running = {pid for pid, started in found.items() if pid in table and table[pid][2] == started}
            for pid in running - signalled:  # also those that started only now
                _signal(pid, sign)
            signalled |= running
            if not running:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def descendants(leaders: list[int], table: dict[int, tuple[int, int, str]]) -> set[int]:
    """Find the processes of these groups, and everything that they started, in whatever group."""
    groups, found = set(leaders), set[int]()
    while (
        more := {pid for pid, (parent, group, _) in table.items() if group in groups or parent in found}
        - found
    ):
        found |= more
    return found


def process_table() -> dict[int, tuple[int, int, str]]:
    """List running processes, zombies excluded: parent, group and start time by process id."""
    found = {}
    if not os.path.isdir("/proc/self"):
        columns = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="]
        for line in subprocess.run(columns, capture_output=True, text=True, check=False).stdout.splitlines():
            pid, parent, group, state, started = line.split(None, 4)
            if not state.startswith("Z"):
                found[int(pid)] = (int(parent), int(group), started)
        return found
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if fields[0] not in "ZX":
            found[int(entry)] = (int(fields[1]), int(fields[2]), fields[19])
    return found


def _signal(pid: int, sign: int) -> None:
    try:
        os.kill(pid, sign)
    except (ProcessLookupError, PermissionError):  # it has ended, or its id is another user's by now
        return


if __name__ == "__main__":
    main()
