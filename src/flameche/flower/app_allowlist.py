"""A site's allowlist of Flower apps: its node runs these only, identified by the hash of Flower's bundle.

Whoever may start runs on a SuperLink decides which code its nodes execute. A site that has reviewed an app
can restrict its node to that app; any other is refused before any of its code runs.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from flameche.errors import BadInput, FlamecheError

ALLOWED_APPS = "FLAMECHE_ALLOWED_APPS"  # environment variable: hashes separated by spaces; empty: any app


def clientapp() -> Any:
    """Run Flower's process for an app; if Flower's code has changed, fail rather than run any app."""
    from flwr.supernode.cli import flwr_clientapp

    if allowed := os.environ.get(ALLOWED_APPS, "").split():
        from flwr.supernode.runtime import run_clientapp as runtime

        install = vars(runtime)["install_from_fab"]

        def install_if_allowed(bundle: Any, *more: Any, **options: Any) -> Any:
            if not isinstance(bundle, bytes) or hashlib.sha256(bundle).hexdigest() not in allowed:
                raise FlamecheError("this site has not agreed to that app")
            return install(bundle, *more, **options)

        vars(runtime)["install_from_fab"] = install_if_allowed
    return flwr_clientapp()


def app_hash(app: Path) -> str:
    """Hash the bundle that Flower builds from an app's folder; it is the same on every machine."""
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise BadInput(f"{app} is not an app: it has no pyproject.toml")
    try:
        return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
    except ValueError as problem:
        raise BadInput(f"{app}: {str(problem).splitlines()[0]}") from problem
