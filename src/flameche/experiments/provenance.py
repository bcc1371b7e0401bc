"""What made a result: versions of Python and packages, the commit of the code, the device."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flameche import __version__
from flameche.training.device import device_name

RECORDED = ("flameche", "torch", "numpy", "scikit-learn", "scipy", "pydantic")
COMMIT = "FLAMECHE_COMMIT"  # names the commit where the code lies outside a git repository
SOURCE = Path(__file__).resolve().parents[3]


def provenance(device: str, used: Sequence[str] = ()) -> dict[str, Any]:
    """Describe what makes a result; every line of results/*.jsonl carries this.

    Args:
        device: "cpu" or "cuda", on which the result is computed.
        used: packages whose versions matter beside the usual ones.

    Returns:
        `versions` by package, `commit` (None where it cannot be told), and `device` by name.
    """
    return {"versions": versions(used), "commit": commit(), "device": device_name(device)}


def environment(device: str, used: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the machine and the code, for the record."""
    return {
        **versions(used),
        "device": device_name(device),
        "platform": platform.platform(),
        "commit": commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def versions(used: Sequence[str] = ()) -> dict[str, str]:
    """List the versions that a result depends on, also of the packages that it used beside the usual."""
    found = {"python": platform.python_version()}
    for name in (*RECORDED, *used):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            found[name] = __version__ if name == "flameche" else "unknown"
    return found


def commit() -> str | None:
    """Name the commit of the code, with "-dirty" where its source differs; None where that is unknown."""
    return os.environ.get(COMMIT) or _of_git(SOURCE)


@cache  # a process computes with the code that it began with
def _of_git(source: Path) -> str | None:
    if not (source / ".git").exists():
        return None
    head = _git(source, "rev-parse", "HEAD")
    changed = head and _git(source, "status", "--porcelain", "--", "src", "experiments")
    return f"{head}-dirty" if changed else head


def _git(source: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(source), *words], capture_output=True, text=True, check=False
        )
    except OSError:  # no git here
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
