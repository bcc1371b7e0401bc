"""Event files for TensorBoard, one number at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flameche.errors import ConfigError


class Board:
    """Writes numbers by round, for TensorBoard to draw."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise ConfigError("tensorboard = true needs its package: pip install tensorboard") from problem
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write a round's numbers; those that are not there are left out."""
        for name, value in numbers.items():
            if value == value:
                self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self) -> None:
        """Write the end."""
        self._writer.close()
