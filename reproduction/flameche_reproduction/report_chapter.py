"""The report's chapter about the paper: stored runs, and its tables and figures beside what it printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from flameche.errors import StoreError
from flameche.experiments.protection import protection
from flameche.report.formats import Cell, Column, Table
from flameche.report.markup import LONG, prose, show, text_of
from flameche.report.overview import Tile
from flameche.report.page import Chapter
from flameche.report.runs import Round, Run, UnreadableRun, parse_summary
from flameche.report.writer import ReportWriter
from flameche_reproduction.catalogue import CATALOGUE
from flameche_reproduction.image_sets import SETTINGS
from flameche_reproduction.planned_runs import CatalogueEntry, PlannedRun, Selection
from flameche_reproduction.results_index import (
    OF_LEDGER,
    ResultLine,
    ResultsIndex,
    is_trained,
    recorded_provenance,
)
from flameche_reproduction.tables import render
from flameche_reproduction.tables.cells import Sheet, paired_table
from flameche_reproduction.tables.comparison import FEWEST, RULE, Verdict, count_verdicts, judge
from flameche_reproduction.tables.document import RenderedTable, write

MAIN = tuple(SETTINGS)  # the tables that compare methods; runs of others vary one of them


def stored_runs(stored: ResultsIndex, folders: Iterable[Run]) -> list[Run]:
    """Return every stored run of the paper's tables once; a run that has a folder is read from there."""
    whole = {run.folder.parts[-2:]: run for run in folders if run.summary}
    found: dict[tuple[Any, ...], Run] = {}
    methods: dict[str, str] = {}  # a clustering by a main table's config is named as there
    for entry in sorted(CATALOGUE.values(), key=lambda entry: entry.name not in MAIN):
        for planned in entry.plan(Selection()):
            key = planned.hash, str(planned.seed), planned.training
            title = (entry.rows or {})[planned.row].title
            if entry.name in MAIN:
                methods[planned.hash] = _without_suffix(title)
            elif planned.hash in methods:
                title = f"{methods[planned.hash]}{'' if planned.training else ', clustering alone'}"
            if key in found or (line := stored.find(planned)) is None:
                continue
            own = whole.get(key[:2]) if planned.training else None
            run = _run(planned, line, title) if own is None else own
            found[key] = _with_title(run, entry.name, title, _command(planned))
    return list(found.values())


def _with_title(run: Run, table: str, title: str, command: str) -> Run:
    """Label a run with the title of its row."""
    summary = None if run.summary is None else replace(run.summary, label=_without_suffix(title))
    return replace(run, summary=summary, table=table, command=command)


def _without_suffix(title: str) -> str:
    """Remove "(m)" and the like, which are for the paper's tables."""
    return title.removesuffix("(s)").removesuffix("(c)").removesuffix("(m)").strip()


def _run(planned: PlannedRun, line: ResultLine, title: str) -> Run:
    about: dict[str, Any] = {
        **line,
        "method": planned.method,
        "label": title,
        "dataset": planned.dataset,
        "setting": planned.setting,
        "scheme": line.get("scheme") or protection(planned.experiment),
        "rounds": line.get("rounds") or planned.experiment.rounds,
        "k": line.get("k") or getattr(planned.experiment.method, "clusters", None),
        "seconds": line["seconds"] if isinstance(line.get("seconds"), dict) else {},
        "ledger": {key: line.get(key) for key in OF_LEDGER if line.get(key) is not None},
    }
    name = f"stored run {planned.label}"
    try:
        summary = parse_summary(about, name)
        rounds = tuple(_rounds(line))
    except (UnreadableRun, TypeError, ValueError) as problem:
        raise StoreError(f"{name} cannot be read: {problem}") from problem
    return Run(
        Path(planned.dataset, planned.hash, str(planned.seed)),
        "finished",
        environment=recorded_provenance(line),
        rounds=rounds,
        summary=summary,
        note="" if is_trained(line) else "a clustering alone, without training",
    )


