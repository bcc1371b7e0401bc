"""FLAMECHE's robust mode beside Oracle, which knows the groups: the last round, and the last twenty.

With one seed there is no spread over seeds, but accuracies go up and down from round to round; that spread is
told, and a mean over these rounds says what a last round that happens to be low does not.
"""

from __future__ import annotations

import math
import statistics

from flameche.experiments.stored import Line
from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.paper.cells import Sheet, cell, mean, percent
from flameche.report.tables import mean_cell

LATE = 20  # rounds
OURS, BOUND = "flameche-robust", "oracle"
TITLE = f"FLAMECHE's robust mode beside Oracle (± over seeds; last {LATE} rounds: over rounds and seeds)"
COLUMNS = (
    Column("Set", "set"),
    Column("Oracle", "oracle", numeric=True, spread=True),
    Column("robust mode", "robust", numeric=True, spread=True),
    Column("place among methods", "place", numeric=True),
    Column(f"Oracle, last {LATE} rounds", "oracle_late", numeric=True, spread=True),
    Column(f"robust mode, last {LATE} rounds", "robust_late", numeric=True, spread=True),
    Column("first, or within one sd", "verdict"),
)


def beside_oracle(sheet: Sheet) -> Table | None:
    """Compare wherever both were run: sd over seeds, over the last rounds of all seeds, and the verdict."""
    rows = []
    for dataset in sheet.datasets:
        for setting in sheet.settings:
            ours, bound = sheet.get(dataset, OURS, setting), sheet.get(dataset, BOUND, setting)
            if not ours or not bound:
                continue
            place = _place(sheet, dataset, setting)
            rows.append(
                (
                    Cell(f"{sheet.column(dataset)} {setting}"),
                    cell(bound, percent),
                    cell(ours, percent),
                    Cell(str(place), place) if place else Cell(ABSENT),
                    mean_cell(late(bound), 2),
                    mean_cell(late(ours), 2),
                    Cell(verdict(place, ours, bound)),
                )
            )
    return Table(COLUMNS, tuple(rows)) if rows else None


def late(lines: list[Line]) -> list[float]:
    """The accuracies, in percent, of the last rounds of every seed."""
    rounds = [line.get("accuracy_per_round") or [line["accuracy"]] for line in lines]
    return [100 * value for each in rounds for value in each[-LATE:] if value is not None]


def verdict(place: int, ours: list[Line], bound: list[Line]) -> str:
    """First, or no lower than Oracle by more than Oracle's sd: over seeds, with one over the last rounds."""
    if place == 1:
        return "first"
    last = (mean(ours, percent) or math.nan), (mean(bound, percent) or math.nan)
    spread = [value for line in bound if (value := percent(line)) is not None]
    if len(spread) > 1 and last[0] >= last[1] - statistics.stdev(spread):
        return "within, over seeds"
    rounds = late(ours), late(bound)
    if min(map(len, rounds)) > 1:
        low = statistics.fmean(rounds[1]) - statistics.stdev(rounds[1])
        if statistics.fmean(rounds[0]) >= low:
            return "within, over rounds"
    return "no"


def _place(sheet: Sheet, dataset: str, setting: str) -> int:
    """The place by mean accuracy among the methods that were run, Oracle aside; 0 where it is alone."""
    means = {
        row: value
        for row in sheet.rows
        if row != BOUND and (value := mean(sheet.get(dataset, row, setting), percent)) is not None
    }
    return 1 + sum(value > means[OURS] for value in means.values()) if len(means) > 1 else 0
