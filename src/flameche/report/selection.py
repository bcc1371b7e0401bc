"""Draws how the number of clusters was chosen: how far apart clusters are, and other criteria."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flameche.errors import BadInput
from flameche.report.canvas import CLUSTER_COLOURS, INK, METHOD_COLOURS, WIDTH, styled, to_pdf, to_svg

OTHERS = (
    ("dbi", "DBI, lower is better"),
    ("ch", "CH, higher is better"),
)


def prepare_folder(folder: Path) -> None:
    """Make the folder that pictures go to, before the work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be made: {error.strerror or error}") from None


def write_selection(found: dict[str, Any], stem: Path) -> Path:
    """Write the picture of one selection as SVG and PDF; return the SVG."""
    figure = selection_figure(found)
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_name(stem.name + ".pdf").write_bytes(to_pdf(figure))
    page = stem.with_name(stem.name + ".svg")
    page.write_text(to_svg(figure))
    return page


@styled
def selection_figure(found: dict[str, Any]) -> Figure:
    """Show, above, how far apart the halves are of which the K-th cluster is one; below, the rest.

    In standard deviations from what one Gaussian cloud would give, over what it takes to be two clusters.
    """
    rows = found["candidates"]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, len(OTHERS), height_ratios=(1.5, 1))
    axes = figure.add_subplot(grid[0, :])
    judged = [row for row in rows if row["sureness"] is not None]
    levels = [row["sureness"] / row["needed"] for row in judged]
    colour = METHOD_COLOURS["flameche"]
    axes.bar(
        [row["k"] for row in judged],
        levels,
        width=0.62,
        color=[colour if row["kept"] else "#b9b9b9" for row in judged],
    )
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.axhline(0, color=INK, linewidth=0.7)
    for row, level in zip(judged, levels, strict=True):
        up = level >= 0
        axes.annotate(
            f"{row['sureness']:.1f}",
            (row["k"], level),
            textcoords="offset points",
            xytext=(0, 3 if up else -3),
            ha="center",
            va="bottom" if up else "top",
            fontsize=8,
        )
    axes.set_ylim(min(0.0, *levels, 0.0) - 0.5, max(1.0, *levels, 1.0) + 0.5)
    axes.set_xlim(0.4, max(row["k"] for row in rows) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("K")
    axes.set_ylabel("how far apart; 1: two clusters")
    axes.set_title(
        f"{found['dataset']} {found['setting']}, seed {found['seed']}: K = {found['k']}",
        fontsize=9.8,
        loc="left",
    )
    for column, (key, title) in enumerate(OTHERS):
        small = figure.add_subplot(grid[1, column])
        known = [(row["k"], row[key]) for row in rows if row[key] is not None and row[key] == row[key]]
        small.plot(
            [k for k, _ in known], [v for _, v in known], marker="o", markersize=3.5, color=CLUSTER_COLOURS[0]
        )
        best = found["preferred"].get(key)
        if best is not None:
            small.plot(
                [best],
                [dict(known)[best]],
                marker="o",
                markersize=8,
                fillstyle="none",
                color=CLUSTER_COLOURS[1],
            )
        small.set_title(title, fontsize=8.2, loc="left")
        small.set_xlabel("K")
        small.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return figure
