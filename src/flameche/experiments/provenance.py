"""What made a result: versions of Python and packages, the commit and the sources of the code, the device."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flameche import __version__
from flameche.experiments.schema import Experiment
from flameche.registry import DATASETS, METADATA, METHODS, MODELS, PARTITIONS, SCHEMES
from flameche.training.device import device_name, torch_version

RECORDED = ("flameche", "numpy", "scikit-learn", "scipy", "pydantic")
CODE = ("src", "experiments", "reproduction", "benchmarks")  # folders of the repository that make results
COMMIT = "FLAMECHE_COMMIT"  # names the commit where the code lies outside a git repository
SOURCE = Path(__file__).resolve().parents[3]
PACKAGE = Path(__file__).resolve().parents[1]
AGAIN = "--fresh runs it again"
NOT_RECORDED = "not recorded"


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
    found = {"python": platform.python_version(), "torch": torch_version()}
    for name in (*RECORDED, *used):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            found[name] = __version__ if name == "flameche" else "unknown"
    return found


def sources(*named: str) -> dict[str, str]:
    """Give fingerprints of the code that makes a result.

    Args:
        named: code that an experiment names as "package.module:Name" (`code_of`). All files of its package
            count too, or all beside a module that is in none, if found without importing them.

    Returns:
        12 hex digits by name: "flameche", and the modules that are not ours.
    """
    own = {}
    for path in named:
        module, _, name = path.partition(":")
        if name and (file := _module_file(module)) is not None:
            own[module] = _hash_of(_with_neighbours(file))
    return {"flameche": _package_sources(PACKAGE), **own}


def code_of(experiment: Experiment) -> list[str]:
    """List the code of others that an experiment's result depends on, each as "package.module:Name"."""
    named = [
        (DATASETS, experiment.data.dataset or ""),
        (MODELS, experiment.model.kind),
        (METADATA, experiment.metadata.kind),
        (METHODS, experiment.method.kind),
        (PARTITIONS, experiment.partition.kind),
        (SCHEMES, experiment.scheme.kind),
    ]
    return sorted({path for registry, name in named if (path := registry.code(name))})


def sources_note(
    made: Mapping[str, Any], now: Mapping[str, str], what: str = "made", remedy: str = AGAIN
) -> str | None:
    """Say if a run was made by other code than there is now; None where it was not.

    Args:
        made: the run's summary or environment. Where it has no fingerprints, it is taken to be of this code
            if it is of the same commit, without changes.
        now: what `sources` gives now.
        what: "made", or "begun" for a run that goes on from a checkpoint.
        remedy: how to run it again.

    Returns:
        One line, with the remedy.
    """
    before = made.get("sources")
    if before is None:
        here = commit()
        if here and here == made.get("commit") and not here.endswith("-dirty"):
            return None
        return f"the sources by which this run was {what} were not recorded; {remedy}"
    changed = [name for name, fingerprint in now.items() if before.get(name, fingerprint) != fingerprint]
    if not changed:
        return None
    return f"this run was {what} by other sources of {' and '.join(changed)}; {remedy}"


@cache  # a process computes with the code that it began with
def _package_sources(package: Path) -> str:
    """Hash all Python files of a package, in the order of their paths."""
    files = {file.relative_to(package).as_posix(): file for file in package.rglob("*.py")}
    return _hash_of(sorted(files.items()))


def _with_neighbours(file: Path) -> list[tuple[str, Path]]:
    """List what a module may import: its whole package, or, if it is in none, the files beside it."""
    root = file.absolute().parent
    while root != root.parent and (root.parent / "__init__.py").is_file():
        root = root.parent
    found = root.rglob("*.py") if (root / "__init__.py").is_file() else root.glob("*.py")
    return sorted((each.relative_to(root).as_posix(), each) for each in found if each.is_file())


def _hash_of(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        data = file.read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def _module_file(module: str) -> Path | None:
    """Find a module's file as an import would, the current folder first; None where there is none."""
    for folder in ("", *sys.path):
        stem = Path(folder, *module.split("."))
        for file in (stem / "__init__.py", stem.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def short_device(name: str | None) -> str:
    """Shorten a device's name: without its count of threads."""
    short = (name or NOT_RECORDED).partition(",")[0]
    return "CPU" if short == "cpu" else short


def commit() -> str | None:
    """Name the commit of the code, with "-dirty" where its source differs; None where that is unknown."""
    return os.environ.get(COMMIT) or _of_git(SOURCE)


@cache  # a process computes with the code that it began with
def _of_git(source: Path) -> str | None:
    if not (source / ".git").exists():
        return None
    head = _git(source, "rev-parse", "HEAD")
    changed = head and _git(source, "status", "--porcelain", "--", *CODE)
    return f"{head}-dirty" if changed else head


def _git(source: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(source), *words], capture_output=True, text=True, check=False
        )
    except OSError:  # no git here
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
