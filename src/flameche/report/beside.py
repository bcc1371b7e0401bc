"""The paper's tables and figures for the page: drawn from stored runs, beside what the paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from flameche.experiments.paper import ENTRIES, Choice, Entry
from flameche.experiments.paper.sets import SETTINGS
from flameche.experiments.stored import Stored
from flameche.report.agreement import Verdict, counted
from flameche.report.formats import Cell, Table
from flameche.report.markup import LONG, Shown, prose, show
from flameche.report.paper import Drawn, render, write
from flameche.report.paper.cells import Sheet
from flameche.report.paper.grids import grid
from flameche.report.shelf import Shelf

FOLDER = "paper"  # beside the page
# Whose cells are compared; the others have no spreads in the paper, or measure seconds and bytes elsewhere.
COMPARED = (
    *(*SETTINGS, "accuracy", "metadata", "ckks", "missing", "missing-curves", "recluster"),
    *("missing-readings", "readings", "clusters", "recipes"),
)
POOLED = ("metadata", "m-step", "ckks")  # over the settings


@dataclass(frozen=True)
class Section:
    """A table or figure of the paper on the page."""

    name: str
    title: str
    where: str
    lead: Markup
    picture: Markup | None
    tables: tuple[tuple[str, Shown], ...]
    long: bool
    remarks: Markup
    files: tuple[str, ...]
    there: int
    wanted: int

    @property
    def verdicts(self) -> list[Verdict]:
        """How the cells that could be compared stand to the paper's."""
        return [verdict for _, shown in self.tables for verdict in shown.verdicts]

    @property
    def agreement(self) -> str:
        """Count them by state; nothing where there are none."""
        return counted(self.verdicts) if self.verdicts else ""

    @property
    def state(self) -> str:
        """Whether all, some or none of its runs are there."""
        return "whole" if self.there >= self.wanted else "part" if self.there else "nothing"


def section(entry: Entry, stored: Stored, shelf: Shelf) -> Section:
    """Draw one; its files go beside the page."""
    drawn = render(entry, Choice(), stored)
    written = write(drawn, shelf.out / FOLDER)
    files = tuple(f"{FOLDER}/{file.name}" for file in written)
    shown = tuple(
        (heading, show(table, heading or entry.title, beside=entry.name in COMPARED))
        for heading, table in _tables(entry, drawn, stored)
    )
    picture = None
    if svg := next((file for file in written if file.suffix == ".svg"), None):
        picture = shelf.inline(svg.read_text(), entry.title)
    there, wanted = drawn.runs
    return Section(
        entry.name,
        entry.title,
        entry.where,
        prose([drawn.lead]),
        picture,
        shown,
        max(len(table.rows) for _, table in drawn.tables) > 2 * LONG,
        prose(drawn.remarks),
        files,
        there,
        wanted,
    )


def names() -> Sequence[str]:
    """The paper's order: by table or figure, and what is not in it last."""
    return sorted(ENTRIES, key=lambda name: _place(ENTRIES[name].where))


def _place(where: str) -> tuple[bool, bool, int]:
    kind, _, number = where.partition(" ")
    return not number.isdecimal(), kind == "Figure", int(number) if number.isdecimal() else 0


def _tables(entry: Entry, drawn: Drawn, stored: Stored) -> list[tuple[str, Table]]:
    """The main tables have their sets beside each other here, each beside the paper's."""
    if entry.name in POOLED:
        sheet = Sheet.of(entry, Choice(), stored)
        return [(heading, _comparable(table, sheet)) for heading, table in drawn.tables]
    if entry.name not in SETTINGS:
        return drawn.tables
    sheet = Sheet.of(entry, Choice(), stored)
    return [("", _with_best(grid(sheet, entry.name, ("ari", "accuracy"), entry.name), drawn.tables[0][1]))]


def _comparable(table: Table, sheet: Sheet) -> Table:
    """Forget of how many runs a cell is that lacks a setting: it is not to be compared."""
    rows = []
    for name, row in zip(sheet.rows, table.rows, strict=True):
        lacking = [dataset for dataset in sheet.datasets if sheet.lacking(dataset, name)]
        short = {column.key for column in table.columns if column.key.partition("_")[0] in lacking}
        cells = zip(table.columns, row, strict=True)
        rows.append(tuple(replace(cell, count=0) if column.key in short else cell for column, cell in cells))
    return replace(table, rows=tuple(rows))


def _with_best(table: Table, drawn: Table) -> Table:
    """Take over which cells are bold from a table with the same rows and keys."""
    places = {column.key: place for place, column in enumerate(drawn.columns)}

    def cell(key: str, own: Cell, row: tuple[Cell, ...]) -> Cell:
        return replace(own, bold=key in places and row[places[key]].bold)

    rows = tuple(
        tuple(cell(column.key, own, theirs) for column, own in zip(table.columns, row, strict=True))
        for row, theirs in zip(table.rows, drawn.rows, strict=True)
    )
    return replace(table, rows=rows)
