"""The pictures of a report: curves over rounds, and what became of the clients of one run.

Every function returns a Figure, or None when the run has nothing to draw.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flameche.report.canvas import (
    CLUSTER_COLOURS,
    DASHES,
    INK,
    MARKER_SCALE,
    MARKERS,
    PAPER,
    UNSEEN,
    bare,
    dot,
    folded,
    legend,
    method_colour,
    new_axes,
    rounds_axis,
    styled,
)
from flameche.report.matching import Clusters
from flameche.report.runs import Run
from flameche.report.tables import Series, summary_of

SIDE = 20  # letters of a group's name beside an axis, before it goes on below
MOST_CLIENTS = 200  # rows of the assignment raster that can still be told apart


@styled
def curves(series: Sequence[Series], what: Literal["accuracy", "ari"]) -> Figure | None:
    """Accuracy or ARI over rounds: the mean of the seeds, and a band from the lowest to the highest."""
    figure, axes = new_axes(3.2)
    handles: list[Line2D] = []
    taken: dict[str, list[str]] = {}
    for one in series:
        x, values = _over_rounds(one, what)
        if not len(x):
            continue
        method = one.first.method
        colour, dash = method_colour(method), _dash(one, taken.setdefault(method, []))
        low, high, mean = np.nanmin(values, axis=0), np.nanmax(values, axis=0), np.nanmean(values, axis=0)
        front = 4 if method == "flameche" else 3
        if len(values) > 1:
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=front - 2)
        (line,) = axes.plot(
            x, mean, dash, color=colour, linewidth=2.2 if method == "flameche" else 1.6,
            marker="o" if len(x) < 4 else "", markersize=4, zorder=front,
            label=_with_scheme(one, series),
        )  # fmt: skip
        handles.append(line)
    if not handles:
        return None
    axes.set_ylabel("accuracy (%)" if what == "accuracy" else "ARI (1 = perfect)")
    if what == "ari":
        axes.set_ylim(min(-0.03, axes.get_ylim()[0]), 1.03)
    rounds_axis(axes)
    axes.grid(axis="y")
    legend(figure, handles)
    return figure


@styled
def cluster_map(clusters: Clusters, by: Literal["group", "cluster"]) -> Figure | None:
    """Each client's metadata in two dimensions; shapes are true groups, colours groups or found clusters."""
    frame = clusters.frame
    if not len(frame):
        return None
    x, y = (
        pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64) for name in ("map_x", "map_y")
    )
    shown = np.isfinite(x) & np.isfinite(y)
    if not shown.any():
        return None
    figure, axes = new_axes(3.9)
    group, found = np.array(clusters.groups), np.array(clusters.assignment)
    size = 46 if shown.sum() <= 60 else 32
    for index in range(len(clusters.group_names)):
        marker = MARKERS[index % len(MARKERS)]
        mine = shown & (group == index)
        colours = [
            CLUSTER_COLOURS[index % len(CLUSTER_COLOURS)] if by == "group" else clusters.colour(int(cluster))
            for cluster in found[mine]
        ]
        axes.scatter(
            x[mine], y[mine], size * MARKER_SCALE.get(marker, 1.0), colours, marker=marker,
            edgecolors=PAPER, linewidths=0.7, alpha=0.92,
        )  # fmt: skip
    axes.margins(0.08)
    axes.set_xlabel("metadata, first direction (no unit)")
    axes.set_ylabel("metadata, second direction (no unit)")
    axes.set_xticks([])
    axes.set_yticks([])
    if by == "group":
        handles: list[Line2D] = [
            dot(CLUSTER_COLOURS[index % len(CLUSTER_COLOURS)], MARKERS[index % len(MARKERS)], f"group {name}")
            for index, name in enumerate(clusters.group_names)
        ]
    else:
        present = set(clusters.assignment)
        handles = [dot(clusters.colour(c), "o", f"cluster {c}") for c in clusters.order if c in present]
        if -1 in present:
            handles.append(dot(UNSEEN, "o", "never seen"))
    legend(figure, handles)
    return figure


