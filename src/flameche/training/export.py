"""Writes one of several models as torch's own state_dict, for use outside flameche."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from flameche.errors import StoreError
from flameche.training.models import Models, write_module


def save_state(module: nn.Module, models: Models, k: int, path: Path) -> None:
    """Write row k of models, laid out as `module` is, whole or not at all."""
    write_module(module, models.params[k], models.buffers[k])
    part = path.with_name(f".{path.name}.part")
    try:
        torch.save({name: value.cpu() for name, value in module.state_dict().items()}, part)
        part.replace(path)
    except (OSError, RuntimeError) as problem:  # torch reports a missing folder as RuntimeError
        part.unlink(missing_ok=True)
        reason = str(problem).splitlines()[0]
        raise StoreError(f"{path} cannot be written: {reason}") from problem
