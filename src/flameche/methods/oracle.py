"""Oracle: FedAvg inside the true groups, from the first round. The bound that clustering aims at.

Deviations: none; the paper defines it in these words.
"""

from __future__ import annotations

from typing import ClassVar

from flameche.methods.base import About, Ints, MethodOptions, World
from flameche.methods.partitioned import Partitioned


class OracleOptions(MethodOptions):
    """Oracle has none."""

    kind: str = "oracle"


class Oracle(Partitioned):
    """One part per true group."""

    Options: ClassVar[type[MethodOptions]] = OracleOptions
    about: ClassVar[About] = About("Oracle", "–", "sums", "model")

    def __init__(self, world: World) -> None:
        super().__init__(world, world.truth("the true groups"))

    def round(self, r: int, participants: Ints) -> bool:
        """Train and average in the groups as they are now: data may drift."""
        self.assignment = self.world.group
        return super().round(r, participants)
