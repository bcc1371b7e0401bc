"""The main tables: ARI and accuracy of every method in a setting, and accuracies over all settings."""

from __future__ import annotations

from flameche.experiments.paper import Choice, Entry
from flameche.experiments.stored import Line, Stored
from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.paper import bound
from flameche.report.paper.cells import MEASURES, NOT_RUN, Sheet, ari, cell, percent, rivals
from flameche.report.paper.comparing import compare, read_remarks, remarks_on
from flameche.report.paper.drawn import Drawn, sentences
from flameche.report.paper.grids import in_full, paper_cell

LEAD = (
    "Mean ± sd (n - 1) over the seeds that were run. ARI: of the assignments after the last round. Beside "
    "ours the paper's, over five seeds. (s) server-side, (c) client-side, (m) by metadata."
)
POOLED = (
    "Accuracy in %, pooled over the three settings and the seeds: mean ± sd. Bold: the best but Oracle. "
    "(s) server-side, (c) client-side, (m) by metadata."
)


def draw_setting(entry: Entry, choice: Choice, stored: Stored) -> Drawn:
    """One setting: the paper's table, and every set that was run beside the paper."""
    sheet = Sheet.of(entry, choice, stored)
    tables = [("", overview(sheet))]
    for dataset in (name for name in sheet.datasets if sheet.get(name)):
        tables.append((f"{sheet.column(dataset)}, beside the paper", beside(sheet, dataset)))
    return Drawn(
        entry.name,
        entry.title,
        sentences([sheet.scale(), LEAD, sheet.sizes(False), sheet.made(), *sheet.notes()]),
        tables,
        in_full(sheet, "", ("ari", "accuracy")),
        remarks=remarks_on(compare(sheet, ("ari", "accuracy")), read_remarks(stored)),
        runs=sheet.counted,
    )


def draw_pooled(entry: Entry, choice: Choice, stored: Stored) -> Drawn:
    """Accuracy pooled over settings and seeds, as in the paper's first table of results."""
    sheet = Sheet.of(entry, choice, stored)
    columns = [Column("Method", "method")]
    for dataset in sheet.datasets:
        columns.append(Column(sheet.column(dataset), dataset, numeric=True, spread=True))
        columns.append(Column("paper", f"{dataset}_paper", numeric=True, spread=True))
    rows, partial = [], False
    for row in sheet.rows:
        cells = [Cell(sheet.title(row))]
        for dataset in sheet.datasets:
            lines, best = sheet.get(dataset, row), _best(sheet, dataset) == row
            ours = cell(lines, percent, bold=best, single=sheet.single(dataset))
            lacking = sheet.lacking(dataset, row)
            partial = partial or bool(lacking)
            partly = Cell(f"{ours.text} *", ours.value, ours.spread)
            cells.append(partly if lines and lacking else ours)
            cells.append(paper_cell("accuracy", dataset, "all", row, "accuracy"))
        rows.append(tuple(cells))
    missing = r"\*: not all settings were run, so that it is not to be compared." if partial else ""
    return Drawn(
        entry.name,
        entry.title,
        sentences([sheet.scale(), POOLED, sheet.sizes(True), missing, sheet.made(), *sheet.notes()]),
        [("", Table(tuple(columns), tuple(rows))), *bound.tables(sheet)],
        in_full(sheet, "", ("accuracy",)),
        remarks=remarks_on(compare(sheet, ("accuracy",), pooled=True), read_remarks(stored)),
        runs=sheet.counted,
    )


def overview(sheet: Sheet) -> Table:
    """The paper's layout: for each set ARI and accuracy; the best accuracy but Oracle's is bold."""
    columns = [Column("Method", "method")]
    for dataset in sheet.datasets:
        columns.append(Column(f"{sheet.column(dataset)}: ARI", f"{dataset}_ari", numeric=True, spread=True))
        columns.append(Column("accuracy %", f"{dataset}_accuracy", numeric=True, spread=True))
    rows = []
    for row in sheet.rows:
        cells = [Cell(sheet.title(row))]
        for dataset in sheet.datasets:
            lines = sheet.get(dataset, row)
            single, best = sheet.single(dataset), _best(sheet, dataset) == row
            cells += [cell(lines, ari, single=single), cell(lines, percent, bold=best, single=single)]
        rows.append(tuple(cells))
    return Table(tuple(columns), tuple(rows))


def beside(sheet: Sheet, dataset: str) -> Table:
    """A set's rows in one setting: seeds, ours and the paper's, megabytes of the first seed."""
    (setting,) = sheet.settings
    pairs = [
        column
        for key in ("ari", "accuracy")
        for column in (
            Column(MEASURES[key][0], key, numeric=True, spread=True),
            Column("paper", f"{key}_paper", numeric=True, spread=True),
        )
    ]
    costs = [Column("MB up", "mb_up", numeric=True), Column("MB down", "mb_down", numeric=True)]
    rows = []
    for row in sheet.rows:
        lines = sheet.get(dataset, row)
        cells = [Cell(sheet.title(row)), Cell(str(len(lines)) if lines else NOT_RUN, len(lines))]
        for key in ("ari", "accuracy"):
            ours = cell(lines, MEASURES[key][1], single=True)  # the row has a column of seeds
            cells += [ours, paper_cell(setting, dataset, setting, row, key)]
        cells += [_megabytes(lines, key) for key in ("bytes_up", "bytes_down")]
        rows.append(tuple(cells))
    columns = (Column("Method", "method"), Column("Seeds", "seeds", numeric=True), *pairs, *costs)
    return Table(columns, tuple(rows))


def _best(sheet: Sheet, dataset: str) -> str:
    """The row of the best accuracy but Oracle's, of those run in full; none where that is one alone."""
    means = {row: value for row, value in rivals(sheet, dataset).items() if not sheet.lacking(dataset, row)}
    return max(means, key=lambda row: means[row]) if len(means) > 1 else ""


def _megabytes(lines: list[Line], key: str) -> Cell:
    if not lines or lines[0].get(key) is None:
        return Cell(ABSENT)
    value = lines[0][key] / 1e6
    return Cell(f"{value:,.0f}", value)
