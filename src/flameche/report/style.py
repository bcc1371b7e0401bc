"""The style of all figures, their colours, and how they become SVG and PDF; without pyplot.

All figures have the same width, so that the page can place them side by side on a wide screen, and below each
other on a phone, at the same scale. Text and axes are drawn in INK, the edges of markers in PAPER;
`inline_svg` replaces these two by the page's own colours, light or dark.
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
# Characters that fit into a row of a legend as wide as a figure; a handle takes as much room as six of them.
LEGEND_CHARACTERS, HANDLE_CHARACTERS = 58, 6
ENTRY_HEIGHT, LINE_HEIGHT = 0.22, 0.18  # inches of a legend's entry, and of each further line in it
LEGEND_ROWS = 3  # rows of a legend for which figures have room without growing

# Chosen by a search: no two look alike, with full colour vision or without red, green or blue cones, and all
# can be seen on white and on black (tests/report/test_style.py). FLAMECHE has the warmest.
METHOD_COLOURS = {
    "flameche": "#D55E00", "flameche-soft": "#F19C71", "fedavg": "#8885F3", "oracle": "#A9A9A9",
    "ifca": "#69BAE4", "fesem": "#0B7357", "fedgroup": "#A43797", "stocfl": "#C7B115", "kfed": "#7A6226",
    "pacfl": "#8531EB",
}  # fmt: skip
SPARE_COLOURS = ("#B0413E", "#3F8F8B", "#7A8B2F", "#5C7FB8")
# Paul Tol's bright colours first, then those of his light and muted ones that are seen on black and white.
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
    """Decorate a drawing function so that it uses this style, whatever the caller's matplotlib settings."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]  # keys are Literals
            return draw(*args, **kwargs)

    return inner


def method_colour(method: str) -> str:
    """Return the colour of a method, the same in every figure and table."""
    return METHOD_COLOURS.get(method) or SPARE_COLOURS[sum(method.encode()) % len(SPARE_COLOURS)]


@styled
def to_svg(figure: Figure) -> str:
    """Convert a figure to a standalone SVG; it has no dates, so that the same figure gives the same bytes."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue().replace("'DejaVu Sans'", _FONTS)


@styled
def to_pdf(figure: Figure) -> bytes:
    """Convert a figure to a PDF, for LaTeX."""
    out = io.BytesIO()
    figure.savefig(out, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return out.getvalue()


def inline_svg(svg: str, prefix: str, describe: str) -> str:
    """Convert an SVG to an element of a page, which has the page's font and colours and fills its container.

    Args:
        svg: a document, as `to_svg` makes it.
        prefix: put before every id, so that no two figures of a page share one.
        describe: what the figure shows, for screen readers.
    """
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
    svg = re.sub(r'(?<= d=")[^"]*|(?<= [xy]=")[^"]*', _shorten_coordinates, svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {view.group() if view else ""} role="img" aria-label="{escape(describe)}">'
    return head + svg[svg.index(">") + 1 :]


def _shorten_coordinates(found: re.Match[str]) -> str:
    """Round coordinates to a tenth of a point, and write lines as relative steps: a quarter as long."""
    words = found[0].split()
    if len(words) > 6 and set(words[::3]) <= {"M", "L", "z"} and len(words) % 3 < 2:
        return _relative_steps(words)
    return " ".join(_tenth(round(10 * float(word))) if _is_number(word) else word for word in words)


def _relative_steps(words: Sequence[str]) -> str:
    """Write "M x y L x y ..." as steps; each starts at the rounded point before, so that no error adds up."""
    text, here = "", (0, 0)
    for place in range(0, len(words) - 2, 3):
        there = round(10 * float(words[place + 1])), round(10 * float(words[place + 2]))
        x, y = (there[0] - here[0], there[1] - here[1]) if words[place] == "L" else there
        text += f"{words[place].replace('L', 'l')}{_tenth(x)}{'' if y < 0 else ' '}{_tenth(y)}"
        here = there
    return text + ("z" if words[-1] == "z" else "")


def _tenth(tenths: int) -> str:
    """Format a number of tenths without superfluous zeros."""
    whole, part = divmod(abs(tenths), 10)
    text = f"{whole or ''}.{part}" if part else str(whole)
    return f"-{text}" if tenths < 0 else text


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d*\.?\d+", word))


def new_axes(height: float) -> tuple[Figure, Axes]:
    """Make a figure of the common width with one pair of axes; the height is in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def rounds_axis(axes: Axes) -> None:
    """Label the horizontal axis with whole rounds."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))


def hide_frame(axes: Axes) -> None:
    """Hide the frame and the ticks of axes that show a matrix."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def point_handle(colour: str, marker: str, label: str) -> Line2D:
    """Make a legend entry for points."""
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=6, label=label)


def legend(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """Place a legend above the axes, in as many columns as fit; long labels are wrapped, none is cut.

    The figure grows if the legend takes more than LEGEND_ROWS rows.
    """
    room = round(LEGEND_CHARACTERS * figure.get_figwidth() / WIDTH)
    labels = [wrap_label(str(handle.get_label()), room - HANDLE_CHARACTERS) for handle in handles]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    columns = max(1, min(len(handles), room // (longest + HANDLE_CHARACTERS)))
    heights = [ENTRY_HEIGHT + LINE_HEIGHT * label.count("\n") for label in labels]
    tallest = max((sum(column) for column in np.array_split(heights, columns)), default=0.0)
    figure.set_figheight(figure.get_figheight() + max(0.0, tallest - LEGEND_ROWS * ENTRY_HEIGHT))
    figure.legend(handles=list(handles), labels=labels, loc="outside upper left", ncols=columns)


def wrap_label(text: str, width: int) -> str:
    """Wrap a label to lines of at most `width` characters.

    A label that starts with an underscore gets a space before it, since matplotlib would hide it.
    """
    text = "\n".join(textwrap.wrap(text, width)) or " "
    return f" {text}" if text.startswith("_") else text
