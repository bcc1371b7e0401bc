"""Writes the report: one self-contained page about runs, with files of its tables and figures beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import jinja2
from markupsafe import Markup

from flameche.companions import REPRODUCTION, is_installed, load
from flameche.data.heterogeneity import SETTING_TITLES
from flameche.errors import StoreError
from flameche.experiments.provenance import NOT_RECORDED
from flameche.report import figures
from flameche.report.details import Details
from flameche.report.formats import ABSENT, Cell, Column, Table, amount
from flameche.report.markup import show
from flameche.report.overview import Matrix, Pair, Tile, dataset_title, ordered, tiles
from flameche.report.runs import Run, Summary, find_runs
from flameche.report.tables import (
    accuracy_cell,
    cost_table,
    group_series,
    mean_cell,
    seed_span,
    summary_of,
    summary_table,
)
from flameche.report.writer import PageFigure, ReportWriter

MOST_DRAWN = 60  # above this many runs, figures of single runs are drawn for one seed of each configuration
SETTINGS = {"none": "no heterogeneity", "network": "a real network", **SETTING_TITLES}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Chapter:
    """A part of the page that another package draws: its anchor, title, HTML and headline numbers."""

    id: str
    title: str
    html: Markup
    tiles: Sequence[Tile] = ()


class StoredResults(Protocol):
    """Stored results, which have no run folders, and the chapter that shows them."""

    steps: int  # how often `chapter` reports its progress
    compared: Sequence[str]  # the tables that compare methods; the runs of other tables vary one method

    def runs(self, folders: Sequence[Run]) -> list[Run]:
        """Return every stored run once; a run that is among `folders` is returned as it is there."""

    def chapter(self, writer: ReportWriter, step: Callable[[str], None]) -> Chapter:
        """Draw the chapter; its files go next to the page."""


def write_report(
    runs: Path | None, out: Path, results: Path | None = None, progress: Progress | None = None
) -> Path:
    """Write `out/report.html` about run folders, stored runs or both.

    Next to it go `tables/` (md, csv, tex), `figures/` (svg, pdf) and, with stored runs, `paper/` with the
    paper's tables and figures, which `flameche_reproduction` draws. The page is written last.

    Args:
        runs: a folder with run folders.
        out: where the report goes.
        results: a folder with stored runs (*.jsonl).
        progress: called with the part that is being drawn, its number, and the number of parts.

    Returns:
        the path of the page.

    Raises:
        StoreError: if there is nothing to report on, or a file cannot be read or written.
    """
    folders = [runs] if runs is not None else []
    stored = None
    if results is not None:
        if not any(results.glob("*.jsonl")):
            raise StoreError(
                f"no stored runs in {results}; expected *.jsonl as `flameche reproduce` keeps them"
            )
        folders += [folder for folder in (results / "runs",) if folder.is_dir()]
        chapter = load(REPRODUCTION, "report_chapter", "a report on stored runs")
        stored = chapter.PaperResults(folders, results)
    elif runs is None:
        raise StoreError("nothing to report on; give a runs folder, or --results")
    data = _report_data(_folder_runs(folders), stored)
    return _PageBuilder(data, ReportWriter(out), progress or (lambda what, done, total: None)).write()


def default_folders() -> tuple[Path | None, Path | None]:
    """Return where runs and stored runs are by default: ./runs, and ./results if it can be drawn."""
    runs, results = Path("runs"), Path("results")
    stored = results if any(results.glob("*.jsonl")) and is_installed(REPRODUCTION) else None
    return (runs if runs.is_dir() or stored is None else None), stored


@dataclass(frozen=True)
class _ReportData:
    """The runs of a report: finished ones, those of them that compare methods, unfinished and broken ones."""

    finished: list[Run]
    compared: list[Run]
    unfinished: list[Run]
    broken: list[Run]
    stored: StoredResults | None


def _folder_runs(folders: Sequence[Path]) -> list[Run]:
    """Read all run folders below several folders, each run once."""
    found: dict[str, Run] = {}
    for run in (run for folder in folders for run in find_runs(folder)):
        found.setdefault(run.place, run)
    return list(found.values())


def _report_data(folders: Sequence[Run], stored: StoredResults | None) -> _ReportData:
    known = [] if stored is None else stored.runs(folders)
    compared = [] if stored is None else stored.compared
    taken = {run.folder for run in known}
    own = [run for run in folders if run.summary and run.folder not in taken]
    finished = [*own, *known]
    return _ReportData(
        finished,
        [run for run in finished if run.table in ("", *compared)],
        [run for run in folders if run.status == "unfinished"],
        [run for run in folders if run.status == "broken"],
        stored,
    )


class _PageBuilder:
    """Draws the parts of the page one after another and reports its progress."""

    def __init__(self, data: _ReportData, writer: ReportWriter, progress: Progress) -> None:
        self.data, self.writer, self.progress = data, writer, progress
        self.series = group_series(data.compared)
        self.pairs = ordered({(s.first.dataset, s.first.setting) for s in self.series})
        self.steps = len(self.pairs) + 1 + (0 if data.stored is None else data.stored.steps)
        self.done = 0

    def write(self) -> Path:
        """Write all files, the page last; return the page."""
        finished, compared = self.data.finished, self.data.compared
        if finished:
            self.writer.table(self.writer.slug("summary"), summary_table(compared))
            self.writer.table(self.writer.slug("costs"), cost_table(compared))
        places = {pair: f"s-{self.writer.slug(*pair)}" for pair in self.pairs}
        stored = self.data.stored
        chapter = None if stored is None else stored.chapter(self.writer, self._step)
        matrix = Matrix(compared)
        details, runs = self._runs()
        web = resources.files("flameche.report").joinpath("web")
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        template = environment.from_string(web.joinpath("page.html").read_text(encoding="utf-8"))
        page = template.render(
            style=Markup(web.joinpath("page.css").read_text(encoding="utf-8")),
            scripts=[
                Markup(web.joinpath(name).read_text(encoding="utf-8"))
                for name in ("tables.js", "charts.js", "runs.js")
            ],
            data=Markup(details.json()),
            tiles=[*tiles(finished, matrix), *(chapter.tiles if chapter else ())] if finished else [],
            matrix=matrix.html(places) if compared else None,
            seeds=seed_span(len(one.runs) for one in matrix.series),
            chapter=chapter,
            settings=[self._setting(pair, places[pair]) for pair in self.pairs],
            runs=runs,
            unfinished=self.data.unfinished,
            broken=self.data.broken,
        )
        return self.writer.write("report.html", page)

    def _step(self, what: str) -> None:
        self.done += 1
        self.progress(what, self.done, self.steps)

    def _setting(self, pair: Pair, place: str) -> dict[str, Any]:
        dataset, setting = pair
        self._step(f"{dataset} {setting}")
        mine = [r for r in self.data.compared if (summary_of(r).dataset, summary_of(r).setting) == pair]
        series, name = group_series(mine), place.removeprefix("s-")
        files = self.writer.table(name, summary_table(mine))
        pictures: list[PageFigure] = []
        several = any(len(one.runs) > 1 for one in series)
        band = "; line: mean of the seeds, band: lowest to highest" if several else ""
        for what, words in (
            ("accuracy", "Accuracy over the rounds"),
            ("ari", "Agreement of clusters and true groups (ARI) over the rounds"),
        ):
            drawn = figures.curves(series, "accuracy" if what == "accuracy" else "ari")
            if drawn is not None:
                pictures.append(self.writer.page_figure(f"{name}-{what}", drawn, f"{words}{band}."))
        label = f"{dataset_title(dataset)}, {setting}"
        ledger = any(summary_of(run).ledger.up for run in mine)
        return {
            "id": place,
            "title": label,
            "meaning": SETTINGS.get(setting.lower(), ""),
            "table": show(summary_table(mine), label),
            "costs": show(cost_table(mine), f"{label}: costs") if ledger else None,
            "pictures": pictures,
            "files": files,
        }

    def _runs(self) -> tuple[Details, dict[str, Any]]:
        """Collect the data of every run, and make the table of all runs."""
        self._step("runs")
        names = {id(run): one.name for one in self.series for run in one.runs}
        first = {id(one.runs[0]) for one in self.series}
        few = len(self.data.finished) <= MOST_DRAWN
        details, rows, addresses = Details(), [], []
        tabled = any(run.table for run in self.data.finished)
        for run in self._in_order():
            summary = summary_of(run)
            name = names.get(id(run), summary.label)
            address = self.writer.slug("r", *run.folder.parts[-2:])
            files: list[str] = []
            if run.clients is not None and (few or id(run) in first):
                for short, (_, figure) in figures.cluster_figures(run).items():
                    files += self.writer.figure(f"{address}-{short}", figure, pdf=id(run) in first)
            details.add(run, address, name, files)
            rows.append(_row(run, summary, name, tabled))
            addresses.append(f"#{address}")
        table = Table(_columns(tabled), tuple(rows))
        shown = show(table, "all runs", link=lambda number: addresses[number]) if rows else None
        files_ = self.writer.table(self.writer.slug("runs"), table) if rows else ()
        return details, {"table": shown, "files": files_, "count": len(rows)}

    def _in_order(self) -> list[Run]:
        place = {pair: number for number, pair in enumerate(self.pairs)}
        series = sorted(self.series, key=lambda one: place[one.first.dataset, one.first.setting])
        compared = [run for one in series for run in one.runs]
        there = {id(run) for run in compared}
        return [*compared, *(run for run in self.data.finished if id(run) not in there)]


def _row(run: Run, summary: Summary, name: str, tabled: bool) -> tuple[Cell, ...]:
    """Make a run's row in the table of all runs; `tabled`: with the paper's table to which it belongs."""

    def cell(value: float) -> Cell:
        return Cell(ABSENT) if value != value else Cell(amount(value), value)

    return (
        Cell(name),
        Cell(dataset_title(summary.dataset)),
        Cell(summary.setting),
        Cell(str(summary.seed), summary.seed),
        accuracy_cell([run], 2),
        mean_cell([summary.ari], 2),
        mean_cell([summary.dbi], 2),
        cell(summary.bytes_up / 1e6),
        cell(summary.bytes_down / 1e6),
        cell(summary.wall_s),
        Cell(summary.device or NOT_RECORDED),
        Cell(summary.scheme),
        *([Cell(run.table or "–")] if tabled else []),
    )


def _columns(tabled: bool) -> tuple[Column, ...]:
    return (
        Column("Run", "method"),
        Column("Data", "dataset"),
        Column("Setting", "setting"),
        Column("Seed", "seed", numeric=True),
        Column("Accuracy, %", "accuracy_percent", numeric=True),
        Column("ARI", "ari", numeric=True),
        Column("DBI", "dbi", numeric=True),
        Column("MB up", "mb_up", numeric=True),
        Column("MB down", "mb_down", numeric=True),
        Column("Seconds", "seconds", numeric=True),
        Column("Device", "device"),
        Column("Scheme", "scheme"),
        *([Column("Table", "table")] if tabled else []),
    )
