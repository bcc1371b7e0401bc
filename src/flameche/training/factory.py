"""Creates the fastest trainer that supports the model and plan; the plain loop supports everything."""

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
    """Create a trainer: on CUDA stacked layers, else torch.vmap, else the loop; on a CPU the process pool.

    Args:
        wanted: the trainer, or "auto".
        model: the model to train.
        federation: the clients' data.
        plan: epochs, batch size and optimiser.
        seed: seeds initial weights and the order of samples.
        device: "cpu" or "cuda".
        precision: rounding of matrix products on CUDA, TF32 by default; bfloat16 only with stacked layers.
        memory: GiB that stacked layers may use; 0 for what is free.
        workers: processes of a pool; 0 for all cores.
        options: passed to the trainer.

    Raises:
        ConfigError: the trainer asked for does not support the device or the model.
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
                pass  # torch.vmap may support it
    if wanted == "vectorised" or (wanted == "auto" and device == "cuda"):
        if supports_vmap(model, federation.shape):
            return VectorisedTrainer(*given, device=device, **options)
        if wanted == "vectorised":
            raise ConfigError(
                'training.trainer = "vectorised": this model cannot be stacked (dropout, randomness or '
                'branches on data); take "loop"'
            )
    return LoopTrainer(*given, device=device, **options)
