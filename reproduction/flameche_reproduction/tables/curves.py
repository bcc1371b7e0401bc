"""The figures over rounds and over K: accuracy with missing labels; DBI, ARI and accuracy by K."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from flameche.report.formats import Cell, Column, Table
from flameche.report.style import (
    INK,
    METHOD_COLOURS,
    WIDTH,
    legend,
    method_colour,
    new_axes,
    rounds_axis,
    styled,
)
from flameche_reproduction.image_sets import SETS
from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.results_index import ResultLine, ResultsIndex
from flameche_reproduction.table_rows import KS
from flameche_reproduction.tables.ablations import LEADS
from flameche_reproduction.tables.cells import Sheet, ari, cell, dbi, long_table, mean, paired_table, percent
from flameche_reproduction.tables.document import RenderedTable, sentences

DASHES = {"flameche-robust": "--", "flameche": "-."}  # paper mode has a line


def draw_curves(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Accuracy per round, the mean of the seeds."""
    sheet = Sheet.of(entry, choice, stored)
    table = paired_table(sheet, "missing", ("ari", "accuracy"), sheet.settings[0] if sheet.settings else None)
    lead = sentences(
        [
            sheet.scale(),
            LEADS["missing"],
            "The paper has the curves as a picture only.",
            sheet.provenance(),
            *sheet.notes(),
        ]
    )
    return RenderedTable(
        entry.name,
        entry.title,
        lead,
        [("After the last round", table)],
        long_table(sheet, "missing", ("ari", "accuracy")),
        curves_figure(sheet),
        runs=sheet.counted,
    )


@styled
def curves_figure(sheet: Sheet) -> Figure | None:
    """A line for each method, with a band from the lowest to the highest seed."""
    figure, axes = new_axes(3.4)
    handles: list[Line2D] = []
    for row in sheet.rows:
        curves = [line["accuracy_per_round"] for line in sheet.get(row=row) if line.get("accuracy_per_round")]
        if not curves:
            continue
        rounds = min(len(curve) for curve in curves)
        values = 100 * np.array([curve[:rounds] for curve in curves], np.float64)
        x = np.arange(1, rounds + 1)
        colour, dash = method_colour(row.partition("-")[0]), DASHES.get(row, "-")
        if len(values) > 1:
            axes.fill_between(
                x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0
            )
        (line,) = axes.plot(
            x,
            values.mean(axis=0),
            dash,
            color=colour,
            linewidth=1.6,
            label=sheet.title(row),
        )
        handles.append(line)
    if not handles:
        return None
    axes.set_ylabel("accuracy (%)")
    rounds_axis(axes)
    axes.grid(axis="y")
    legend(figure, handles)
    return figure


def draw_dbi(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """DBI, ARI and accuracy over K, a panel for each set and setting."""
    sheet = Sheet.of(entry, choice, stored)
    columns = [Column("Data", "dataset"), Column("Setting", "setting"), Column("K", "k", numeric=True)]
    for title, key in (("DBI", "dbi"), ("ARI", "ari"), ("accuracy %", "accuracy")):
        columns.append(Column(title, key, numeric=True, spread=True))
    rows, panels = [], []
    for dataset in sheet.datasets:
        for setting in sheet.settings:
            points = [_point(sheet, dataset, setting, k) for k in KS]
            panels.append((f"{SETS[dataset].title} {setting}", points))
            for k, (clustered, played) in zip(KS, points, strict=True):
                cells = [Cell(sheet.column(dataset)), Cell(setting), Cell(str(k), k)]
                for lines, pick in ((clustered, dbi), (clustered, ari), (played, percent)):
                    cells.append(cell(lines, pick, single=sheet.single(dataset)))
                rows.append(tuple(cells))
    table = Table(tuple(columns), tuple(rows))
    lead = (
        "Paper mode with K from 2 to 8: Davies-Bouldin index (lower is better) and ARI of clusterings "
        "without training, means over the seeds; accuracy after training, seed 0 unless more were run. "
        "The paper has this as a picture only."
    )
    known = [panel for panel in panels if any(clustered for clustered, _ in panel[1])]
    told = sentences([sheet.scale(), lead, _agreement(known), sheet.provenance(), *sheet.notes()])
    figure = dbi_figure(known) if known else None
    return RenderedTable(entry.name, entry.title, told, [("", table)], table, figure, runs=sheet.counted)


Point = tuple[list[ResultLine], list[ResultLine]]  # clusterings, and trained runs
Panel = tuple[str, list[Point]]


def _point(sheet: Sheet, dataset: str, setting: str, k: int) -> Point:
    return sheet.get(dataset, f"k-{k}", setting), sheet.get(dataset, f"k-{k}-trained", setting)


def _agreement(panels: Sequence[Panel]) -> str:
    """Count the panels in which the lowest DBI is at the best ARI."""
    right = whole = 0
    for _, points in panels:
        scores = [(mean(clustered, dbi), mean(clustered, ari)) for clustered, _ in points]
        if all(score[0] is not None and score[1] is not None for score in scores):
            whole += 1
            best = min(range(len(scores)), key=lambda i: scores[i][0] or 0.0)
            right += scores[best][1] == max(score[1] or 0.0 for score in scores)
    return f"In {right} of {whole} panels the lowest DBI is at the highest ARI." if whole else ""


@styled
def dbi_figure(panels: Sequence[Panel]) -> Figure:
    """Small panels: DBI against the left axis, ARI and accuracy (as a share) against the right one."""
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(WIDTH * 1.6, 0.5 + 1.65 * down), layout="constrained")
    lines = {
        "DBI (left)": (INK, "-", "s"),
        "ARI (right)": (METHOD_COLOURS["flameche"], "-", "o"),
        "accuracy, share (right)": (METHOD_COLOURS["fedavg"], "--", "^"),
    }
    for place, (title, points) in enumerate(panels):
        axes = figure.add_subplot(down, across, place + 1)
        other = axes.twinx()
        accuracy = [None if (a := mean(played, percent)) is None else a / 100 for _, played in points]
        scores = ([mean(c, dbi) for c, _ in points], [mean(c, ari) for c, _ in points], accuracy)
        for where, values, (colour, dash, marker) in zip(
            (axes, other, other), scores, lines.values(), strict=True
        ):
            known = [(k, value) for k, value in zip(KS, values, strict=True) if value is not None]
            if known:
                x, y = zip(*known, strict=True)
                where.plot(x, y, dash, color=colour, marker=marker, markersize=3, linewidth=1.2)
        axes.set_title(title, fontsize=8.6, loc="left")
        axes.set_ylim(0, 1.1 * axes.dataLim.y1 if axes.lines else None)
        other.set_ylim(-0.03, 1.05)
        other.spines["right"].set_visible(True)
        axes.tick_params(labelsize=7.5)
        other.tick_params(labelsize=7.5)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if place + across >= len(panels):
            axes.set_xlabel("K", fontsize=8.6)
    legend(
        figure,
        [
            Line2D([], [], color=c, linestyle="--" if d == "--" else "-", marker=m, markersize=4, label=name)
            for name, (c, d, m) in lines.items()
        ],
    )
    return figure
