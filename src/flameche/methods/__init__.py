"""The methods that are compared, all on the same clients, schedule, model and trainer."""

from flameche.methods.registry import METHODS

__all__ = ["METHODS"]
