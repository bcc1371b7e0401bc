"""FedAvg: one model for everybody.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Deviations: models are averaged unweighted by default, as in the FLAMECHE paper's Algorithm 1;
`training.weighting = "samples"` is FedAvg as published.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flameche.methods.base import About, MethodOptions, World
from flameche.methods.partitioned import Partitioned


class FedAvgOptions(MethodOptions):
    """FedAvg has none."""

    kind: str = "fedavg"


class FedAvg(Partitioned):
    """One part that holds everybody."""

    Options: ClassVar[type[MethodOptions]] = FedAvgOptions
    about: ClassVar[About] = About("FedAvg", "–", "sums", "model")

    def __init__(self, world: World) -> None:
        super().__init__(world, np.zeros(world.clients, np.int64))
