"""Builds a model by name, or a user's own from `package.module:factory`, and checks that it fits the data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from flameche.errors import ConfigError
from flameche.registry import MODELS

Shape = tuple[int, int, int]
SMALLEST_SIDE = {"lenet5": 12, "small-cnn": 4, "resnet18": 1, "resnet18-small": 1, "resnet18-unpooled": 1}


def choose_kind(shape: Shape) -> str:
    """Return the model for images of this shape, for `model.kind = "auto"`."""
    if min(shape[1:]) < SMALLEST_SIDE["lenet5"]:
        return "small-cnn"
    return "lenet5" if shape[0] == 1 else "resnet18"


def build_model(kind: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Build a model whose initial weights depend only on the seed.

    A user's factory is called as factory(shape, classes) and returns an nn.Module that maps images
    [n Ch H W] to logits [n classes].

    Args:
        kind: a name in `MODELS`, "auto", or "package.module:factory".
        shape: of an image, [Ch H W].
        classes: the number of classes.
        seed: of the initial weights.

    Raises:
        ConfigError: the model is unknown, fails, or does not fit the data.
    """
    if kind == "auto":
        kind = choose_kind(shape)
    if kind in SMALLEST_SIDE and min(shape[1:]) < SMALLEST_SIDE[kind]:
        raise ConfigError(
            f"model.kind = {kind!r} needs images of at least {SMALLEST_SIDE[kind]} pixels a side, "
            f"these have {shape[1]}x{shape[2]}; try 'small-cnn'"
        )
    factory: Callable[[Shape, int], nn.Module] = MODELS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        try:
            model = factory(shape, classes)
            _check(model, kind, shape, classes)
        except ConfigError:
            raise
        except Exception as problem:  # a user's code can raise anything
            reason = (str(problem).splitlines() or [""])[0]
            raise ConfigError(
                f"model.kind = {kind!r} fails on images of shape {shape}: {type(problem).__name__}: {reason}"
            ) from problem
    return model


def _check(model: nn.Module, kind: str, shape: Shape, classes: int) -> None:
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        raise ConfigError(f"model.kind = {kind!r} must return an nn.Module with trainable parameters")
    with torch.no_grad():
        out = model.eval()(torch.zeros(2, *shape))
    if tuple(out.shape) != (2, classes):
        raise ConfigError(
            f"model.kind = {kind!r} must return logits [n, {classes}], it returned {list(out.shape)}"
        )
    model.train()
