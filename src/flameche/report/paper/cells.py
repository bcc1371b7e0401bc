"""Stored runs in the cells of a table: by set, setting and row, each with one value a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from flameche.experiments.paper import Choice, Entry, Planned
from flameche.experiments.paper.sets import SETS
from flameche.experiments.stored import Line, Stored, made
from flameche.report.formats import Cell
from flameche.report.tables import mean_cell

NOT_RUN = "not run"
ONE_SEED = " (1 seed)"
ORACLE = "oracle"  # the row that is no method: it is told the groups
Pick = Callable[[Line], float | None]


@dataclass(frozen=True)
class Sheet:
    """The runs of a table that are stored, in the order of the plan."""

    entry: Entry
    choice: Choice
    planned: tuple[Planned, ...]
    lines: tuple[Line | None, ...]

    @classmethod
    def of(cls, entry: Entry, choice: Choice, stored: Stored) -> Sheet:
        """Look every run up."""
        planned = tuple(entry.plan(choice))
        return cls(entry, choice, planned, tuple(stored.find(run) for run in planned))

    @property
    def datasets(self) -> list[str]:
        """The sets of the table, in its order; those of which nothing was run come last."""
        own = {run.dataset for run in self.planned}
        there = {run.dataset for run, line in zip(self.planned, self.lines, strict=True) if line is not None}
        return sorted((name for name in SETS if name in own), key=lambda name: name not in there)

    @property
    def settings(self) -> list[str]:
        """The settings of the table, in its order."""
        return list(dict.fromkeys(run.setting for run in self.planned))

    @property
    def rows(self) -> list[str]:
        """The rows that any run belongs to."""
        return self.rows_of(None)

    def rows_of(self, setting: str | None) -> list[str]:
        """The rows that any run of a setting belongs to; None: of any."""
        own = {run.row for run in self.planned if setting in (None, run.setting)}
        return [name for name in self.entry.rows or () if name in own]

    @property
    def counted(self) -> tuple[int, int]:
        """How many runs are there, and how many are wanted."""
        there = {
            (run.hash, run.seed): line is not None
            for run, line in self._each_once()
            if line is not None or not run.gone
        }
        return sum(there.values()), len(there)

    def _each_once(self) -> Iterable[tuple[Planned, Line | None]]:
        """A clustering is part of the same run with training, which comes last and so counts."""
        pairs = zip(self.planned, self.lines, strict=True)
        return sorted(pairs, key=lambda pair: pair[0].training)

    def title(self, row: str) -> str:
        """A row's title."""
        return (self.entry.rows or {})[row].title

    def column(self, dataset: str, setting: str = "") -> str:
        """A set's heading, with a setting if given; says so where nothing could be run, or one seed."""
        about = SETS[dataset]
        lacks = dataset == "tissuemnist" and not self.get(dataset)
        stands = f", for {SETS[about.stands_for].title}" if about.stands_for else ""
        single = ONE_SEED if self.single(dataset) else ""
        setting = f" {setting}" if setting else ""
        return f"{about.title} (no data)" if lacks else f"{about.title}{stands}{setting}{single}"

    def single(self, dataset: str) -> bool:
        """Tell whether all that was run of a set is of one seed, which its heading then says."""
        return len({line["seed"] for line in self.get(dataset)}) == 1

    def get(
        self, dataset: str | None = None, row: str | None = None, setting: str | None = None
    ) -> list[Line]:
        """Give the stored lines of a cell."""
        return [
            line
            for run, line in zip(self.planned, self.lines, strict=True)
            if line is not None
            and dataset in (None, run.dataset)
            and row in (None, run.row)
            and setting in (None, run.setting)
        ]

    def wants(self, dataset: str, row: str, setting: str | None = None) -> bool:
        """Tell whether the table has such a cell; a row may be of some sets or settings only."""
        return any(
            (run.dataset, run.row) == (dataset, row) and setting in (None, run.setting)
            for run in self.planned
        )

    def lacking(self, dataset: str, row: str) -> list[str]:
        """The settings of a row in which nothing was run."""
        wanted = dict.fromkeys(r.setting for r in self.planned if (r.dataset, r.row) == (dataset, row))
        return [setting for setting in wanted if not self.get(dataset, row, setting)]

    def sizes(self, pooled: bool) -> str:
        """Say of how many runs cells are, where it is not the same for all; else nothing."""
        counts = {
            len(lines)
            for row in self.rows
            for dataset in self.datasets
            for setting in ((None,) if pooled else self.settings)
            if (lines := self.get(dataset, row, setting))
        }
        return f"Cells are of {min(counts)} to {max(counts)} runs (see the CSV)." if len(counts) > 1 else ""

    def scale(self) -> str:
        """Say how many clients, groups, rounds and participants there are, set by set where they differ."""
        told: dict[str, dict[str, None]] = {}
        for run in self.planned:
            how = run.experiment
            counts = ((how.data.clients, "client"), (how.data.group_count, "group"), (how.rounds, "round"))
            clients, groups, rounds = (f"{n} {what}{'s' * (n != 1)}" for n, what in counts)
            share = f"{100 * how.participation:.3g}% of the clients in each"
            told.setdefault(f"{clients} in {groups}, {rounds}, {share}", {})[SETS[run.dataset].title] = None
        if len(told) == 1:
            return f"{next(iter(told))}."
        return "; ".join(f"{', '.join(sets)}: {text}" for text, sets in told.items()) + "." * bool(told)

    def made(self) -> str:
        """Say on which devices the runs were made, and for how many versions and commit are known."""
        return made({id(line): line for line in self.lines if line is not None}.values())

    def notes(self) -> list[str]:
        """What a reader must know of the sets that are shown."""
        told = [SETS[name].note for name in self.datasets if SETS[name].note]
        if "tissuemnist" in self.datasets and self.get("tissuemnist"):
            told = [note for note in told if not note.startswith("TissueMNIST")]
        return told