def _rounds(line: ResultLine) -> Iterable[Round]:
    accuracy, ari = line.get("accuracy_per_round") or [], line.get("ari_per_round") or []
    for at in range(max(len(accuracy), len(ari))):
        yield Round(at + 1, _at(accuracy, at), _at(ari, at), (), (), False)


def _at(values: Sequence[float | None], place: int) -> float:
    value = values[place] if place < len(values) else None
    return float("nan") if value is None else float(value)


def _command(planned: PlannedRun) -> str:
    """Return the command that repeats a run, without its seed; empty if its mode was removed."""
    if planned.retired:
        return ""
    words = " ".join(f"--set {word}" for word in planned.overrides)
    do = "run" if planned.training else "cluster"
    return f"flameche {do} experiments/{planned.dataset}.toml {words}"


class PaperResults:
    """Stored runs for a report, and its chapter of the paper's tables and figures."""

    compared = MAIN
    steps = len(CATALOGUE)

    def __init__(self, folders: Sequence[Path], results: Path) -> None:
        self._stored = ResultsIndex(folders, [results])

    def runs(self, folders: Sequence[Run]) -> list[Run]:
        """Return every stored run once; a run that has a folder is read from there."""
        return stored_runs(self._stored, folders)

    def chapter(self, writer: ReportWriter, step: Callable[[str], None]) -> Chapter:
        """Draw every table and figure, and the chapter of all of them."""
        sections = []
        for name in entry_names():
            step(name)
            sections.append(section(CATALOGUE[name], self._stored, writer))
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        text = resources.files("flameche_reproduction").joinpath("chapter.html").read_text(encoding="utf-8")
        html = Markup(environment.from_string(text).render(sections=sections, rule=RULE))
        return Chapter("paper", "The paper", html, _tiles(sections))


def _tiles(sections: Sequence[Section]) -> Sequence[Tile]:
    """Count the cells of the main tables that agree with the paper; nothing where none was compared."""
    states = Counter(verdict.state for s in sections if s.name in MAIN for verdict in s.verdicts)
    if not states:
        return ()
    rest = f"of csl, fds and csf; {states['outside']} outside, {states['untold']} with too few runs to tell"
    number = f"{states['within']} of {states.total()}"
    return (Tile(number, "cells within the paper’s spread", rest),)


FOLDER = "paper"  # beside the page
# Whose cells are compared; the others have no spreads in the paper, or measure seconds and bytes elsewhere.
COMPARED = (
    *(*SETTINGS, "accuracy", "metadata", "ckks", "missing", "missing-curves", "recluster"),
    *("missing-readings", "readings", "clusters", "recipes"),
)
SIGNS = {"higher": "▲", "lower": "▼", "within": "≈", "untold": "?"}
POOLED = ("metadata", "m-step", "ckks")  # over the settings


@dataclass(frozen=True)
class Section:
    """A table or figure of the paper on the page."""

    name: str
    title: str
    where: str
    lead: Markup
    picture: Markup | None
    tables: tuple[tuple[str, Markup], ...]
    long: bool
    remarks: Markup
    files: tuple[str, ...]
    there: int
    wanted: int
    verdicts: Sequence[Verdict]  # on cells that the paper has too

    @property
    def agreement(self) -> str:
        """The number of verdicts by state; empty if there are none."""
        return count_verdicts(self.verdicts) if self.verdicts else ""

    @property
    def state(self) -> str:
        """Whether all, some or none of its runs are stored."""
        return "whole" if self.there >= self.wanted else "part" if self.there else "nothing"


def section(entry: CatalogueEntry, stored: ResultsIndex, writer: ReportWriter) -> Section:
    """Draw a table or figure; its files go beside the page."""
    drawn = render(entry, Selection(), stored)
    written = write(drawn, writer.out / FOLDER)
    files = tuple(f"{FOLDER}/{file.name}" for file in written)
    verdicts: list[Verdict] = []
    shown = tuple(
        (heading, show_beside(table, heading or entry.title, verdicts if entry.name in COMPARED else None))
        for heading, table in _tables(entry, drawn, stored)
    )
    picture = None
    if svg := next((file for file in written if file.suffix == ".svg"), None):
        picture = writer.inline(svg.read_text(), entry.title)
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
        verdicts,
    )


