"""Names in figures: none is cut, none leaves the figure, and the curves keep their room."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from synthetic_runs import write_run

from flameche.report.canvas import METHOD_COLOURS, dot, folded, legend, new_axes, styled, to_pdf, to_svg
from flameche.report.figures import client_accuracy, confusion, curves, raster
from flameche.report.matching import Clusters
from flameche.report.runs import Run, find_runs
from flameche.report.tables import Series, summary_of

LONG = "FLAMECHE (method.clusters=4, method.empty=participants, method.mode=paper), bfv + secagg updates"
NAMES = {
    "short": ["FLAMECHE", "FedAvg", "Oracle"],
    "as many as methods": list(METHOD_COLOURS),
    "one long": ["Oracle", LONG, "FedAvg"],
    "many long": [f"{LONG} {turn}" for turn in range(12)],
    "no spaces": ["x" * 130, "_hidden"],
}


@styled
def drawn(names: list[str]) -> Figure:
    figure, axes = new_axes(3.2)
    axes.plot([1, 2], [3, 4])
    axes.set_xlabel("round")
    legend(figure, [dot("#777777", "o", name) for name in names])
    figure.draw_without_rendering()
    return figure


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_every_name_is_whole_and_inside_and_the_curves_keep_their_room(names: list[str]) -> None:
    figure = drawn(names)
    (own,) = figure.legends
    assert [squeezed(text.get_text()) for text in own.get_texts()] == [squeezed(name) for name in names]
    assert all(text.get_visible() for text in own.get_texts())
    box, page = own.get_window_extent(), figure.bbox
    assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
    assert figure.axes[0].get_window_extent().height / figure.dpi > 1.4  # inches
    written = unescape("".join(re.findall(r">([^<>]+)</t(?:ext|span)>", to_svg(figure))))
    assert all(squeezed(name) in squeezed(written) for name in names)
    assert to_pdf(figure).startswith(b"%PDF")


@pytest.mark.parametrize(("text", "letters"), [(LONG, 53), (LONG, 20), ("x" * 130, 6), ("", 6), ("_a", 9)])
def test_folding_keeps_every_letter_and_the_width(text: str, letters: int) -> None:
    lines = folded(text, letters).splitlines()
    assert squeezed("".join(lines)) == squeezed(text)
    assert all(len(line) <= letters for line in lines) and not folded(text, letters).startswith("_")


def test_groups_with_long_names_are_named_in_full_beside_their_axes(tmp_path: Path) -> None:
    write_run(tmp_path, "flameche", 0)
    (run,) = find_runs(tmp_path)
    assert run.clients is not None
    names = [f"hospital {n} of the north-western region, images inverted and turned" for n in range(4)]
    run.clients["group"] = [names[group] for group in run.clients["group"]]
    clusters = Clusters(run)
    for figure, axis in (
        (confusion(clusters), "y"),
        (client_accuracy(clusters), "x"),
        (raster(run, clusters), "y"),
    ):
        assert figure is not None
        figure.draw_without_rendering()
        axes = figure.axes[0]
        labels = axes.get_xticklabels() if axis == "x" else axes.get_yticklabels()
        assert {squeezed(label.get_text()) for label in labels} == {squeezed(name) for name in names}
        assert axes.get_window_extent().width / figure.dpi > 2


def test_the_former_default_mode_is_dashed_in_every_figure_beside_paper_mode_or_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "flameche", 0)
    (run,) = find_runs(tmp_path)

    def series(*names: str) -> list[Series]:
        return [Series((_called(run, name),), name) for name in names]

    def dashes(*names: str) -> list[str]:
        figure = curves(series(*names), "accuracy")
        assert figure is not None
        return [str(line.get_linestyle()) for line in figure.axes[0].lines]

    paper, robust = "FLAMECHE, paper mode", "FLAMECHE, former default mode"
    assert dashes(paper, robust) == ["-", "--"] and dashes(robust) == ["--"] and dashes(paper) == ["-"]
    assert dashes(robust, paper) == ["--", "-"]
    four = dashes(paper, f"{paper} (b)", robust, f"{robust} (b)")
    assert len(set(four)) == 4 and four[2] == "--"


def _called(run: Run, name: str) -> Run:
    return replace(run, summary=replace(summary_of(run), label=name))