def values(lines: Iterable[Line], pick: Pick) -> list[float]:
    """One number a seed; NaN where a run has none."""
    return [math.nan if (value := pick(line)) is None else float(value) for line in lines]


def known(lines: Iterable[Line], pick: Pick) -> list[float]:
    """The numbers of the seeds that have one."""
    return [value for value in values(lines, pick) if not math.isnan(value)]


def mean(lines: Sequence[Line], pick: Pick) -> float | None:
    """The mean over the seeds that have the value; None if none has."""
    found = known(lines, pick)
    return math.fsum(found) / len(found) if found else None


def cell(
    lines: Sequence[Line], pick: Pick, digits: int = 2, *, bold: bool = False, single: bool = False
) -> Cell:
    """Mean ± sd; says so where nothing was run, or one seed (single: a heading says that of all cells)."""
    if not lines:
        return Cell(NOT_RUN)
    made, count = mean_cell(values(lines, pick), digits, bold=bold), seeds(lines, pick)
    told = ONE_SEED if count == 1 and not single else ""
    return replace(made, text=made.text + told, count=count)


def seeds(lines: Sequence[Line], pick: Pick) -> int:
    """Count the seeds that have a value; of several settings, those of the one that has the fewest."""
    found: dict[str | None, set[int]] = {line.get("setting"): set() for line in lines}
    for line, value in zip(lines, values(lines, pick), strict=True):
        if not math.isnan(value):
            found[line.get("setting")].add(line["seed"])
    return min(map(len, found.values()), default=0)


def ari(line: Line) -> float | None:
    """The ARI of the assignments after the last round."""
    return line.get("ari")


def dbi(line: Line) -> float | None:
    """The Davies-Bouldin index."""
    return line.get("dbi")


def percent(line: Line) -> float | None:
    """The accuracy in percent; None where training diverged."""
    return None if line.get("accuracy") is None or line.get("diverged") else 100 * float(line["accuracy"])


def rivals(sheet: Sheet, dataset: str, setting: str | None = None) -> dict[str, float]:
    """The mean accuracy of every row that was run, Oracle's aside."""
    means = {row: mean(sheet.get(dataset, row, setting), percent) for row in sheet.rows if row != ORACLE}
    return {row: value for row, value in means.items() if value is not None}


MEASURES: dict[str, tuple[str, Pick]] = {
    "ari": ("ARI", ari),
    "dbi": ("DBI", dbi),
    "accuracy": ("accuracy %", percent),
}
