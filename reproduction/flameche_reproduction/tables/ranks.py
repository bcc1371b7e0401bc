"""The paper's figure of aligned ranks over sets, settings and seeds, and the tests that go with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range

from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.style import INK, WIDTH, method_colour, styled
from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.tables.cells import NOT_RUN, Sheet, percent
from flameche_reproduction.tables.document import RenderedTable, sentences

Floats = NDArray[np.float64]
ALPHA = 0.05


@dataclass(frozen=True)
class Test:
    """A statistic and the probability of one as large if all methods were alike."""

    statistic: float
    p: float


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of k methods over n blocks, and what tells them apart."""

    aligned: Floats  # [k]
    plain: Floats  # [k], within blocks
    aligned_test: Test
    friedman: Test
    difference: float  # of mean aligned ranks, from which on two methods differ (Nemenyi, alpha = 0.05)


def rank(values: Floats) -> Ranking:
    """Rank values [n k], larger is better; at least two blocks and two methods."""
    blocks, methods = values.shape
    aligned = aligned_ranks(values)
    within = np.apply_along_axis(rankdata, 1, -values)
    quantile = float(studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    return Ranking(
        aligned.mean(axis=0),
        within.mean(axis=0),
        aligned_test(aligned),
        friedman(within),
        quantile * math.sqrt(methods * (blocks + 1) / 6),
    )


def aligned_ranks(values: Floats) -> Floats:
    """Rank [n k] all values together, 1 for the largest, after each block's mean is taken from its own."""
    # A constant added to a block must change nothing, not even ties: digits that rounding made are cut.
    aligned = np.round(values - values.mean(axis=1, keepdims=True), 9)
    return np.asarray(rankdata(-aligned), np.float64).reshape(values.shape)


def aligned_test(ranks: Floats) -> Test:
    """Test whether the methods' sums of aligned ranks [n k] differ by more than chance."""
    n, k = ranks.shape
    of_methods, of_blocks, total = ranks.sum(axis=0), ranks.sum(axis=1), n * k
    above = (k - 1) * (float((of_methods**2).sum()) - k * n**2 / 4 * (total + 1) ** 2)
    below = total * (total + 1) * (2 * total + 1) / 6 - float((of_blocks**2).sum()) / k
    return _by_chi_square(above / below if below > 0 else 0.0, k)


def friedman(ranks: Floats) -> Test:
    """Friedman's test of ranks within blocks [n k], corrected for ties."""
    n, k = ranks.shape
    spread = float(((ranks.sum(axis=0) - n * (k + 1) / 2) ** 2).sum())
    variance = float((ranks**2).sum()) - n * k * (k + 1) ** 2 / 4
    return _by_chi_square((k - 1) * spread / variance if variance > 0 else 0.0, k)


def indistinct_ranges(mean_ranks: Floats, difference: float) -> list[tuple[int, int]]:
    """Find the longest stretches of methods, in order of rank, that do not differ: (first, last) places."""
    ordered = np.sort(mean_ranks)
    found: list[tuple[int, int]] = []
    for first in range(len(ordered)):
        last = int(np.searchsorted(ordered, ordered[first] + difference, side="left")) - 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def _by_chi_square(statistic: float, methods: int) -> Test:
    return Test(statistic, float(chi2.sf(statistic, methods - 1)))


Block = tuple[str, str, int]  # set, setting, seed


def draw_ranks(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Rank the methods' accuracies over all blocks in which every one of them was run."""
    sheet = Sheet.of(entry, choice, stored)
    runs = {row: len(sheet.get(row=row)) for row in sheet.rows}
    methods = [row for row in sheet.rows if runs[row] > 0 and 2 * runs[row] >= max(runs.values())]
    blocks = _blocks(sheet, methods)
    ranking = _ranked(blocks, methods)
    by_setting = {
        setting: _ranked({b: v for b, v in blocks.items() if b[1] == setting}, methods)
        for setting in sheet.settings
    }
    table = _table(sheet, methods, ranking, by_setting)
    lead = (
        "Accuracies of every set, setting and seed in which all these methods were run (one with less than "
        "half as many runs as others is left out); a block's mean is "
        "taken from its values, and what is left is ranked over all blocks, 1 for the best. Oracle, which "
        "knows the groups, has no rank. Beside it the plain ranks within blocks."
    )
    figure = None
    if ranking is not None:
        figure = rank_figure([sheet.title(row) for row in methods], methods, ranking)
    told = sentences([lead, _verdict(sheet, methods, blocks, ranking), sheet.provenance(), *sheet.notes()])
    return RenderedTable(entry.name, entry.title, told, [("", table)], table, figure, runs=sheet.counted)


def _blocks(sheet: Sheet, methods: Sequence[str]) -> dict[Block, list[float]]:
    """The accuracies of all methods, block by block; blocks that lack one are left out."""
    known: dict[Block, dict[str, float]] = {}
    for run, line in zip(sheet.planned, sheet.lines, strict=True):
        value = None if line is None else percent(line)
        if value is not None:
            known.setdefault((run.dataset, run.setting, run.seed), {})[run.row] = value
    whole = {block: got for block, got in known.items() if got.keys() >= set(methods)}
    return {block: [got[row] for row in methods] for block, got in whole.items()}


def _ranked(blocks: dict[Block, list[float]], methods: Sequence[str]) -> Ranking | None:
    values: Floats = np.array(list(blocks.values()), np.float64)
    return rank(values) if len(blocks) > 1 and len(methods) > 1 else None


def _table(
    sheet: Sheet, methods: Sequence[str], ranking: Ranking | None, by_setting: dict[str, Ranking | None]
) -> Table:
    columns = (
        Column("Method", "method"),
        Column("Aligned rank", "aligned_rank", numeric=True),
        *(Column(setting, f"aligned_rank_{setting}", numeric=True) for setting in by_setting),
        Column("Rank within blocks", "rank", numeric=True),
    )
    runs = {row: len(sheet.get(row=row)) for row in sheet.rows}
    order = list(methods)
    if ranking is not None:
        order = [methods[i] for i in np.argsort(ranking.aligned, kind="stable")]
    rows = []
    for row in [*order, *(row for row in sheet.rows if row not in methods)]:
        cells = [Cell(sheet.title(row))]
        for which in (ranking, *by_setting.values()):
            cells.append(_rank(runs, methods, row, None if which is None else which.aligned, ".1f"))
        cells.append(_rank(runs, methods, row, None if ranking is None else ranking.plain, ".2f"))
        rows.append(tuple(cells))
    return Table(columns, tuple(rows))


def _rank(runs: dict[str, int], methods: Sequence[str], row: str, ranks: Floats | None, form: str) -> Cell:
    if row not in methods:
        return Cell(NOT_RUN if not runs[row] else "too few runs")
    if ranks is None:
        return Cell(ABSENT)
    value = float(ranks[methods.index(row)])
    return Cell(format(value, form), value)


def _verdict(
    sheet: Sheet, methods: Sequence[str], blocks: dict[Block, list[float]], ranking: Ranking | None
) -> str:
    if ranking is None:
        return "Too few blocks have runs of all methods."
    left = f" {len({(r.dataset, r.setting, r.seed) for r in sheet.planned}) - len(blocks)} blocks lack runs."
    aligned, plain = ranking.aligned_test, ranking.friedman
    return (
        f"{len(blocks)} blocks, {len(methods)} methods.{left} Aligned ranks differ with chi² = "
        f"{aligned.statistic:.1f} (p = {aligned.p:.2g}), ranks within blocks with {plain.statistic:.1f} "
        f"(Friedman, p = {plain.p:.2g}). Mean aligned ranks that are closer than {ranking.difference:.1f} "
        f"do not differ at {ALPHA:.0%} (Nemenyi)."
    )


@styled
def rank_figure(titles: Sequence[str], methods: Sequence[str], ranking: Ranking) -> Figure:
    """Mean aligned ranks on a line, the best to the left; bars join methods that do not differ."""
    order = np.argsort(ranking.aligned, kind="stable")
    ranks, count = ranking.aligned[order], len(order)
    half = (count + 1) // 2
    bars = indistinct_ranges(ranking.aligned, ranking.difference)
    deep = 0.5 + 0.16 * len(bars)
    figure = Figure(figsize=(WIDTH * 1.5, 1.3 + 0.27 * half + 0.1 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    low, high = float(ranks[0]), float(ranks[-1])
    room = max(high - low, ranking.difference) * 0.06
    axes.set_xlim(low - room, max(high, low + ranking.difference) + room)
    axes.set_ylim(-deep - 0.4 * half, 0.75)
    axes.axhline(0, color=INK, linewidth=0.8)
    for place, (index, value) in enumerate(zip(order, ranks, strict=True)):
        left = place < half
        step = place if left else count - 1 - place
        depth = -deep - 0.4 * step
        edge = axes.get_xlim()[0 if left else 1]
        kind = methods[index].partition("-")[0]
        axes.plot([value, value, edge], [0, depth, depth], color=method_colour(kind), linewidth=1.1)
        axes.plot([value], [0], marker="o", markersize=4, color=method_colour(kind), zorder=5)
        text = f"{titles[index]}  {value:.0f}"
        axes.annotate(
            text, (edge, depth), xytext=(-4 if left else 4, 0), textcoords="offset points",
            ha="right" if left else "left", va="center", annotation_clip=False,
        )  # fmt: skip
    for level, (first, last) in enumerate(bars):
        depth = -0.22 - 0.16 * level
        axes.plot([ranks[first], ranks[last]], [depth, depth], color=INK, linewidth=3, solid_capstyle="round")
    axes.plot([low, low + ranking.difference], [0.5, 0.5], color=INK, linewidth=1.2, marker="|", markersize=6)
    axes.annotate(
        f"critical difference {ranking.difference:.0f}", (low, 0.5), xytext=(0, 5),
        textcoords="offset points", ha="left", va="bottom", annotation_clip=False,
    )  # fmt: skip
    axes.axis("off")
    return figure
