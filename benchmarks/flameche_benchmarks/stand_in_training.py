"""A federation and a trainer that stand in for real ones where only a method's own cost is measured.

Images are planted in groups, so that every method has something to find. Training is replaced by a step in
the direction of a client's group, with some noise: cheap, and as different between groups as real updates.
Everything else (forward passes, metadata, similarities, sums) is the real thing on a real LeNet-5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flameche.data.federation import Federation, Samples
from flameche.models.build import build_model
from flameche.rng import stream
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models
from flameche.training.trainer import Pull, Sgd, TrainingPlan

Ints = NDArray[np.int64]
SHAPE, CLASSES, PER_CLASS = (1, 28, 28), 10, 4
STEP, NOISE, BANK = 1e-3, 0.5, 64  # noise vectors are drawn once and taken in turn


def planted_federation(clients: int, groups: int, seed: int = 0) -> Federation:
    """Give clients in contiguous groups, whose images are their group's prototypes and noise."""
    rng = stream(seed, "overhead", "images")
    group = np.arange(clients) * groups // clients
    prototypes = rng.integers(0, 256, (groups, CLASSES, *SHAPE))
    labels = np.tile(np.repeat(np.arange(CLASSES), PER_CLASS), clients)
    noise = rng.integers(-40, 41, (len(labels), *SHAPE))
    images = np.clip(prototypes[np.repeat(group, CLASSES * PER_CLASS), labels] + noise, 0, 255)
    offsets = np.arange(clients + 1) * CLASSES * PER_CLASS
    train = Samples(images.astype(np.uint8), labels, offsets)
    nothing = Samples(train.x[:0], train.y[:0], 0 * offsets)
    test = Samples(train.x[:CLASSES], train.y[:CLASSES], np.array([0, CLASSES]))
    return Federation("planted", "none", CLASSES, train, nothing, test, 0 * group, group)


class StandInTrainer(LoopTrainer):
    """Evaluates models for real, but replaces training by a cheap step; counts the trainings."""

    def __init__(self, federation: Federation, seed: int = 0) -> None:
        super().__init__(
            build_model("lenet5", SHAPE, CLASSES, seed),
            federation,
            TrainingPlan(),
            seed,
            fresh=lambda number: build_model("lenet5", SHAPE, CLASSES, seed + number),
        )
        self.trainings = 0
        self._group = federation.group
        rng, size = stream(seed, "overhead", "updates"), len(self._initial[0])
        groups = int(federation.group.max()) + 1
        self._towards = STEP * rng.standard_normal((groups, size), np.float32)
        self._noise = STEP * NOISE * rng.standard_normal((BANK, size), np.float32)

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Move each model towards its client's group."""
        self.trainings += len(clients)
        arrays = models.pick(pick).to_arrays()
        step = self._towards[self._group[clients]] + self._noise[(clients + round) % BANK]
        moved = arrays["params"].astype(np.float32) + step
        return models.from_arrays({"params": moved, "buffers": arrays["buffers"]})
