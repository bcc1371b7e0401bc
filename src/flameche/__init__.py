"""Clustered federated learning in which the server only adds.

    experiment(...)          describe an experiment (or `load_experiment("file.toml")`)
    cluster(experiment)      metadata and clustering only, in seconds
    run(experiment)          the whole federation: clustering and training, in a run folder
    assign(run, data)        a client that comes later: its cluster in a finished run, and its model
    write_report(runs, out)  draw run folders

The parts stand on their own too: `flameche.em` (EM from sums), `flameche.crypto` (schemes),
`flameche.metadata`, `flameche.data` (datasets and heterogeneity), `flameche.methods`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flameche.errors import BadInput, ConfigError, DataError, FlamecheError, SealError, StoreError

if TYPE_CHECKING:
    from flameche.api import assign, cluster, experiment, load_experiment, run, write_report

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "ConfigError",
    "DataError",
    "FlamecheError",
    "SealError",
    "StoreError",
    "assign",
    "cluster",
    "experiment",
    "load_experiment",
    "run",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for: `import flameche` stays light."""
    if name in __all__:
        from flameche import api

        return getattr(api, name)
    raise AttributeError(f"module 'flameche' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the functions too, which are imported when they are first asked for."""
    return sorted({*globals(), *__all__})
