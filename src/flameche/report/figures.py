"""Figures with matplotlib: curves over rounds, the clusters of one run, the choice of K.

The functions return None where a run has nothing to draw.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from flameche.report.runs import Run
from flameche.report.style import (
    CLUSTER_COLOURS,
    DASHES,
    INK,
    MARKER_SCALE,
    MARKERS,
    METHOD_COLOURS,
    PAPER,
    UNSEEN,
    WIDTH,
    hide_frame,
    legend,
    method_colour,
    new_axes,
    point_handle,
    rounds_axis,
    styled,
    to_pdf,
    to_svg,
    wrap_label,
)
from flameche.report.tables import Series, summary_of

NAME_WIDTH = 20  # characters of a group's name on a vertical axis before it is wrapped
OTHER_CRITERIA = (("dbi", "DBI, lower is better"), ("ch", "CH, higher is better"))
MOST_CLIENTS = 200  # above this, the rows of `raster` cannot be told apart
UNKNOWN = "unknown"  # the name of the group of clients whose group is not known


def match_clusters(groups: Sequence[int], clusters: Sequence[int]) -> dict[int, int]:
    """Match clusters to the groups that they overlap most, by the Hungarian algorithm.

    Args:
        groups: the true group of each client.
        clusters: the cluster of each client, -1 for a client without one.

    Returns:
        for each cluster the index of its group; clusters beyond the number of groups get the next indices.
    """
    group_ids = sorted(set(groups))
    cluster_ids = sorted({cluster for cluster in clusters if cluster >= 0})
    overlap = np.zeros((len(group_ids), len(cluster_ids)), dtype=np.int64)
    for group, cluster in zip(groups, clusters, strict=True):
        if cluster >= 0:
            overlap[group_ids.index(group), cluster_ids.index(cluster)] += 1
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    matched = {cluster_ids[column]: int(row) for row, column in zip(rows, columns, strict=True)}
    for index, cluster in enumerate((c for c in cluster_ids if c not in matched), len(group_ids)):
        matched[cluster] = index
    return matched


class Clusters:
    """The groups, the final clusters and the colours of one run's clients.

    Attributes:
        frame: the rows of `clients.parquet`, by the clients' ids.
        group_names: the names of the groups, sorted.
        groups: for each client the index of its group in `group_names`.
        assignment: for each client its cluster at the end, -1 for none.
        index: for each cluster that ever had clients the index of the group that it matches.
        order: the clusters, in the order of `index`.
        known: whether the true groups are known; on a network they are not.
    """

    def __init__(self, run: Run) -> None:
        frame = pd.DataFrame() if run.clients is None else run.clients.sort_values("client", kind="stable")
        self.frame = frame
        raw = frame["group"].tolist() if len(frame) else []
        names = sorted({_group_name(value) for value in raw}, key=lambda name: (len(name), name))
        self.group_names = names
        self.groups = [names.index(_group_name(value)) for value in raw]
        self.assignment = [_cluster_number(value) for value in frame["assignment"]] if len(frame) else []
        self.index = match_clusters(self.groups, self.assignment) if len(frame) else {}
        ever = {
            cluster for r in run.rounds for cluster in (*range(len(r.sizes)), *r.assignment) if cluster >= 0
        }
        for cluster in sorted(ever - set(self.index)):
            self.index[cluster] = max((*self.index.values(), len(names) - 1), default=-1) + 1
        self.known = any(name != UNKNOWN for name in names)
        self.order = sorted(self.index, key=lambda cluster: self.index[cluster])

    @property
    def several(self) -> bool:
        """Whether there are several clusters; a method with one model for all clients has one."""
        return len(self.index) > 1

    def colour(self, cluster: int) -> str:
        """Return the colour of a cluster: that of the group which it matches."""
        return UNSEEN if cluster < 0 else CLUSTER_COLOURS[self.index[cluster] % len(CLUSTER_COLOURS)]


def _group_name(value: object) -> str:
    """Convert a stored group to its name: "2" for 2.0, UNKNOWN for a missing one or -1."""
    if value is None or value == -1 or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _cluster_number(value: object) -> int:
    return int(value) if isinstance(value, int | float | np.number) and math.isfinite(value) else -1


@styled
def curves(series: Sequence[Series], what: Literal["accuracy", "ari"]) -> Figure | None:
    """Draw accuracy or ARI over rounds: the mean of the seeds, and a band from the lowest to the highest."""
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
    """Draw each client's metadata in two dimensions; shapes show true groups, colours groups or clusters."""
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
            point_handle(
                CLUSTER_COLOURS[index % len(CLUSTER_COLOURS)], MARKERS[index % len(MARKERS)], f"group {name}"
            )
            for index, name in enumerate(clusters.group_names)
        ]
    else:
        present = set(clusters.assignment)
        handles = [
            point_handle(clusters.colour(c), "o", f"cluster {c}") for c in clusters.order if c in present
        ]
        if -1 in present:
            handles.append(point_handle(UNSEEN, "o", "never seen"))
    legend(figure, handles)
    return figure


