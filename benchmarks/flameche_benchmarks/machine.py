"""The machine that a benchmark runs on, the versions it depends on, and what its processes cost."""

from __future__ import annotations

import os
import platform
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flameche.training.device import usable_cores

PACKAGES = ("flameche", "numpy", "tenseal", "gmpy2", "cryptography", "phe")


def describe_machine() -> dict[str, Any]:
    """Name the processor, the cores, and how busy they are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": usable_cores(), "load": load_average()}


def load_average() -> float | None:
    """Give the mean number of running processes over the last minute, where the system knows it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def package_versions(more: tuple[str, ...] = ()) -> dict[str, str | None]:
    """List versions; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


PROC = Path("/proc")
EVERY = 0.25  # seconds between looks at memory


def process_tree(root: int) -> list[int]:
    """List a process and its descendants; just itself where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # gone meanwhile
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, new = [root], [root]
    while new:
        new = [child for pid in new for child in children.get(pid, [])]
        found += new
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Add up the CPU time of processes so far, with that of their children that have ended."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_used(pids: list[int]) -> int:
    """Add up the bytes that processes hold; what several share counts once."""
    total = 0
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


class PeakMemory:
    """Watches a process and its descendants; `peak` is the most bytes they held together."""

    def __init__(self, root: int) -> None:
        self.root, self.peak = root, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.peak = max(self.peak, memory_used(process_tree(self.root)))
            self._stop.wait(EVERY)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
