"""Builds a model by name, or a user's own from `package.module:factory`, and checks that it fits the data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from flameche.errors import ConfigError
from flameche.models.lenet import LeNet5
from flameche.models.resnet import ResNet18
from flameche.models.small import SmallCNN

Shape = tuple[int, int, int]
MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet5": LeNet5,
    "resnet18": ResNet18,
    "resnet18-small": partial(ResNet18, stem="small"),
    "resnet18-unpooled": partial(ResNet18, stem="unpooled"),
    "small-cnn": SmallCNN,
}
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
    factory = MODELS.get(kind) or _user_factory(kind)
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


def _user_factory(kind: str) -> Callable[[Shape, int], nn.Module]:
    module_name, _, name = kind.partition(":")
    if not name:
        raise ConfigError(
            f"model.kind = {kind!r}: expected one of {', '.join(MODELS)}, 'auto', or 'package.module:factory'"
        )
    here = str(Path.cwd())
    added = here not in sys.path
    if added:  # an installed command does not search the current folder
        sys.path.insert(0, here)
    try:
        factory: Callable[[Shape, int], nn.Module] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"model.kind = {kind!r} cannot be imported: {problem}; modules are looked for in the current "
            "folder and among installed packages"
        ) from problem
    finally:
        if added:
            sys.path.remove(here)
    return factory


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
