"""Runs that a table or figure needs, each by its set, setting, row and seed; and which of them are wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flameche.errors import BadInput
from flameche.experiments.config import Experiment, config_hash, parse_experiment
from flameche.experiments.paper.sets import SETS, SETTINGS, description
from flameche.experiments.store import run_path
from flameche.experiments.wording import did_you_mean

FORMER = "method.mode=robust"  # the default mode before `sketch`; it is gone, its stored runs are shown


@dataclass(frozen=True)
class Planned:
    """One run: a set's description under overrides, with a seed; trained, or clustered only."""

    dataset: str
    setting: str
    row: str
    seed: int
    overrides: tuple[str, ...]
    training: bool = True

    @property
    def experiment(self) -> Experiment:
        """The experiment in full."""
        return _parsed(self.dataset, self.overrides)[0]

    @property
    def hash(self) -> str:
        """The hash of its config, by which stored runs are found."""
        return _parsed(self.dataset, self.overrides)[1]

    @property
    def method(self) -> str:
        """The kind of its method."""
        return self.experiment.method.kind

    @property
    def label(self) -> str:
        """Name it in a line of progress."""
        return f"{self.dataset} {self.setting} · {self.row} · seed {self.seed}"

    @property
    def gone(self) -> bool:
        """Tell whether it is of a mode that is gone: it may be stored, but cannot be played."""
        return FORMER in self.overrides

    def folder(self, runs: Path) -> Path:
        """Tell where its run folder lies."""
        return run_path(runs, self.experiment.name, self.hash, self.seed)


@lru_cache(maxsize=10_000)
def _parsed(dataset: str, overrides: tuple[str, ...]) -> tuple[Experiment, str]:
    words = ["method.mode=sketch" if word == FORMER else word for word in overrides]
    experiment = parse_experiment(description(dataset), words, source=dataset)
    return experiment, config_hash(experiment, FORMER.rpartition("=")[2] if FORMER in overrides else None)


@dataclass(frozen=True)
class Row:
    """A row of a table: its title, what makes its runs, and whether they are trained.

    `seeds`, `settings` and `datasets`: where they are not the table's own.
    """

    title: str
    overrides: tuple[str, ...]
    training: bool = True
    seeds: tuple[int, ...] | None = None
    settings: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None

    @property
    def method(self) -> str:
        """The kind of its method."""
        words = (word.partition("=") for word in self.overrides)
        return next((value for key, _, value in words if key == "method.kind"), "flameche")


@dataclass(frozen=True)
class Choice:
    """What the user wants of a table's runs; empty means all. `changes` are laid over every run."""

    datasets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()

    def check(self, rows: Iterable[str]) -> None:
        """Refuse names that nothing has."""
        for what, given, known in (
            ("--datasets", self.datasets, list(SETS)),
            ("--settings", self.settings, list(SETTINGS)),
            ("--methods", self.methods, sorted({*rows})),
        ):
            for name in given:
                if name not in known:
                    near = did_you_mean(name, known) or f"; known are {', '.join(known)}"
                    raise BadInput(f"{what} {name}: no such name{near}")


def parse_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Read seeds: `0..4`, `0,2`, `3`, or several of these."""
    seeds: list[int] = []
    for word in (part for text in words for part in text.split(",")):
        found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", word.strip())
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise BadInput(f"--seeds {word}: expected numbers such as 0, or a range such as 0..4")
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(dict.fromkeys(seeds))


def parse_shard(text: str) -> tuple[int, int]:
    """Read `1/4` as the second of four parts."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise BadInput(f"--shard {text}: expected i/n with i from 0 to n - 1, as in 0/4")
    return int(found[1]), int(found[2])
