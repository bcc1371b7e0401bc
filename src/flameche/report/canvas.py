"""How every figure looks and leaves: style, colours, SVG and PDF, without pyplot.

All figures share one width, so that a page can set them side by side on a desk and below each other on a
phone at the same scale. Text and axes are drawn in INK, marker edges in PAPER: `inline_svg` turns these two
into the page's own colours, light or dark.
"""

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

P = ParamSpec("P")
T = TypeVar("T")

INK, PAPER, UNSEEN = "#22262b", "#fffffe", "#9a9a9a"
WIDTH = 4.8  # inches, for every figure
# Of a legend: letters that fit into this width, as many of them as a handle takes; inches of an entry, and of
# each further line in it; entries below each other for which figures have room.
LETTERS, HANDLE, ENTRY, LINE, USUAL = 58, 6, 0.22, 0.18, 3

# Searched so that no two look alike, by full sight or without red, green or blue cones, and that all hold on
# white and on black (tests/report/test_looks.py). FLAMECHE has the warmest.
METHOD_COLOURS = {
    "flameche": "#D55E00", "flameche-soft": "#F19C71", "fedavg": "#8885F3", "oracle": "#A9A9A9",
    "ifca": "#69BAE4", "fesem": "#0B7357", "fedgroup": "#A43797", "stocfl": "#C7B115", "kfed": "#7A6226",
    "pacfl": "#8531EB",
}  # fmt: skip
SPARE_COLOURS = ("#B0413E", "#3F8F8B", "#7A8B2F", "#5C7FB8")
# Tol's bright colours first, then his light and muted ones that hold on black as well as on white.
CLUSTER_COLOURS = (
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE8866", "#44BB99",
    "#8C6BB1", "#999933", "#77AADD", "#FFAABB", "#A6761D", "#BBCC33", "#C05070", "#7F8FA9",
)  # fmt: skip
MARKERS = "os^DvPX*<>ph8dH"
MARKER_SCALE = {
    "^": 1.35,
    "v": 1.35,
    "<": 1.35,
    ">": 1.35,
    "D": 0.85,
    "*": 1.5,
    "d": 1.2,
}  # equal areas, by eye
DASHES = ("-", "--", "-.", ":")

_FONTS = "'DejaVu Sans', sans-serif"
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "flameche",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9.8,
    "axes.labelsize": 9.8,
    "xtick.labelsize": 9.4,
    "ytick.labelsize": 9.4,
    "legend.fontsize": 9.4,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "legend.borderaxespad": 0.2,
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run with this module's style, whatever the caller's matplotlib settings are."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]  # keys are Literals
            return draw(*args, **kwargs)

    return inner


def method_colour(method: str) -> str:
    """The same colour for a method in every figure and table."""
    return METHOD_COLOURS.get(method) or SPARE_COLOURS[sum(method.encode()) % len(SPARE_COLOURS)]


@styled
def to_svg(figure: Figure) -> str:
    """A standalone SVG without dates or addresses: the same figure gives the same bytes."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue().replace("'DejaVu Sans'", _FONTS)


@styled
def to_pdf(figure: Figure) -> bytes:
    """The same figure for LaTeX."""
    out = io.BytesIO()
    figure.savefig(out, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return out.getvalue()


def inline_svg(svg: str, prefix: str, describe: str) -> str:
    """Make an SVG part of a page: own ids, the page's font and colours, as wide as its place."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| transform="rotate\(-0 [^"]*"|(?<=<g) id="[^"]*"', "", svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    svg = svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    svg = svg.replace(_FONTS, "var(--sans)")
    svg = re.sub(r'(?<= d=")[^"]*|(?<= [xy]=")[^"]*', _shorter, svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {view.group() if view else ""} role="img" aria-label="{escape(describe)}">'
    return head + svg[svg.index(">") + 1 :]


def _shorter(found: re.Match[str]) -> str:
    """Write coordinates to a tenth of a point, which no eye can tell, lines as steps: a quarter as long."""
    words = found[0].split()
    if len(words) > 6 and set(words[::3]) <= {"M", "L", "z"} and len(words) % 3 < 2:
        return _steps(words)
    return " ".join(_tenth(round(10 * float(word))) if _is_number(word) else word for word in words)


def _steps(words: Sequence[str]) -> str:
    """Turn "M x y L x y ..." into steps, each from where the last one came to, so that nothing adds up."""
    text, here = "", (0, 0)
    for place in range(0, len(words) - 2, 3):
        there = round(10 * float(words[place + 1])), round(10 * float(words[place + 2]))
        x, y = (there[0] - here[0], there[1] - here[1]) if words[place] == "L" else there
        text += f"{words[place].replace('L', 'l')}{_tenth(x)}{'' if y < 0 else ' '}{_tenth(y)}"
        here = there
    return text + ("z" if words[-1] == "z" else "")


def _tenth(tenths: int) -> str:
    whole, part = divmod(abs(tenths), 10)
    text = f"{whole or ''}.{part}" if part else str(whole)
    return f"-{text}" if tenths < 0 else text


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d*\.?\d+", word))


def new_axes(height: float) -> tuple[Figure, Axes]:
    """One figure of the common width, with one pair of axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def rounds_axis(axes: Axes) -> None:
    """Whole rounds along the bottom."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))


def bare(axes: Axes) -> None:
    """No frame, no ticks: the cells speak."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def dot(colour: str, marker: str, label: str) -> Line2D:
    """A legend entry for points."""
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=6, label=label)


def legend(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """Above the axes, in as many columns as the labels allow; a long label goes on below, none is cut.

    The figure grows by what the legend takes beyond a usual one.
    """
    room = round(LETTERS * figure.get_figwidth() / WIDTH)
    labels = [folded(str(handle.get_label()), room - HANDLE) for handle in handles]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    columns = max(1, min(len(handles), room // (longest + HANDLE)))
    heights = [ENTRY + LINE * label.count("\n") for label in labels]
    tallest = max((sum(column) for column in np.array_split(heights, columns)), default=0.0)
    figure.set_figheight(figure.get_figheight() + max(0.0, tallest - USUAL * ENTRY))
    figure.legend(handles=list(handles), labels=labels, loc="outside upper left", ncols=columns)


def folded(text: str, letters: int) -> str:
    """In lines of so many letters, never starting with the underscore by which matplotlib hides a label."""
    text = "\n".join(textwrap.wrap(text, letters)) or " "
    return f" {text}" if text.startswith("_") else text
