"""Writes tables and remarks as HTML, with a colour for each method."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape

from markupsafe import Markup

from flameche.methods import METHODS
from flameche.report.formats import ABSENT, Cell, Column, Table
from flameche.report.style import method_colour

NOT_RUN = "not run"
LONG = 15  # a table with more rows has a search box
Link = Callable[[int], str]  # returns the address to which a row's heading leads, by the row's number
Below = Callable[[Cell, Cell], str]  # writes what stands below a cell, from it and the one beside it


@cache
def _titles() -> tuple[tuple[str, str], ...]:
    titles = [(method.about.title, kind) for kind, method in METHODS.loaded().items()]
    return tuple(sorted(titles, key=lambda pair: -len(pair[0])))


def method_of(text: str) -> str | None:
    """Return the method with whose title a text begins, or None."""
    return next((kind for title, kind in _titles() if re.match(rf"{re.escape(title)}\b", text)), None)


def dot(method: str, name: str = "") -> str:
    """Write a dot in a method's colour; the former default mode has a hollow one, as its lines are dashed."""
    hollow = " hollow" if "former default" in name else ""
    return f'<i class="dot{hollow}" style="--c:{method_colour(method)}"></i>'


def show(
    table: Table,
    label: str,
    *,
    link: Link | None = None,
    pairs: Mapping[int, int] | None = None,
    below: Below | None = None,
) -> Markup:
    """Write a table as HTML.

    Args:
        table: its columns and rows.
        label: what the table is, for screen readers.
        link: addresses for the headings of the rows.
        pairs: columns that are merged, by their places: the second column's cells stand below the first's.
        below: writes what stands below a cell; by default the text of the second column's cell.
    """
    pairs = pairs or {}
    kept = [place for place in range(len(table.columns)) if place not in pairs.values()]
    body = []
    for number, row in enumerate(table.rows):
        cells = []
        for place in kept:
            column, cell = table.columns[place], row[place]
            if place in pairs:
                cells.append(_pair(cell, (below or text_of)(cell, row[pairs[place]])))
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
    return Markup(
        f'{search}<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table>{caption}<thead>{head}</thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )


def text_of(cell: Cell, beside: Cell) -> str:
    """Write the text of the second cell; "" where it is absent."""
    return "" if beside.text == ABSENT else escape(beside.text)


def _pair(cell: Cell, below: str) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value:.6g}"'
    kind = " none" if cell.text == NOT_RUN else ""
    small = f"<small>{below}</small>" if below else ""
    return f'<td class="num pair{kind}"{value}>{_text(cell)}{small}</td>'


def _heads(columns: Sequence[Column]) -> str:
    """Write one row of headings, or two where titles have the form "dataset: measure"."""
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
    """Return whether a text is a plain number; the page then sorts the cell by its text."""
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _text(cell: Cell) -> str:
    return f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)


def prose(blocks: Iterable[str]) -> Markup:
    """Convert remarks from Markdown: headings, lists, paragraphs and `code`, nothing else."""
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