@styled
def confusion(clusters: Clusters) -> Figure | None:
    """Draw how many clients of each true group are in each cluster at the end; matched pairs are diagonal."""
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
    axes.set_yticks(range(len(names)), [wrap_label(name, NAME_WIDTH) for name in names])
    axes.set_xlabel("found cluster (clients in each cell)")
    axes.set_ylabel("true group")
    hide_frame(axes)
    return figure


@styled
def sizes(run: Run, clusters: Clusters) -> Figure | None:
    """Draw the clients per cluster over the rounds, stacked, with dotted lines at reclusterings."""
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
    """Draw each client's cluster in each round, clients by true group; blank until a client is first seen."""
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
        (ends - members / 2 - 0.5).tolist(), [wrap_label(name, NAME_WIDTH) for name in clusters.group_names]
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
    """Draw the final accuracy of every client on its test set, by true group; the bar is the group's mean."""
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
        spread = (
            np.arange(len(mine)) * 0.618
        ) % 1 - 0.5  # multiples of the golden ratio: evenly spread, the same in every report
        colours = [
            clusters.colour(clusters.assignment[i]) if clusters.several else CLUSTER_COLOURS[0] for i in mine
        ]
        axes.scatter(
            index + 0.5 * spread, accuracy[mine], 28 * MARKER_SCALE.get(marker, 1.0), colours, marker=marker,
            edgecolors=PAPER, linewidths=0.6, alpha=0.92, zorder=5,
        )  # fmt: skip
        mean = float(accuracy[mine].mean())
        axes.plot([index - 0.36, index + 0.36], [mean, mean], color=INK, linewidth=1.4, zorder=4)
    below = max(6, 48 // len(clusters.group_names))  # characters between two ticks
    axes.set_xticks(
        range(len(clusters.group_names)), [wrap_label(name, below) for name in clusters.group_names]
    )
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
        legend(
            figure,
            [point_handle(clusters.colour(c), "o", f"cluster {c}") for c in clusters.order if c in present],
        )
    return figure


def cluster_figures(run: Run) -> Mapping[str, tuple[str, Figure]]:
    """Draw all figures of one run; return them by short name, each with its caption."""
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
    """Return the rounds that were measured [R] and the values of every seed [S R], NaN where one has none."""
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
    """Choose dashes that no other line of the method has, while there are some; `taken` lists the used ones.

    Oracle and the former default mode start with dashed lines.
    """
    dashed = one.first.method == "oracle" or "former default" in one.name
    order = DASHES[1:] + DASHES[:1] if dashed else (DASHES[0], *DASHES[2:], DASHES[1])
    free = [dash for dash in order if dash not in taken]
    taken.append(free[0] if free else order[len(taken) % len(order)])
    return taken[-1]


def _with_scheme(one: Series, series: Sequence[Series]) -> str:
    """Return the series' name, with its scheme if the same method ran under several."""
    rivals = {other.first.scheme for other in series if other.first.label == one.first.label}
    return f"{one.name}, {one.first.scheme}" if len(rivals) > 1 else one.name


def write_selection(found: dict[str, Any], stem: Path) -> Path:
    """Draw how K was chosen, as an SVG and a PDF with the name `stem`; return the SVG's path."""
    figure = selection_figure(found)
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_name(stem.name + ".pdf").write_bytes(to_pdf(figure))
    page = stem.with_name(stem.name + ".svg")
    page.write_text(to_svg(figure))
    return page


@styled
def selection_figure(found: dict[str, Any]) -> Figure:
    """Draw the significance of the split into K clusters for each K, and below it the other criteria.

    The significance says by how many standard deviations the variance between the two halves of the split
    cluster is above that of Gaussian data. It is divided by what is needed: from 1 on, they are two clusters.
    """
    rows = found["candidates"]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, len(OTHER_CRITERIA), height_ratios=(1.5, 1))
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
    axes.set_ylabel("split / needed; ≥ 1: two clusters")
    axes.set_title(
        f"{found['dataset']} {found['setting']}, seed {found['seed']}: K = {found['k']}",
        fontsize=9.8,
        loc="left",
    )
    for column, (key, title) in enumerate(OTHER_CRITERIA):
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