@styled
def confusion(clusters: Clusters) -> Figure | None:
    """How many clients of each true group ended in each cluster; matching pairs lie on the diagonal."""
    if not clusters.assignment:
        return None
    columns = [cluster for cluster in clusters.order if cluster in set(clusters.assignment)]
    if -1 in clusters.assignment:
        columns.append(-1)
    names = clusters.group_names
    counts = np.zeros((len(names), len(columns)), dtype=np.int64)
    for group, cluster in zip(clusters.groups, clusters.assignment, strict=True):
        counts[group, columns.index(cluster)] += 1
    figure, axes = new_axes(max(3.2, 1.2 + 0.32 * len(names)))
    for row, column in np.ndindex(counts.shape):
        count = int(counts[row, column])
        share = count / max(int(counts[row].sum()), 1)
        shade = to_rgba(clusters.colour(columns[column]), 0.1 + 0.4 * share) if count else to_rgba(INK, 0.035)
        axes.add_patch(Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, linewidth=0, facecolor=shade))
        axes.text(column, row, str(count), ha="center", va="center", alpha=1.0 if count else 0.4)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), ["not seen" if c < 0 else str(c) for c in columns])
    axes.set_yticks(range(len(names)), [folded(name, SIDE) for name in names])
    axes.set_xlabel("found cluster (clients in each cell)")
    axes.set_ylabel("true group")
    bare(axes)
    return figure


@styled
def sizes(run: Run, clusters: Clusters) -> Figure | None:
    """Clients per cluster over the rounds, stacked; dotted lines where the method clustered anew."""
    rounds = [r for r in run.rounds if r.sizes]
    if not rounds or not clusters.several:
        return None
    x = np.array([r.round for r in rounds], dtype=np.float64)
    widest = max(len(r.sizes) for r in rounds)
    counts = np.array([[*r.sizes, *[0] * (widest - len(r.sizes))] for r in rounds], dtype=np.float64)
    edges = np.append(x - 0.5, x[-1] + 0.5)
    figure, axes = new_axes(3.2)
    floor = np.zeros(len(x))
    handles: list[Patch | Line2D] = []
    for cluster in (c for c in clusters.order if c < widest):
        top = floor + counts[:, cluster]
        colour = clusters.colour(cluster)
        axes.stairs(top, edges, baseline=floor, fill=True, color=to_rgba(colour, 0.8), linewidth=0)
        handles.append(Patch(facecolor=to_rgba(colour, 0.8), label=f"cluster {cluster}"))
        floor = top
    again = [r.round for r in rounds if r.reclustered]
    if again:
        mark: dict[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1.1}
        for at in again:
            axes.axvline(at, **mark)
        handles.append(Line2D([], [], label="reclustered", **mark))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(float(floor.max()), 1.0))
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    rounds_axis(axes)
    legend(figure, handles)
    return figure


@styled
def raster(run: Run, clusters: Clusters) -> Figure | None:
    """Each client's cluster in each round, clients ordered by true group; empty until first seen."""
    count = len(clusters.groups)
    rounds = [r for r in run.rounds if len(r.assignment) == count]
    if not rounds or not 0 < count <= MOST_CLIENTS or not clusters.several:
        return None
    order = np.argsort(np.array(clusters.groups), kind="stable")
    pixels: NDArray[np.uint8] = np.zeros((count, len(rounds), 4), dtype=np.uint8)
    for column, r in enumerate(rounds):
        for row, client in enumerate(order):
            cluster = r.assignment[client]
            if cluster >= 0:
                pixels[row, column] = [round(255 * part) for part in to_rgba(clusters.colour(cluster), 0.9)]
    figure, axes = new_axes(3.2 if count <= 100 else 4.2)
    extent = (rounds[0].round - 0.5, rounds[-1].round + 0.5, count - 0.5, -0.5)
    axes.imshow(pixels, aspect="auto", interpolation="none", extent=extent)
    members = np.bincount(clusters.groups, minlength=len(clusters.group_names))
    ends = np.cumsum(members)
    for end in ends[:-1]:
        axes.axhline(float(end) - 0.5, color=INK, linewidth=0.9)
    axes.set_yticks(
        (ends - members / 2 - 0.5).tolist(), [folded(name, SIDE) for name in clusters.group_names]
    )
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("clients, by true group" if clusters.known else "clients")
    rounds_axis(axes)
    legend(
        figure,
        [Patch(facecolor=to_rgba(clusters.colour(c), 0.9), label=f"cluster {c}") for c in clusters.order],
    )
    return figure


