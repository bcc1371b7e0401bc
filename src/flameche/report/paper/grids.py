"""Grids of cells: rows of a table by sets, ours beside the paper's; and all cells in one long table."""

from __future__ import annotations

from collections.abc import Sequence

from flameche.experiments.paper.published import printed
from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.paper.cells import MEASURES, Sheet, cell


def paper_cell(table: str, dataset: str, setting: str, row: str, measure: str) -> Cell:
    """The paper's value; a dash where it has none."""
    theirs = printed(table, dataset, setting, row, measure)
    return Cell(ABSENT) if theirs is None else Cell(theirs.text(), theirs.mean, theirs.sd)


def grid(
    sheet: Sheet, table: str, measures: Sequence[str], setting: str | None = None, first: str = "Method"
) -> Table:
    """Rows by sets and measures, ours and the paper's; without a setting, pooled over all of them."""
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


def in_full(sheet: Sheet, table: str, measures: Sequence[str], *, pooled: bool = False) -> Table:
    """All cells in one long table, for CSV; `table` is the paper's, empty for the one of the setting."""
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
