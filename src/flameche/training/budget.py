"""How much memory training may take, and how many clients that lets train at once."""

from __future__ import annotations

import torch

from flameche.training.layers import Product
from flameche.training.program import Program

SHARE = 0.6  # of what is free on a GPU
ON_CPU = 2 * 2**30
GIB = 2**30


def memory_budget(device: str, wanted_gib: float | None = None) -> int:
    """Give the bytes that training may take: as asked, or by default a share of what the device has free."""
    if wanted_gib is not None:
        return int(wanted_gib * GIB)
    if device == "cuda":
        return int(SHARE * torch.cuda.mem_get_info()[0])
    return ON_CPU


def client_bytes(program: Program, flat: int, batch: int, wide: int, narrow: int, plain: bool = True) -> int:
    """Estimate the bytes of one client in training: weights, moments, gradients, values of a batch.

    flat: numbers of a model as it travels, before and after; wide and narrow: bytes of a number of weights
    and of values; plain: patches of all convolutions are laid out.
    """
    layout = program.weights
    models = 2 * flat + layout.total + 2 * layout.trained + program.stats.total
    low = layout.trained + (layout.total if narrow != wide else 0)
    spread = sum(_spread(step.layer) for step in program.steps)
    return wide * models + narrow * (low + spread + batch * program.floats(plain))


def _spread(layer: object) -> int:
    """Count the numbers of matrices that are built anew at every step, and of their gradients."""
    if not isinstance(layer, Product) or layer.lower != "spread":
        return 0
    return 2 * layer.window.form.floats * layer.form.floats


def fit(budget: int, each: int, clients: int) -> int:
    """Choose how many of the clients train at once: as few equal parts as the budget allows."""
    most = max(1, budget // each)
    parts = -(-clients // most)
    return -(-clients // parts)
