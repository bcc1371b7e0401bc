"""Flower's process for an app on a node, but only for apps that the site has agreed to.

Whoever may start runs on a SuperLink decides which code its nodes run. A site that has read an app can hold
on to it: any other one, known by the hash of Flower's bundle, is refused before anything of it runs.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from flameche.errors import BadInput, FlamecheError

AGREED = "FLAMECHE_AGREED"  # hashes of bundles, with spaces between; empty: any app


def clientapp() -> Any:
    """Run Flower's process; it fails, rather than run another app, where Flower has changed."""
    from flwr.supernode.cli import flwr_clientapp

    if agreed := os.environ.get(AGREED, "").split():
        from flwr.supernode.runtime import run_clientapp as runtime

        install = vars(runtime)["install_from_fab"]

        def checked(bundle: Any, *more: Any, **options: Any) -> Any:
            if not isinstance(bundle, bytes) or hashlib.sha256(bundle).hexdigest() not in agreed:
                raise FlamecheError("this node has not agreed to that app")
            return install(bundle, *more, **options)

        vars(runtime)["install_from_fab"] = checked
    return flwr_clientapp()


def app_hash(app: Path) -> str:
    """Give the hash of the bundle that Flower makes of an app's folder, the same wherever it is made."""
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise BadInput(f"{app} is no app: it has no pyproject.toml")
    try:
        return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
    except ValueError as problem:
        raise BadInput(f"{app}: {str(problem).splitlines()[0]}") from problem
