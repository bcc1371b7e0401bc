"""Packages of this repository that the library works without: the paper's tables, and the benchmarks."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flameche.errors import BadInput

REPRODUCTION, BENCHMARKS = "flameche_reproduction", "flameche_benchmarks"
FOLDERS = {REPRODUCTION: "reproduction", BENCHMARKS: "benchmarks"}  # in a clone of the repository
HOW_TO_INSTALL = "in a clone of flameche: pip install -e ./benchmarks -e ./reproduction"
COMMANDS = {"reproduce": REPRODUCTION, "bench": BENCHMARKS, "overhead": BENCHMARKS}


def is_installed(package: str) -> bool:
    """Tell whether a companion package can be imported."""
    return find_spec(package) is not None


def load(package: str, module: str, what: str) -> Any:
    """Import a module of a companion package.

    Args:
        package: one of `FOLDERS`.
        module: its name within the package.
        what: what it is wanted for, as the subject of the error.

    Raises:
        BadInput: the package is not installed.
    """
    if not is_installed(package):
        raise BadInput(f"{what} needs {package}, which is not installed; {HOW_TO_INSTALL}")
    return import_module(f"{package}.{module}")
