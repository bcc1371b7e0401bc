"""The style of figures: colours that can be told apart, text that can be read, labels that are never cut."""

import itertools
import re
from dataclasses import replace
from html import unescape
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from synthetic_runs import write_run

from flameche.methods import METHODS
from flameche.report.figures import Clusters, client_accuracy, confusion, curves, raster
from flameche.report.runs import Run, find_runs
from flameche.report.style import (
    METHOD_COLOURS,
    inline_svg,
    legend,
    method_colour,
    new_axes,
    point_handle,
    styled,
    to_pdf,
    to_svg,
    wrap_label,
)
from flameche.report.tables import Series, summary_of

# Linear RGB as seen without one kind of cones (Machado, Oliveira, Fernandes 2009, severity 1).
SIGHTS = {
    "full": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
CSS = resources.files("flameche.report").joinpath("web", "page.css").read_text(encoding="utf-8")


def linear(colour: str) -> NDArray[np.float64]:
    digits = colour.removeprefix("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    rgb = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(light: NDArray[np.float64]) -> NDArray[np.float64]:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(light, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def themes() -> dict[str, dict[str, str]]:
    """The page's colours, light and dark, as its style has them."""
    light = re.search(r":root \{(.*?)\}", CSS, re.DOTALL)
    dark = re.search(r":root\[data-theme=dark\] \{(.*?)\}", CSS, re.DOTALL)
    assert light and dark
    return {
        name: dict(re.findall(r"--(\w+): (#\w+);", found[1]))
        for name, found in (("light", light), ("dark", dark))
    }


def test_every_method_has_a_colour_of_its_own() -> None:
    assert set(METHODS) == set(METHOD_COLOURS)
    assert len({method_colour(kind) for kind in METHODS}) == len(METHODS)


@pytest.mark.parametrize("sight", SIGHTS)
def test_no_two_methods_look_alike(sight: str) -> None:
    seen = {kind: lab(SIGHTS[sight] @ linear(colour)) for kind, colour in METHOD_COLOURS.items()}
    pairs = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in itertools.combinations(seen, 2)}
    alike = {pair: round(far) for pair, far in pairs.items() if far < 15}  # about 2 is the least that is seen
    assert not alike


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_and_colours_seen(theme: str) -> None:
    colours = themes()[theme]
    for ground, ink in itertools.product(
        ("paper", "raised", "faint"), ("ink", "soft", "accent", "up", "down")
    ):
        assert contrast(colours[ground], colours[ink]) >= 4.5, (ground, ink)
    for kind, colour in METHOD_COLOURS.items():
        assert contrast(colours["paper"], colour) >= 2, kind


def test_the_system_and_the_switch_give_the_same_dark() -> None:
    chosen, asked = re.findall(r"(--paper: #14161a.*?color-scheme: dark;)", CSS, re.DOTALL)
    assert chosen.split() == asked.split()


def test_shortened_paths_are_the_same_to_a_tenth() -> None:
    rng = np.random.default_rng(3)
    points = np.cumsum(rng.normal(size=(200, 2)), axis=0) + 100
    path = " ".join(f"{'M' if n == 0 else 'L'} {x:.6f} {y:.6f}" for n, (x, y) in enumerate(points))
    short = inline_svg(f'<svg viewBox="0 0 1 1"><path d="{path} z"/></svg>', "f", "a line")
    (found,) = re.findall(r'd="([^"]*)"', short)
    assert found.endswith("z") and len(found) < len(path) / 2.5
    steps = re.findall(r"([Ml])(-?[\d.]+) ?(-?[\d.]+)", found)
    here, walked = np.zeros(2), []
    for letter, x, y in steps:
        here = np.array([float(x), float(y)]) + (here if letter == "l" else 0)
        walked.append(here)
    assert np.abs(np.array(walked) - points).max() < 0.0501


def test_other_paths_keep_their_commands() -> None:
    svg = '<svg viewBox="0 0 1 1"><path d="M 0 3 C 0.795609 3 1.55874 2.683901 2.12132 2.12132 z"/></svg>'
    assert 'd="M 0 3 C .8 3 1.6 2.7 2.1 2.1 z"' in inline_svg(svg, "f", "a mark")


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
    legend(figure, [point_handle("#777777", "o", name) for name in names])
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
def test_wrapping_keeps_every_letter_and_the_width(text: str, letters: int) -> None:
    lines = wrap_label(text, letters).splitlines()
    assert squeezed("".join(lines)) == squeezed(text)
    assert all(len(line) <= letters for line in lines) and not wrap_label(text, letters).startswith("_")


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
