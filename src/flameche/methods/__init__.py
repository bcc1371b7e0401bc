"""The methods that are compared, all on the same clients, schedule, model and trainer."""

from flameche.methods.registry import METHODS, make_method

__all__ = ["METHODS", "make_method"]
