"""Tables and remarks as HTML: a colour for each method, ours above the paper's, and whether they agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape

from markupsafe import Markup

from flameche.methods import METHODS
from flameche.report.agreement import FEWEST, Verdict, judge
from flameche.report.canvas import method_colour
from flameche.report.formats import ABSENT, Cell, Column, Table

NOT_RUN = "not run"
LONG = 15  # rows, from which on a table has a search box
SIGNS = {"higher": "▲", "lower": "▼", "within": "≈", "untold": "?"}
Link = Callable[[int], str]  # from a row's number to an address


@dataclass(frozen=True)
class Shown:
    """A table as HTML, and how its cells stand to the paper's."""

    html: Markup
    verdicts: tuple[Verdict, ...] = ()


@cache
def _titles() -> tuple[tuple[str, str], ...]:
    titles = [(method.about.title, kind) for kind, method in METHODS.items()]
    return tuple(sorted(titles, key=lambda pair: -len(pair[0])))


def method_of(text: str) -> str | None:
    """Tell which method a row is about, by how its title begins."""
    return next((kind for title, kind in _titles() if re.match(rf"{re.escape(title)}\b", text)), None)


def dot(method: str, name: str = "") -> str:
    """A method's colour; the former default mode is hollow, as its lines are dashed."""
    hollow = " hollow" if "former default" in name else ""
    return f'<i class="dot{hollow}" style="--c:{method_colour(method)}"></i>'


def show(table: Table, label: str, *, beside: bool = False, link: Link | None = None) -> Shown:
    """Write a table; a column and the paper's beside it become one, ours above theirs.

    beside: whether cells are compared with the paper's.
    """
    pairs = _pairs(table.columns)
    kept = [place for place in range(len(table.columns)) if place not in pairs.values()]
    verdicts: list[Verdict] = []
    body = []
    for number, row in enumerate(table.rows):
        cells = []
        for place in kept:
            column, cell = table.columns[place], row[place]
            if place in pairs:
                text, verdict = _pair(cell, row[pairs[place]], beside)
                verdicts += [] if verdict is None else [verdict]
                cells.append(text)
            elif place == kept[0]:
                cells.append(_head(cell, link(number) if link else ""))
            else:
                cells.append(_plain(cell, column.numeric))
        body.append(f"<tr>{''.join(cells)}</tr>")
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = _heads([table.columns[place] for place in kept])
    search = (
        f'<label class="search js"><span class="sr">Search in {escape(label)}</span>'
        '<input type="search" placeholder="Search…" autocomplete="off" spellcheck="false">'
        '<output class="quiet"></output></label>'
        if len(table.rows) > LONG
        else ""
    )
    html = (
        f'{search}<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table>{caption}<thead>{head}</thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )
    return Shown(Markup(html), tuple(verdicts))


def _pairs(columns: Sequence[Column]) -> dict[int, int]:
    """Columns of ours that stand before the paper's."""
    return {
        place: place + 1
        for place in range(len(columns) - 1)
        if columns[place + 1].key == f"{columns[place].key}_paper"
    }


def _pair(ours: Cell, theirs: Cell, beside: bool) -> tuple[str, Verdict | None]:
    below, verdict = "" if theirs.text == ABSENT else escape(theirs.text), None
    if beside and ours.count and ours.value is not None and theirs.value is not None:
        verdict = judge(ours.value, ours.count, theirs.value, theirs.spread)
        below += f" {_difference(verdict, ours.count)}"
    value = "" if ours.value is None else f' data-value="{ours.value:.6g}"'
    kind = " none" if ours.text == NOT_RUN else ""
    small = f"<small>{below}</small>" if below else ""
    return f'<td class="num pair{kind}"{value}>{_text(ours)}{small}</td>', verdict


def _difference(verdict: Verdict, count: int) -> str:
    sign = "+" if verdict.difference >= 0 else "−"
    size = f"{abs(verdict.difference):.2f}"
    seeds = f"{count} seed{'' if count == 1 else 's'} of ours"
    kind: str = verdict.state
    if kind == "outside":
        kind = "higher" if verdict.difference > 0 else "lower"
    words = {
        "within": "within the paper’s spread",
        "untold": "too few runs to tell" if count < FEWEST else "no spread in the paper to tell by",
    }.get(kind, f"{kind}, outside the paper’s spread")
    return (
        f'<span class="d {kind}" title="{words}; {seeds}">'
        f"{sign if float(size) else ''}{size} {SIGNS[kind]}</span>"
    )


def _heads(columns: Sequence[Column]) -> str:
    """Write one row of headings, or two where titles say "set: measure"."""
    if not any(": " in column.title for column in columns[1:]):
        return f"<tr>{''.join(_heading(column.title, column.numeric) for column in columns)}</tr>"
    upper: list[list[object]] = []
    lower = []
    for number, column in enumerate(columns):
        group, _, title = column.title.rpartition(": ")
        if not number or group or not upper[-1][0]:
            upper.append([group, 0])
        upper[-1][1] = int(str(upper[-1][1])) + 1
        lower.append(_heading(title, column.numeric, bool(group)))
    above = "".join(
        f'<th scope="colgroup" colspan="{span}" class="group">{escape(str(name))}</th>' if name else
        f'<td colspan="{span}"></td>'
        for name, span in upper
    )  # fmt: skip
    return f'<tr class="groups">{above}</tr><tr>{"".join(lower)}</tr>'


def _heading(title: str, numeric: bool, first: bool = False) -> str:
    classes = " ".join(name for name, on in (("num", numeric), ("first", first)) if on)
    kind = f' class="{classes}"' if classes else ""
    unbroken = escape(title.replace("-", "\N{NON-BREAKING HYPHEN}"))
    return f'<th scope="col"{kind}>{unbroken}</th>'


def _head(cell: Cell, address: str) -> str:
    method = method_of(cell.text)
    text = _text(cell)
    inner = f'<a href="{escape(address)}">{text}</a>' if address else text
    return f'<th scope="row">{dot(method, cell.text) if method else ""}{inner}</th>'


def _plain(cell: Cell, numeric: bool) -> str:
    classes = " ".join(
        name for name, on in (("num", numeric), ("none", cell.text in (NOT_RUN, ABSENT))) if on
    )
    value = ""
    if numeric and cell.value is not None and not _is_number(cell.text):
        value = f" data-value={cell.value:.6g}"
    quoted = f'"{classes}"' if " " in classes else classes
    return f"<td{f' class={quoted}' if classes else ''}{value}>{_text(cell)}</td>"


def _is_number(text: str) -> bool:
    """Such a cell is sorted by its text."""
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _text(cell: Cell) -> str:
    return f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)


def prose(blocks: Iterable[str]) -> Markup:
    """Write remarks: headings, lists, paragraphs and `code`, as Markdown has them; nothing else is known."""
    parts = []
    for block in blocks:
        lines = block.splitlines()
        if block.startswith("## "):
            parts.append(f"<h4>{_inline(block[3:])}</h4>")
        elif lines and all(line.startswith("- ") for line in lines):
            parts.append(f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>")
        elif block:
            parts.append(f"<p>{_inline(block)}</p>")
    return Markup("".join(parts))


def _inline(text: str) -> str:
    text = escape(re.sub(r"\\([*_`|])", r"\1", text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
