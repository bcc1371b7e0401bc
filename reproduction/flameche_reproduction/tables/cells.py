"""The cells of a table: stored runs by set, setting and row, beside the values that the paper printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.tables import mean_cell
from flameche_reproduction.image_sets import SETS
from flameche_reproduction.planned_runs import CatalogueEntry, PlannedRun, Selection
from flameche_reproduction.published import published_value
from flameche_reproduction.results_index import ResultLine, ResultsIndex, describe_provenance

NOT_RUN = "not run"
ONE_SEED = " (1 seed)"
ORACLE = "oracle"  # the row that is no method: it is told the groups
Pick = Callable[[ResultLine], float | None]


@dataclass(frozen=True)
class Sheet:
    """The planned runs of a table, with the line of each that is stored."""

    entry: CatalogueEntry
    choice: Selection
    planned: tuple[PlannedRun, ...]
    lines: tuple[ResultLine | None, ...]

    @classmethod
    def of(cls, entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> Sheet:
        """Look up every run of a table."""
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
        """The number of stored runs and of wanted runs."""
        there = {
            (run.hash, run.seed): line is not None
            for run, line in self._each_once()
            if line is not None or not run.retired
        }
        return sum(there.values()), len(there)

    def _each_once(self) -> Iterable[tuple[PlannedRun, ResultLine | None]]:
        """Pair runs with lines, trained runs last: a clustering is part of the same run with training."""
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
        """Whether all stored runs of a set have the same seed, which its heading then says."""
        return len({line["seed"] for line in self.get(dataset)}) == 1

    def get(
        self, dataset: str | None = None, row: str | None = None, setting: str | None = None
    ) -> list[ResultLine]:
        """Return the stored lines of a cell."""
        return [
            line
            for run, line in zip(self.planned, self.lines, strict=True)
            if line is not None
            and dataset in (None, run.dataset)
            and row in (None, run.row)
            and setting in (None, run.setting)
        ]

    def wants(self, dataset: str, row: str, setting: str | None = None) -> bool:
        """Whether the table has this cell; a row may have some sets or settings only."""
        return any(
            (run.dataset, run.row) == (dataset, row) and setting in (None, run.setting)
            for run in self.planned
        )

    def lacking(self, dataset: str, row: str) -> list[str]:
        """The settings of a row in which nothing was run."""
        wanted = dict.fromkeys(r.setting for r in self.planned if (r.dataset, r.row) == (dataset, row))
        return [setting for setting in wanted if not self.get(dataset, row, setting)]

    def sizes(self, pooled: bool) -> str:
        """Write how many runs the cells have, if not all have the same number."""
        counts = {
            len(lines)
            for row in self.rows
            for dataset in self.datasets
            for setting in ((None,) if pooled else self.settings)
            if (lines := self.get(dataset, row, setting))
        }
        return f"Cells are of {min(counts)} to {max(counts)} runs (see the CSV)." if len(counts) > 1 else ""

    def scale(self) -> str:
        """Write the numbers of clients, groups, rounds and participants, for each set if they differ."""
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

    def provenance(self) -> str:
        """Write on which devices the runs were made, and for how many versions and commit are recorded."""
        return describe_provenance({id(line): line for line in self.lines if line is not None}.values())

    def notes(self) -> list[str]:
        """What a reader must know of the sets that are shown."""
        told = [SETS[name].note for name in self.datasets if SETS[name].note]
        if "tissuemnist" in self.datasets and self.get("tissuemnist"):
            told = [note for note in told if not note.startswith("TissueMNIST")]
        return told


def seed_values(lines: Iterable[ResultLine], pick: Pick) -> list[float]:
    """Return one number for each line; NaN where a run has none."""
    return [math.nan if (value := pick(line)) is None else float(value) for line in lines]


def known_values(lines: Iterable[ResultLine], pick: Pick) -> list[float]:
    """Return the numbers of the lines that have one."""
    return [value for value in seed_values(lines, pick) if not math.isnan(value)]


def mean(lines: Sequence[ResultLine], pick: Pick) -> float | None:
    """The mean over the seeds that have the value; None if none has."""
    found = known_values(lines, pick)
    return math.fsum(found) / len(found) if found else None


def cell(
    lines: Sequence[ResultLine], pick: Pick, digits: int = 2, *, bold: bool = False, single: bool = False
) -> Cell:
    """Format mean ± sd, or "not run", or that there is one seed (single: a heading already says so)."""
    if not lines:
        return Cell(NOT_RUN)
    describe_provenance, count = mean_cell(seed_values(lines, pick), digits, bold=bold), seeds(lines, pick)
    told = ONE_SEED if count == 1 and not single else ""
    return replace(describe_provenance, text=describe_provenance.text + told, count=count)


def seeds(lines: Sequence[ResultLine], pick: Pick) -> int:
    """Count the seeds that have a value; with several settings, in the one that has the fewest."""
    found: dict[str | None, set[int]] = {line.get("setting"): set() for line in lines}
    for line, value in zip(lines, seed_values(lines, pick), strict=True):
        if not math.isnan(value):
            found[line.get("setting")].add(line["seed"])
    return min(map(len, found.values()), default=0)


def ari(line: ResultLine) -> float | None:
    """The ARI of the assignments after the last round."""
    return line.get("ari")


def dbi(line: ResultLine) -> float | None:
    """The Davies-Bouldin index."""
    return line.get("dbi")


def percent(line: ResultLine) -> float | None:
    """The accuracy in percent; None where training diverged."""
    return None if line.get("accuracy") is None or line.get("diverged") else 100 * float(line["accuracy"])


def mean_accuracies(sheet: Sheet, dataset: str, setting: str | None = None) -> dict[str, float]:
    """Return the mean accuracy of every row that was run, without Oracle's."""
    means = {row: mean(sheet.get(dataset, row, setting), percent) for row in sheet.rows if row != ORACLE}
    return {row: value for row, value in means.items() if value is not None}


