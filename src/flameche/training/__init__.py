"""Local training: one interface, the plain loop behind it."""

from flameche.training.models import Models, average
from flameche.training.trainer import Trainer, TrainingPlan

__all__ = ["Models", "Trainer", "TrainingPlan", "average"]
