"""The trainer that does nothing: clustering alone, with models of no parameters."""

from __future__ import annotations

import numpy as np
import torch

from flameche.training.models import Models
from flameche.training.trainer import Arrays, Floats, Ints, Part, Pull, Sgd, TrainingPlan


class NoTrainer:
    """Stands in where only the clustering half is wanted."""

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        self.plan = TrainingPlan(epochs=0)

    def initial(self, number: int = 0) -> Models:
        """Give one model of no parameters."""
        return Models(torch.empty(1, 0), torch.empty(1, 0))

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Return as many empty models as clients."""
        return models.pick(pick)

    def judge(self, models: Models, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Know nothing about losses."""
        return np.full(len(pick), np.nan), np.full(len(pick), np.nan)

    def layer(self, name: str) -> slice:
        """Have no layers."""
        return slice(0, 0)

    def accuracy(self, models: Models, pick: Ints) -> Floats:
        """Know nothing about accuracy."""
        return np.full(len(pick), np.nan)

    def state(self) -> Arrays:
        """Have nothing to keep."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Have nothing to take back."""

    def close(self) -> None:
        """Have nothing to give back."""
