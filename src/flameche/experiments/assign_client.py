"""Assigns a new client to a finished run: its cluster, the accuracy of all models on its data, its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.data import Federation, Samples
from flameche.data.formats import check_client, read_client
from flameche.errors import StoreError
from flameche.experiments.extraction import shared_model
from flameche.experiments.newcomers import Arrays, Finished, advice, assign_client
from flameche.training.export import check_form, save_model
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models
from flameche.training.trainer import TrainingPlan

Pair = tuple[NDArray[Any], NDArray[Any]]  # x and y


def assign_new_client(
    run: Path, data: Path | Pair, *, client: str | None = None, model: Path | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """Assign a client to its cluster in a finished run; write that cluster's model to a file if asked to."""
    if model is not None:
        check_form(model)
    finished = Finished.read(run)
    if isinstance(data, Path):
        x, y = read_client(data, finished.shape, finished.classes)
    else:
        x, y = check_client("data", *data, finished.shape, finished.classes)
    kept = finished.models()
    if model is not None and kept is None:
        raise StoreError(
            f"{run}: no models.npz, so there is no model to write to {model}: {finished.without_models}"
        )
    found = assign_client(finished, x, y, device)
    name = client or (data.stem if isinstance(data, Path) else "client")
    found = {"client": name, **found, "accuracy": None, "model": None, "notes": advice(found)}
    if found["missing_classes"]:
        found["notes"].append(f"no samples of class {', '.join(map(str, found['missing_classes']))}")
    if kept is None:
        found["notes"].append(f"no models.npz: {finished.without_models}")
        return found
    trainer, models = _opened(finished, kept, x, y, device)
    every = np.arange(len(models))
    accuracy = trainer.judge(models, every, np.zeros_like(every), "train")[1].tolist()
    usable = [
        bool(np.isfinite(kept["params"][k]).all() and np.isfinite(kept["buffers"][k]).all()) for k in every
    ]
    found["accuracy"] = [a if fine else None for a, fine in zip(accuracy, usable, strict=True)]
    if model is not None and not usable[found["cluster"]]:
        raise StoreError(
            f"{run}: training diverged, so that the model of cluster {found['cluster']} has NaN or infinite "
            f"weights; {model} is not written; lower training.lr and run it again"
        )
    if not all(usable):
        found["notes"].append("training diverged: models have NaN or infinite weights; lower training.lr")
    if finished.experiment.training.bn_buffers == "local" and models.buffers.shape[1]:
        found["notes"].append("BatchNorm's statistics were the clients' own (bn_buffers): train before use")
    if model is not None:
        save_model(trainer, models, found["cluster"], model, finished.experiment.model.kind)
        found["model"] = str(model)
    return found


def _opened(
    run: Finished, kept: Arrays, x: NDArray[np.uint8], y: NDArray[np.int64], device: str
) -> tuple[LoopTrainer, Models]:
    """Read the run's models into a trainer whose only client is the newcomer."""
    own, nothing = Samples(x, y, np.array([0, len(y)])), Samples(x[:0], y[:0], np.array([0, 0]))
    alone = np.zeros(1, np.int64)
    federation = Federation("newcomer", "", run.classes, own, nothing, nothing, alone, alone)
    module = shared_model(run.experiment.model, run.shape, run.classes, run.seed)
    trainer = LoopTrainer(module, federation, TrainingPlan(), run.seed, device=device)
    blank = trainer.initial()
    models = blank.from_arrays(kept)
    if (
        models.params.shape[1:] != blank.params.shape[1:]
        or models.buffers.shape[1:] != blank.buffers.shape[1:]
    ):
        raise StoreError(
            f'{run.path}: models.npz does not fit model.kind = "{run.experiment.model.kind}" as it is now'
        )
    return trainer, models
