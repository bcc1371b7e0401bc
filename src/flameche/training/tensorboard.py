"""Writes numbers to TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flameche.errors import ConfigError


class Board:
    """Writes numbers per round for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise ConfigError("tensorboard = true needs its package: pip install tensorboard") from problem
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write a round's numbers; NaN is skipped."""
        for name, value in numbers.items():
            if value == value:
                self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
