"""Chooses the trainer: the fastest that can do what is asked, down to the plain loop, which can do all."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from flameche.data.federation import Federation
from flameche.errors import ConfigError
from flameche.training.kernels.cuda_graphs import Precision
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.kernels.weight_layout import UnsupportedModel
from flameche.training.loop import LoopTrainer
from flameche.training.pool import PoolTrainer
from flameche.training.trainer import Trainer, TrainingPlan
from flameche.training.vectorised import VectorisedTrainer, supports_vmap

Wanted = Literal["auto", "loop", "pool", "vectorised"]


def make_trainer(
    wanted: Wanted,
    model: nn.Module,
    federation: Federation,
    plan: TrainingPlan,
    seed: int,
    *,
    device: str = "cpu",
    precision: Precision | Literal["auto"] = "auto",
    memory: float = 0.0,
    workers: int = 0,
    **options: Any,
) -> Trainer:
    """Make a trainer: on CUDA stacked layers, else torch.vmap, else the loop; on a CPU the pool.

    precision: how products round on CUDA, by default TF32; bfloat16 only where layers are stacked. memory:
    GiB that stacked layers may take there, 0 for what is free. workers: processes of a pool, 0 for all cores.
    """
    given = (model, federation, plan, seed)
    if wanted == "pool" and device != "cpu":
        raise ConfigError(f'training.trainer = "pool" trains on the CPU, not on {device}; add --device cpu')
    if device == "cpu" and wanted in ("auto", "pool"):
        return PoolTrainer(*given, workers=workers, **options)
    if device == "cuda":
        rounding: Precision = "tf32" if precision == "auto" else precision
        torch.backends.cudnn.allow_tf32 = rounding != "fp32"  # for the other trainers' convolutions
        if wanted != "loop":
            try:
                return StackedTrainer(
                    *given, device=device, precision=rounding, budget_gib=memory or None, **options
                )
            except UnsupportedModel:
                pass  # torch.vmap may know it
    if wanted == "vectorised" or (wanted == "auto" and device == "cuda"):
        if supports_vmap(model, federation.shape):
            return VectorisedTrainer(*given, device=device, **options)
        if wanted == "vectorised":
            raise ConfigError(
                'training.trainer = "vectorised": this model cannot be stacked (dropout, randomness or '
                'branches on data); take "loop"'
            )
    return LoopTrainer(*given, device=device, **options)
