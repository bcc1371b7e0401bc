"""Local training: one interface; behind it the plain loop, and all clients at once."""

from flameche.training.models import Models, average
from flameche.training.trainer import Trainer, TrainingPlan

__all__ = ["Models", "Trainer", "TrainingPlan", "average"]
