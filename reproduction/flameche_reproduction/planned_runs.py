"""The runs that a table or figure of the paper needs, and the selection of them that a user wants."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from flameche.errors import BadInput
from flameche.experiments.config import Experiment, config_hash, parse_experiment
from flameche.experiments.error_messages import did_you_mean
from flameche.experiments.run_folder import run_path
from flameche_reproduction.image_sets import PAPER_SETS, SETS, SETTINGS, base_config

FORMER_DEFAULT = "method.mode=robust"  # the former default mode: removed, but its stored runs are still shown


@dataclass(frozen=True)
class PlannedRun:
    """One run: a set's base configuration with overrides and a seed; with training, or clustering alone."""

    dataset: str
    setting: str
    row: str
    seed: int
    overrides: tuple[str, ...]
    training: bool = True

    @property
    def experiment(self) -> Experiment:
        """The experiment with all overrides applied."""
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
        """The run's name in progress output."""
        return f"{self.dataset} {self.setting} · {self.row} · seed {self.seed}"

    @property
    def retired(self) -> bool:
        """Whether the run uses a mode that was removed: it may be stored, but cannot be run again."""
        return FORMER_DEFAULT in self.overrides

    def folder(self, runs: Path) -> Path:
        """Return the path of its run folder."""
        return run_path(runs, self.experiment.name, self.hash, self.seed)


@lru_cache(maxsize=10_000)
def _parsed(dataset: str, overrides: tuple[str, ...]) -> tuple[Experiment, str]:
    words = ["method.mode=sketch" if word == FORMER_DEFAULT else word for word in overrides]
    experiment = parse_experiment(base_config(dataset), words, source=dataset)
    return experiment, config_hash(
        experiment, FORMER_DEFAULT.rpartition("=")[2] if FORMER_DEFAULT in overrides else None
    )


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its title, the overrides of its runs, and whether models are trained.

    `seeds`, `settings` and `datasets` are given where they differ from the table's.
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
class Selection:
    """Which of a table's runs are wanted; empty means all. `changes` are overrides for every run."""

    datasets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()

    def check(self, rows: Iterable[str]) -> None:
        """Raise BadInput for names that no set, setting or row has."""
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
    """Parse seeds: `0..4`, `0,2`, `3`, or several of these."""
    seeds: list[int] = []
    for word in (part for text in words for part in text.split(",")):
        found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", word.strip())
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise BadInput(f"--seeds {word}: expected numbers such as 0, or a range such as 0..4")
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(dict.fromkeys(seeds))


def parse_shard(text: str) -> tuple[int, int]:
    """Parse a shard: `1/4` is the second of four."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise BadInput(f"--shard {text}: expected i/n with i from 0 to n - 1, as in 0/4")
    return int(found[1]), int(found[2])


@dataclass(frozen=True)
class CatalogueEntry:
    """A table or figure: its title, its number in the paper, and the runs it is made of.

    `keep`: the file in results/ that keeps its runs. `command`: the benchmark that measures it, if it is not
    made of runs. `beside`: the paper's table whose values are shown beside ours, if it has another name.
    """

    name: str
    kind: Literal["table", "figure"]
    title: str
    where: str
    hardware: str
    keep: str = ""
    rows: Mapping[str, TableRow] | None = None
    datasets: tuple[str, ...] = PAPER_SETS
    settings: tuple[str, ...] = tuple(SETTINGS)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    command: str = ""
    file: str = ""  # of results/, that the command writes
    beside: str = ""

    def plan(self, choice: Selection | None = None) -> list[PlannedRun]:
        """List the runs, ordered by seed."""
        choice = choice or Selection()
        rows = self.rows or {}
        own = {*self.seeds, *(seed for row in rows.values() for seed in row.seeds or ())}
        seeds = choice.seeds or tuple(sorted(own))
        every = itertools.product(
            seeds, self.select(choice.datasets, "datasets"), self.select(choice.settings, "settings"), rows
        )
        planned = []
        for seed, dataset, setting, name in every:
            row = rows[name]
            if row.settings is not None and setting not in row.settings:
                continue
            if row.datasets is not None and dataset not in (*row.datasets, "digits"):
                continue
            if not choice.seeds and seed not in (row.seeds if row.seeds is not None else self.seeds):
                continue
            if choice.methods and name not in choice.methods and row.method not in choice.methods:
                continue
            words = (f"data.heterogeneity={setting}", *row.overrides, *choice.changes)
            planned.append(PlannedRun(dataset, setting, name, seed, words, row.training))
        return planned

    def is_changed(self, choice: Selection) -> bool:
        """Whether the selection's changes make any run differ from the paper's."""
        own = self.plan(replace(choice, changes=()))
        return any(run.hash != was.hash for run, was in zip(self.plan(choice), own, strict=True))

    @property
    def row_names(self) -> set[str]:
        """Names by which rows can be chosen: their own, and those of methods."""
        return {*(self.rows or ()), *(row.method for row in (self.rows or {}).values())}

    def select(self, wanted: Sequence[str], what: Literal["datasets", "settings"]) -> tuple[str, ...]:
        """Return the selected sets or settings in this table's order; digits may always be selected."""
        own: tuple[str, ...] = getattr(self, what)
        if not wanted:
            return own
        return tuple(name for name in (*own, "digits") if name in wanted)
