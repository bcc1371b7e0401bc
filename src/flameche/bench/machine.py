"""Describes the machine and the versions that a benchmark's figures depend on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flameche.training.device import usable_cores

PACKAGES = ("flameche", "numpy", "tenseal", "gmpy2", "cryptography", "phe")


def machine() -> dict[str, Any]:
    """Name the processor, the cores, and how busy they are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": usable_cores(), "load": load()}


def load() -> float | None:
    """Give the mean number of running processes over the last minute, where the system knows it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def packages(more: tuple[str, ...] = ()) -> dict[str, str | None]:
    """List versions; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
