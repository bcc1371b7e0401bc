"""Methods of federated learning, side by side in the same world."""

from __future__ import annotations

from flameche.methods.base import Method, MethodOptions, World
from flameche.registry import METHODS

__all__ = ["METHODS", "make_method"]


def make_method(options: MethodOptions, world: World) -> Method:
    """Build the method that an experiment's [method] table describes."""
    return options.make(METHODS[options.kind], world)
