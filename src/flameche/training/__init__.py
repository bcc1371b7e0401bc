"""Local training: the `Trainer` interface and the trainers behind it."""

from flameche.training.models import Models, average
from flameche.training.trainer import Trainer, TrainingPlan

__all__ = ["Models", "Trainer", "TrainingPlan", "average"]
