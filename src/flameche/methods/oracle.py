"""Oracle: FedAvg inside the true groups, from the first round. The bound that clustering aims at.

Deviations: none; the paper defines it in these words.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from flameche.methods.base import World
from flameche.methods.partitioned import Partitioned


class Oracle(Partitioned):
    """One part per true group."""

    title: ClassVar[str] = "Oracle"
    family: ClassVar[str] = "knows the truth"
    needs: ClassVar[Literal["sums", "terms"]] = "sums"
    uploads: ClassVar[str] = "model"

    def __init__(self, world: World) -> None:
        super().__init__(world, world.truth("the true groups"))