MEASURES: dict[str, tuple[str, Pick]] = {
    "ari": ("ARI", ari),
    "dbi": ("DBI", dbi),
    "accuracy": ("accuracy %", percent),
}


def paper_cell(table: str, dataset: str, setting: str, row: str, measure: str) -> Cell:
    """The paper's value; a dash where it has none."""
    theirs = published_value(table, dataset, setting, row, measure)
    return Cell(ABSENT) if theirs is None else Cell(theirs.text(), theirs.mean, theirs.sd)


def paired_table(
    sheet: Sheet, table: str, measures: Sequence[str], setting: str | None = None, first: str = "Method"
) -> Table:
    """Return rows by sets and measures, ours beside the paper's; pooled over settings if none is given."""
    columns, sets = [Column(first, "row")], sheet.datasets
    for dataset in sets:
        for measure in measures:
            title = sheet.column(dataset) if measure == measures[0] else ""
            named = MEASURES[measure][0] if len(measures) > 1 else ""
            head = ": ".join(part for part in (title, named) if part)
            key = f"{dataset}_{measure}"
            columns.append(Column(head, key, numeric=True, spread=True))
            columns.append(Column("paper", f"{key}_paper", numeric=True, spread=True))
    rows = []
    for row in sheet.rows_of(setting):
        cells = [Cell(sheet.title(row))]
        for dataset in sets:
            if not sheet.wants(dataset, row, setting):
                cells += [Cell(ABSENT)] * (2 * len(measures))
                continue
            for measure in measures:
                lines = sheet.get(dataset, row, setting)
                cells.append(cell(lines, MEASURES[measure][1], single=sheet.single(dataset)))
                cells.append(paper_cell(table, dataset, setting or "all", row, measure))
        rows.append(tuple(cells))
    return Table(tuple(columns), tuple(rows))


def long_table(sheet: Sheet, table: str, measures: Sequence[str], *, pooled: bool = False) -> Table:
    """Return all cells in one long table, for CSV; `table`: the paper's, or empty for the setting's."""
    counted = "runs" if pooled else "seeds"
    columns = (
        *(Column(key, key) for key in ("dataset", "setting", "method")),
        Column(counted, counted, numeric=True),
        *(
            Column(f"{key}{end}", f"{key}{end}", numeric=True, spread=True)
            for key in measures
            for end in ("", "_paper")
        ),
    )
    rows = []
    for dataset in sheet.datasets:
        for setting in ("all",) if pooled else sheet.settings:
            for row in sheet.rows_of(None if pooled else setting):
                if not sheet.wants(dataset, row, None if pooled else setting):
                    continue
                lines = sheet.get(dataset, row, None if pooled else setting)
                cells = [Cell(dataset), Cell(setting), Cell(row), Cell(str(len(lines)), len(lines))]
                for key in measures:
                    cells.append(cell(lines, MEASURES[key][1]))
                    cells.append(paper_cell(table or setting, dataset, setting, row, key))
                rows.append(tuple(cells))
    return Table(columns, tuple(rows))