def show_beside(table: Table, label: str, verdicts: list[Verdict] | None = None) -> Markup:
    """Write a table in which the paper's values stand below ours.

    Args:
        table: columns of the paper's come after ours, with the same key and "_paper" behind it.
        label: what the table is.
        verdicts: the verdict on each cell that can be compared is added here; None: nothing is compared.
    """

    def below(ours: Cell, theirs: Cell) -> str:
        text = text_of(ours, theirs)
        if verdicts is None or not ours.count or ours.value is None or theirs.value is None:
            return text
        verdict = judge(ours.value, ours.count, theirs.value, theirs.spread)
        verdicts.append(verdict)
        return f"{text} {_difference(verdict, ours.count)}"

    return show(table, label, pairs=_pairs(table.columns), below=below)


def _pairs(columns: Sequence[Column]) -> Mapping[int, int]:
    """Find the columns of ours that stand before the paper's."""
    return {
        place: place + 1
        for place in range(len(columns) - 1)
        if columns[place + 1].key == f"{columns[place].key}_paper"
    }


def _difference(verdict: Verdict, count: int) -> str:
    sign = "+" if verdict.difference >= 0 else "−"
    size = f"{abs(verdict.difference):.2f}"
    seeds = f"{count} seed{'' if count == 1 else 's'} of ours"
    kind: str = verdict.state
    if kind == "outside":
        kind = "higher" if verdict.difference > 0 else "lower"
    words = {
        "within": "within the paper’s spread",
        "untold": "too few runs to tell" if count < FEWEST else "no spread in the paper to tell by",
    }.get(kind, f"{kind}, outside the paper’s spread")
    return (
        f'<span class="d {kind}" title="{words}; {seeds}">'
        f"{sign if float(size) else ''}{size} {SIGNS[kind]}</span>"
    )


def entry_names() -> Sequence[str]:
    """Return the names in the paper's order: tables, figures, then what the paper does not have."""
    return sorted(CATALOGUE, key=lambda name: _place(CATALOGUE[name].where))


def _place(where: str) -> tuple[bool, bool, int]:
    kind, _, number = where.partition(" ")
    return not number.isdecimal(), kind == "Figure", int(number) if number.isdecimal() else 0


def _tables(entry: CatalogueEntry, drawn: RenderedTable, stored: ResultsIndex) -> list[tuple[str, Table]]:
    """Return the tables to show; the main tables have all sets side by side, with the paper's values."""
    if entry.name in POOLED:
        sheet = Sheet.of(entry, Selection(), stored)
        return [(heading, _comparable(table, sheet)) for heading, table in drawn.tables]
    if entry.name not in SETTINGS:
        return drawn.tables
    sheet = Sheet.of(entry, Selection(), stored)
    return [
        ("", _with_best(paired_table(sheet, entry.name, ("ari", "accuracy"), entry.name), drawn.tables[0][1]))
    ]


def _comparable(table: Table, sheet: Sheet) -> Table:
    """Clear the count of cells that lack a setting, so that they are not compared."""
    rows = []
    for name, row in zip(sheet.rows, table.rows, strict=True):
        lacking = [dataset for dataset in sheet.datasets if sheet.lacking(dataset, name)]
        short = {column.key for column in table.columns if column.key.partition("_")[0] in lacking}
        cells = zip(table.columns, row, strict=True)
        rows.append(tuple(replace(cell, count=0) if column.key in short else cell for column, cell in cells))
    return replace(table, rows=tuple(rows))


def _with_best(table: Table, drawn: Table) -> Table:
    """Copy bold cells from a table with the same rows and keys."""
    places = {column.key: place for place, column in enumerate(drawn.columns)}

    def cell(key: str, own: Cell, row: tuple[Cell, ...]) -> Cell:
        return replace(own, bold=key in places and row[places[key]].bold)

    rows = tuple(
        tuple(cell(column.key, own, theirs) for column, own in zip(table.columns, row, strict=True))
        for row, theirs in zip(table.rows, drawn.rows, strict=True)
    )
    return replace(table, rows=rows)
