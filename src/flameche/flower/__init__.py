"""Clustered federated learning on Flower: a strategy, two ready apps, and deployments on one machine.

from flameche.flower import Flameche     # the strategy
flameche.flower.server_app:app           # for an app's pyproject.toml
flameche.flower.client_app:app
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flameche.flower.strategy import Flameche

__all__ = ["Flameche"]


def __getattr__(name: str) -> Any:
    """Import the strategy when it is first used: nodes, which never use it, start a process per message."""
    if name == "Flameche":
        from flameche.flower.strategy import Flameche

        return Flameche
    raise AttributeError(f"module 'flameche.flower' has no attribute {name!r}")
