"""FLAMECHE's default mode, and the one before it, beside Oracle, which knows the groups: the last rounds.

With one seed there is no spread over seeds, but accuracies go up and down from round to round; that spread is
told, and a mean over these rounds says what a last round that happens to be low does not.
"""

from __future__ import annotations

import statistics

from flameche.experiments.stored import Line
from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.paper.cells import ORACLE, Sheet, cell, known, percent, rivals
from flameche.report.tables import mean_cell

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


def tables(sheet: Sheet) -> list[tuple[str, Table]]:
    """Compare each of the two modes with Oracle, and name the table."""
    made = ((title, beside_oracle(sheet, row)) for row, title in TITLES.items())
    return [(f"{title} {ABOUT}", table) for title, table in made if table is not None]


def beside_oracle(sheet: Sheet, row: str) -> Table | None:
    """Compare wherever both were run: sd over seeds, over the last rounds of all seeds, and the verdict.

    The other of the two modes is no rival.
    """
    rows = []
    methods = [name for name in sheet.rows if name == row or name not in (ORACLE, *TITLES)]
    for dataset in sheet.datasets:
        for setting in sheet.settings:
            ours, bound = sheet.get(dataset, row, setting), sheet.get(dataset, ORACLE, setting)
            if not ours or not bound:
                continue
            single = sheet.single(dataset)
            means = {name: at for name, at in rivals(sheet, dataset, setting).items() if name in methods}
            place, of = 1 + sum(value > means[row] for value in means.values()), len(means)
            rows.append(
                (
                    Cell(sheet.column(dataset, setting)),
                    cell(bound, percent, single=single),
                    cell(ours, percent, single=single),
                    Cell(f"{place} of {of}", place),
                    mean_cell(late(bound), 2),
                    mean_cell(late(ours), 2),
                    Cell(verdict(place == 1 and of == len(methods), ours, bound)),
                )
            )
    return Table(COLUMNS, tuple(rows)) if rows else None


def late(lines: list[Line]) -> list[float]:
    """The accuracies, in percent, of the last rounds of every seed: a fifth of them, at most twenty."""
    found: list[float | None] = []
    for line in lines:
        rounds = line.get("accuracy_per_round") or []
        found += rounds[len(rounds) - min(LATE, len(rounds) // 5) :]
    return [100 * value for value in found if value is not None]


def verdict(first: bool, ours: list[Line], bound: list[Line]) -> str:
    """First, or no lower than Oracle by more than Oracle's sd: over seeds, with one over the last rounds."""
    if first:
        return "first"
    low, high = known(ours, percent), known(bound, percent)
    how = "over seeds" if len(high) > 1 else "over rounds"
    if how == "over rounds":
        low, high = late(ours), late(bound)
    if not low or len(high) < 2:
        return ABSENT
    within = statistics.fmean(low) >= statistics.fmean(high) - statistics.stdev(high)
    return f"within, {how}" if within else f"no, {how}"
