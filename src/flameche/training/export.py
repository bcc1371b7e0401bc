"""Saves one of several models for use in plain PyTorch, with the preprocessing of its input.

FILE.pt2  a torch.export program from bytes [n Ch H W] to logits; needs neither flameche nor the model's code
FILE.pt   a dict for torch.load(weights_only=True): state_dict, preprocessing, shape, classes, model
"""

from __future__ import annotations

import copy
import io
from pathlib import Path

import torch
from torch import Tensor, nn

from flameche.errors import BadInput, StoreError
from flameche.models.build import choose_kind
from flameche.models.features import DIVIDE_BY, SUBTRACT, to_input
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models, write_module

PROGRAM, WEIGHTS = ".pt2", ".pt"


def check_form(path: Path) -> None:
    """Refuse a file name whose end does not say in which form a model is to be written."""
    if path.suffix not in (PROGRAM, WEIGHTS):
        raise BadInput(
            f'{path}: a model is written as FILE{PROGRAM} (runs anywhere) or FILE{WEIGHTS} (weights), not "'
            f'{path.suffix}"'
        )


class FromBytes(nn.Module):
    """A network preceded by the scaling of bytes to its input."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Map images as bytes [n Ch H W] to logits [n classes]."""
        logits: Tensor = self.network(to_input(images))
        return logits


def save_model(trainer: LoopTrainer, models: Models, k: int, path: Path, kind: str) -> None:
    """Write row k of a trainer's models atomically; the file's suffix decides the format.

    `kind` is `model.kind`, stored as the model's name.
    """
    write_module(trainer.model, models.params[k], models.buffers[k])
    network = copy.deepcopy(trainer.model).cpu().eval()
    raw = _program(network, trainer.shape, path, kind) if path.suffix == PROGRAM else None
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(_weights(network, trainer, kind) if raw is None else raw)
        part.replace(path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def _weights(network: nn.Module, trainer: LoopTrainer, kind: str) -> bytes:
    told = {
        "state_dict": dict(network.state_dict()),
        "preprocessing": {"layout": "n c h w", "divide_by": DIVIDE_BY, "subtract": SUBTRACT},
        "shape": list(trainer.shape),
        "classes": trainer.classes,
        "model": choose_kind(trainer.shape) if kind == "auto" else kind,
    }
    raw = io.BytesIO()
    torch.save(told, raw)
    return raw.getvalue()


def _program(network: nn.Module, shape: tuple[int, int, int], path: Path, kind: str) -> bytes:
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    raw = io.BytesIO()
    try:
        with torch.no_grad():
            program = torch.export.export(
                FromBytes(network), (example,), dynamic_shapes={"images": {0: torch.export.Dim("n", min=1)}}
            )
        torch.export.save(program, raw)
    except Exception as problem:  # a user's model can raise anything
        raise StoreError(
            f'{path} cannot be written: torch.export does not take model.kind = "{kind}" '
            f"({type(problem).__name__}); {path.with_suffix('.pt')} would hold its weights"
        ) from problem
    return raw.getvalue()
