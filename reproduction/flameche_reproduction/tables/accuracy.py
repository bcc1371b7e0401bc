"""The main tables: ARI and accuracy of every method in a setting, and accuracies over all settings.

FLAMECHE's default mode, and the one before it, also stand beside Oracle, which knows the groups, in the last
rounds. With one seed there is no spread over seeds, but accuracies go up and down from round to round; that
spread is given, and a mean over these rounds says what a last round that happens to be low does not.
"""

from __future__ import annotations

import statistics

from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.tables import mean_cell
from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.results_index import ResultLine, ResultsIndex
from flameche_reproduction.tables.cells import (
    MEASURES,
    NOT_RUN,
    ORACLE,
    Sheet,
    ari,
    cell,
    known_values,
    long_table,
    mean_accuracies,
    paper_cell,
    percent,
)
from flameche_reproduction.tables.comparison import compare, explain_differences, read_remarks
from flameche_reproduction.tables.document import RenderedTable, sentences

LATE = 20  # rounds, of a hundred; a fifth of fewer
TITLES = {  # by row of the table
    "flameche": "FLAMECHE",
    "flameche-robust": "FLAMECHE's former default mode",
}
ABOUT = "beside Oracle (± over seeds; in the last 20 rounds over rounds and seeds)"
COLUMNS = (
    Column("Set", "set"),
    Column("Oracle", "oracle", numeric=True, spread=True),
    Column("FLAMECHE", "ours", numeric=True, spread=True),
    Column("place among the methods run", "place", numeric=True),
    Column("Oracle, last rounds", "oracle_late", numeric=True, spread=True),
    Column("FLAMECHE, last rounds", "ours_late", numeric=True, spread=True),
    Column("first of all, or within one sd of Oracle", "verdict"),
)


def oracle_tables(sheet: Sheet) -> list[tuple[str, Table]]:
    """Compare FLAMECHE's default mode and the former one with Oracle; return titled tables."""
    made = ((title, beside_oracle(sheet, row)) for row, title in TITLES.items())
    return [(f"{title} {ABOUT}", table) for title, table in made if table is not None]


def beside_oracle(sheet: Sheet, row: str) -> Table | None:
    """Compare a mode with Oracle wherever both were run, over seeds and over the last rounds.

    The other mode of FLAMECHE does not count in its place among the methods.
    """
    rows = []
    methods = [name for name in sheet.rows if name == row or name not in (ORACLE, *TITLES)]
    for dataset in sheet.datasets:
        for setting in sheet.settings:
            ours, bound = sheet.get(dataset, row, setting), sheet.get(dataset, ORACLE, setting)
            if not ours or not bound:
                continue
            single = sheet.single(dataset)
            means = {
                name: at for name, at in mean_accuracies(sheet, dataset, setting).items() if name in methods
            }
            place, of = 1 + sum(value > means[row] for value in means.values()), len(means)
            rows.append(
                (
                    Cell(sheet.column(dataset, setting)),
                    cell(bound, percent, single=single),
                    cell(ours, percent, single=single),
                    Cell(f"{place} of {of}", place),
                    mean_cell(last_rounds(bound), 2),
                    mean_cell(last_rounds(ours), 2),
                    Cell(verdict(place == 1 and of == len(methods), ours, bound)),
                )
            )
    return Table(COLUMNS, tuple(rows)) if rows else None


def last_rounds(lines: list[ResultLine]) -> list[float]:
    """Return the accuracies, in percent, of the last fifth of the rounds of every seed, at most twenty."""
    found: list[float | None] = []
    for line in lines:
        rounds = line.get("accuracy_per_round") or []
        found += rounds[len(rounds) - min(LATE, len(rounds) // 5) :]
    return [100 * value for value in found if value is not None]


def verdict(first: bool, ours: list[ResultLine], bound: list[ResultLine]) -> str:
    """Say whether ours is first or within one sd of Oracle, over seeds or else the last rounds."""
    if first:
        return "first"
    low, high = known_values(ours, percent), known_values(bound, percent)
    how = "over seeds" if len(high) > 1 else "over rounds"
    if how == "over rounds":
        low, high = last_rounds(ours), last_rounds(bound)
    if not low or len(high) < 2:
        return ABSENT
    within = statistics.fmean(low) >= statistics.fmean(high) - statistics.stdev(high)
    return f"within, {how}" if within else f"no, {how}"


LEAD = (
    "Mean ± sd (n - 1) over the seeds that were run. ARI: of the assignments after the last round. Beside "
    "ours the paper's, over five seeds. (s) server-side, (c) client-side, (m) by metadata."
)
POOLED = (
    "Accuracy in %, pooled over the three settings and the seeds: mean ± sd. Bold: the best but Oracle. "
    "(s) server-side, (c) client-side, (m) by metadata."
)


def draw_setting(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Draw one setting: the paper's layout, then each set beside the paper's values."""
    sheet = Sheet.of(entry, choice, stored)
    tables = [("", overview(sheet))]
    for dataset in (name for name in sheet.datasets if sheet.get(name)):
        tables.append((f"{sheet.column(dataset)}, beside the paper", set_beside_paper(sheet, dataset)))
    return RenderedTable(
        entry.name,
        entry.title,
        sentences([sheet.scale(), LEAD, sheet.sizes(False), sheet.provenance(), *sheet.notes()]),
        tables,
        long_table(sheet, "", ("ari", "accuracy")),
        remarks=explain_differences(compare(sheet, ("ari", "accuracy")), read_remarks(stored)),
        runs=sheet.counted,
    )


def draw_pooled(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Draw accuracy pooled over settings and seeds, as in the paper's first table of results."""
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
    return RenderedTable(
        entry.name,
        entry.title,
        sentences([sheet.scale(), POOLED, sheet.sizes(True), missing, sheet.provenance(), *sheet.notes()]),
        [("", Table(tuple(columns), tuple(rows))), *oracle_tables(sheet)],
        long_table(sheet, "", ("accuracy",)),
        remarks=explain_differences(compare(sheet, ("accuracy",), pooled=True), read_remarks(stored)),
        runs=sheet.counted,
    )


def overview(sheet: Sheet) -> Table:
    """Return the paper's layout: ARI and accuracy by set; the best accuracy besides Oracle's is bold."""
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


def set_beside_paper(sheet: Sheet, dataset: str) -> Table:
    """Return a set's rows in one setting: seeds, our values and the paper's, megabytes of the first seed."""
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
    """Return the row with the best accuracy besides Oracle's, of those run in full; empty if only one was."""
    means = {
        row: value
        for row, value in mean_accuracies(sheet, dataset).items()
        if not sheet.lacking(dataset, row)
    }
    return max(means, key=lambda row: means[row]) if len(means) > 1 else ""


def _megabytes(lines: list[ResultLine], key: str) -> Cell:
    if not lines or lines[0].get(key) is None:
        return Cell(ABSENT)
    value = lines[0][key] / 1e6
    return Cell(f"{value:,.0f}", value)
