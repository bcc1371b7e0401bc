"""Callbacks: code of others that follows a run, as a logger does. They change nothing of its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flameche.experiments.schema import Experiment
from flameche.registry import CALLBACKS


class Callback:
    """What may be done in the course of a run; subclasses override what they need.

    `callbacks = ["package.module:Class"]` in an experiment makes one of each for every run.

    Example:
        >>> from flameche.experiments.callbacks import Callback
        >>> class Accuracies(Callback):
        ...     def on_round(self, record):
        ...         print(record["round"], record["accuracy"])
        >>> Accuracies().on_round({"round": 1, "accuracy": 0.5})
        1 0.5
    """

    def on_start(self, experiment: Experiment, seed: int, folder: Path) -> None:
        """Begin: the run's config and seed, and the folder that holds its files."""

    def on_round(self, record: dict[str, Any]) -> None:
        """Take in the record of a round, as in `rounds.jsonl`; a resumed run tells earlier rounds again."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """Take in the summary of the finished run, as in `summary.json`."""


def make_callbacks(names: Sequence[str]) -> list[Callback]:
    """Make the callbacks that an experiment names."""
    return [CALLBACKS[name]() for name in names]
