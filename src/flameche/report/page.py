"""One self-contained page about a folder of runs, with its tables and figures beside it."""

import json
import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from flameche.errors import StoreError
from flameche.report import figures
from flameche.report.canvas import inline_svg, method_colour, to_pdf, to_svg
from flameche.report.formats import Table, human_bytes, human_seconds
from flameche.report.matching import Clusters
from flameche.report.runs import Run, find_runs
from flameche.report.tables import (
    Series,
    bytes_table,
    cost_table,
    group_series,
    seconds_table,
    settings,
    summary_of,
    summary_table,
)

# Above this many runs only the lowest seed of each configuration is shown in full: the page must still open.
MOST_SECTIONS = 60
SETTINGS = {
    "none": "no heterogeneity",
    "csl": "concept shift on labels",
    "fds": "feature distribution skew",
    "csf": "concept shift on features",
}


def write_report(runs_folder: Path, out: Path) -> Path:
    """Write `out/report.html`, `out/tables/` (md, csv, tex) and `out/figures/` (svg, pdf); return the page.

    Every file appears whole or not at all, and the page comes last.
    """
    runs = find_runs(runs_folder)
    shelf = _Shelf(out)
    page = _render(runs, shelf)
    return shelf.write("report.html", page)


class _Shelf:
    """Writes files atomically below one folder, each name once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.taken: set[str] = set()

    def write(self, name: str, content: str | bytes) -> Path:
        """Write through a temporary neighbour, so that a reader never meets half a file."""
        path = self.out / name
        data = content.encode() if isinstance(content, str) else content
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as problem:
            raise StoreError(
                f"cannot write {path}: {problem.strerror or problem}; choose another --out folder"
            ) from problem
        return path

    def slug(self, *parts: str) -> str:
        """A file name from free text, distinct from all earlier ones."""
        base = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.").lower() or "unnamed"
        name, turn = base, 1
        while name in self.taken:
            turn += 1
            name = f"{base}-{turn}"
        self.taken.add(name)
        return name

    def table(self, name: str, table: Table) -> Markup:
        """Keep a table in its three formats; hand its HTML to the page."""
        self.write(f"tables/{name}.md", table.markdown())
        self.write(f"tables/{name}.csv", table.csv())
        self.write(f"tables/{name}.tex", table.tex())
        return Markup(table.html())

    def figure(self, name: str, figure: Figure, caption: str, *, pdf: bool = True) -> "_Picture":
        """Keep a figure as SVG and PDF; hand its inline form to the page.

        A PDF takes three times as long as an SVG (fonts), so only one seed per configuration has them.
        """
        svg = to_svg(figure)
        self.write(f"figures/{name}.svg", svg)
        if pdf:
            self.write(f"figures/{name}.pdf", to_pdf(figure))
        inline = inline_svg(svg, f"f{len(self.taken)}-{_short(name)}", caption)
        return _Picture(Markup(inline), caption)


@dataclass(frozen=True)
class _Picture:
    svg: Markup
    caption: str


def _render(runs: Sequence[Run], shelf: _Shelf) -> str:
    finished = [run for run in runs if run.summary]
    series = group_series(finished)
    if finished:
        shelf.table(shelf.slug("summary"), summary_table(finished))
        shelf.table(shelf.slug("costs"), cost_table(finished))
    sections = [_section(run, one, shelf) for one, run in _detailed(series, len(finished))]
    opened = next((s for s in sections if s["method"] == "flameche"), None)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(
        resources.files("flameche.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(
        facts=_facts(finished, series),
        settings=[_setting(pair, finished, shelf) for pair in settings(finished)],
        sections=[{**section, "open": section is opened} for section in sections],
        left_out=len(finished) - len(sections),
        unfinished=[run for run in runs if run.status == "unfinished"],
        broken=[run for run in runs if run.status == "broken"],
    )


def _detailed(series: Sequence[Series], runs: int) -> list[tuple[Series, Run]]:
    return [(one, run) for one in series for run in (one.runs if runs <= MOST_SECTIONS else one.runs[:1])]


def _facts(finished: Sequence[Run], series: Sequence[Series]) -> list[str]:
    methods = {one.first.method for one in series}
    seeds = {summary_of(run).seed for run in finished}
    schemes = {one.first.scheme for one in series}
    return [
        _count(len(finished), "finished run"),
        _count(len(methods), "method"),
        _count(len(schemes), "scheme"),
        _count(len(seeds), "seed"),
    ]


def _setting(pair: tuple[str, str], finished: Sequence[Run], shelf: _Shelf) -> dict[str, Any]:
    dataset, setting = pair
    mine = [run for run in finished if (summary_of(run).dataset, summary_of(run).setting) == pair]
    series = group_series(mine)
    name = shelf.slug(dataset, setting)
    pictures = []
    band = (
        "; line: mean of the seeds, band: lowest to highest" if any(len(s.runs) > 1 for s in series) else ""
    )
    for what, title in (
        ("accuracy", "Accuracy over the rounds"),
        ("ari", "Agreement of clusters and true groups (ARI) over the rounds"),
    ):
        drawn = figures.curves(series, "accuracy" if what == "accuracy" else "ari")
        if drawn is not None:
            pictures.append(shelf.figure(f"{name}-{what}", drawn, f"{title}{band}."))
    return {
        "id": f"s-{name}",
        "dataset": dataset,
        "setting": setting,
        "meaning": SETTINGS.get(setting.lower(), ""),
        "table": shelf.table(name, summary_table(mine)),
        "costs": Markup(cost_table(mine).html()),
        "pictures": pictures,
    }


def _section(run: Run, series: Series, shelf: _Shelf) -> dict[str, Any]:
    summary = summary_of(run)
    name = shelf.slug(summary.dataset, summary.setting, summary.label, *run.folder.parts[-2:])
    clients = 0 if run.clients is None else len(run.clients)
    numbers = [
        ("accuracy", f"{100 * summary.accuracy:.2f} %", summary.accuracy),
        ("ARI", f"{summary.ari:.2f}", summary.ari),
        ("ARI, final E-step", f"{summary.ari_final:.2f}", summary.ari_final),
        ("DBI", f"{summary.dbi:.2f}", summary.dbi),
        ("CH", f"{summary.ch:.1f}", summary.ch),
        ("up", human_bytes(summary.bytes_up), summary.bytes_up),
        ("down", human_bytes(summary.bytes_down), summary.bytes_down),
        ("wall clock", human_seconds(summary.wall_s), summary.wall_s),
    ]
    facts = [(key, text) for key, text, value in numbers if not math.isnan(value)]
    facts += [("clusters", summary.k)] if summary.k else []
    facts += [("clients", str(clients))] if clients else []
    facts += [("rounds", str(summary.rounds))] if summary.rounds else []
    facts += [("device", summary.device)] if summary.device else []
    ledger = summary.ledger
    return {
        "id": f"r-{name}",
        "method": summary.method,
        "colour": method_colour(summary.method),
        "title": series.name,
        "where": f"{summary.dataset}, {summary.setting}",
        "scheme": summary.scheme,
        "seed": summary.seed,
        "place": run.place,
        "facts": facts,
        "notes": [*summary.notes, *([f"This run is {run.note}."] if run.note else []), *_disagreements(run)],
        "pictures": [
            shelf.figure(f"{name}-{short}", figure, caption, pdf=run is series.runs[0])
            for short, (caption, figure) in figures.cluster_figures(run).items()
        ],
        "clustered": Clusters(run).several,
        "bytes": Markup(bytes_table(summary, clients).html()),
        "seconds": Markup(seconds_table(summary, clients).html()),
        "tuning": ledger.tuning_runs,
        "oracle": ledger.oracle_knowledge,
        "config": run.config_text,
        "environment": [(key, _flat(value)) for key, value in run.environment.items()],
    }


def _disagreements(run: Run) -> list[str]:
    """The ledger's kinds must add up to the totals of the summary."""
    summary = summary_of(run)
    found = []
    for direction, kinds, stated in (
        ("up", summary.ledger.up, summary.bytes_up),
        ("down", summary.ledger.down, summary.bytes_down),
    ):
        total = math.fsum(kinds.values())
        if kinds and not math.isnan(stated) and round(total) != round(stated):
            found.append(
                f"The ledger adds up to {total:.0f} bytes {direction}, the summary says {stated:.0f}."
            )
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(name: str) -> str:
    return name.rsplit("-", 1)[-1]


def _flat(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