@styled
def client_accuracy(clusters: Clusters) -> Figure | None:
    """Final accuracy of every client on its test set, by true group; the bar is the group's mean."""
    if not len(clusters.frame):
        return None
    accuracy = pd.to_numeric(clusters.frame["accuracy"], errors="coerce").to_numpy(dtype=np.float64) * 100
    if not np.isfinite(accuracy).any():
        return None
    figure, axes = new_axes(3.2)
    group = np.array(clusters.groups)
    for index in range(len(clusters.group_names)):
        mine = np.flatnonzero((group == index) & np.isfinite(accuracy))
        if not len(mine):
            continue
        marker = MARKERS[index % len(MARKERS)]
        spread = (np.arange(len(mine)) * 0.618) % 1 - 0.5  # golden steps: spaced, the same in every report
        colours = [
            clusters.colour(clusters.assignment[i]) if clusters.several else CLUSTER_COLOURS[0] for i in mine
        ]
        axes.scatter(
            index + 0.5 * spread, accuracy[mine], 28 * MARKER_SCALE.get(marker, 1.0), colours, marker=marker,
            edgecolors=PAPER, linewidths=0.6, alpha=0.92, zorder=5,
        )  # fmt: skip
        mean = float(accuracy[mine].mean())
        axes.plot([index - 0.36, index + 0.36], [mean, mean], color=INK, linewidth=1.4, zorder=4)
    below = max(6, 48 // len(clusters.group_names))  # letters between two ticks
    axes.set_xticks(range(len(clusters.group_names)), [folded(name, below) for name in clusters.group_names])
    axes.set_xlim(-0.6, len(clusters.group_names) - 0.4)
    low, high = axes.get_ylim()
    room = max(0.0, 5 - (high - low)) / 2  # never magnify differences below a few percent
    axes.set_ylim(low - room, high + room)
    axes.set_xlabel("true group" if clusters.known else "all clients")
    axes.set_ylabel("final accuracy (%)")
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    if clusters.several:
        present = set(clusters.assignment)
        legend(figure, [dot(clusters.colour(c), "o", f"cluster {c}") for c in clusters.order if c in present])
    return figure


def cluster_figures(run: Run) -> Mapping[str, tuple[str, Figure]]:
    """The figures of one run by short name, each with its caption."""
    clusters = Clusters(run)
    drawn: dict[str, tuple[str, Figure | None]] = {}
    if clusters.several and clusters.known:
        drawn["map-groups"] = (
            "Clients by their metadata, coloured by true group. Shapes are true groups.",
            cluster_map(clusters, "group"),
        )
        drawn["confusion"] = ("True groups and found clusters, in clients.", confusion(clusters))
    if clusters.several:
        drawn["map-clusters"] = (
            "The same clients, coloured by found cluster, in the colour of the best matching group.",
            cluster_map(clusters, "cluster"),
        )
    drawn["client-accuracy"] = (
        "Final accuracy of each client on its test set. The bar is the mean"
        f"{' of the group' if clusters.known else ''}.",
        client_accuracy(clusters),
    )
    drawn["sizes"] = ("Clients per cluster over the rounds.", sizes(run, clusters))
    drawn["assignments"] = (
        "Each client's cluster in each round. Blank: not yet seen.",
        raster(run, clusters),
    )
    return {name: (caption, figure) for name, (caption, figure) in drawn.items() if figure is not None}


def _over_rounds(series: Series, what: Literal["accuracy", "ari"]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rounds that were measured [R], and values of every seed [S R], NaN where a seed has none."""
    lines = []
    for run in series.runs:
        if run.rounds:
            points = {r.round: 100 * r.accuracy if what == "accuracy" else r.ari for r in run.rounds}
        elif what == "accuracy":
            points = {i: 100 * value for i, value in enumerate(summary_of(run).accuracy_per_round, 1)}
        else:
            points = {}
        lines.append({at: value for at, value in points.items() if math.isfinite(value)})
    x = sorted({at for line in lines for at in line})
    lines = [line for line in lines if line]
    return np.array(x), np.array([[line.get(at, math.nan) for at in x] for line in lines])


def _dash(one: Series, taken: list[str]) -> str:
    """Dashes that no other line of the method has, while some are left; the former default has its own."""
    dashed = one.first.method == "oracle" or "former default" in one.name
    order = DASHES[1:] + DASHES[:1] if dashed else (DASHES[0], *DASHES[2:], DASHES[1])
    free = [dash for dash in order if dash not in taken]
    taken.append(free[0] if free else order[len(taken) % len(order)])
    return taken[-1]


def _with_scheme(one: Series, series: Sequence[Series]) -> str:
    """Name the scheme too when the same method ran under several."""
    rivals = {other.first.scheme for other in series if other.first.label == one.first.label}
    return f"{one.name}, {one.first.scheme}" if len(rivals) > 1 else one.name
