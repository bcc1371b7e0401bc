"""Tables as Markdown, CSV and LaTeX; numbers, bytes and seconds as text."""

import csv
import io
import math
from dataclasses import dataclass
from html import escape

ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is shown.
        value: the number behind it, for sorting and CSV.
        spread: the standard deviation, if the value is a mean.
        bold: whether the text is bold.
        count: how many runs the value is the mean of; 0 where it is not known.
    """

    text: str
    value: float | None = None
    spread: float | None = None
    bold: bool = False
    count: int = 0


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and its name in CSV.

    With `spread` it holds means, and CSV has a second column for the standard deviations.
    """

    title: str
    key: str
    numeric: bool = False
    spread: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; all formats show the same numbers."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def markdown(self) -> str:
        """Write a GitHub pipe table, numbers to the right."""

        def cell(cell: Cell) -> str:
            text = _markdown(cell.text)
            return f"**{text}**" if cell.bold else text

        lines = [
            [_markdown(column.title) for column in self.columns],
            ["---:" if column.numeric else "---" for column in self.columns],
            *([cell(item) for item in row] for row in self.rows),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def csv(self) -> str:
        """Write CSV in full precision; mean and sd have a column each, empty where there is no value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = [
            [column.key, f"{column.key}_sd"] if column.spread else [column.key] for column in self.columns
        ]
        writer.writerow([name for pair in heads for name in pair])
        for row in self.rows:
            line: list[str] = []
            for column, cell in zip(self.columns, row, strict=True):
                line.append(_plain(cell.value) if column.numeric else cell.text)
                if column.spread:
                    line.append(_plain(cell.spread))
            writer.writerow(line)
        return out.getvalue()

    def tex(self) -> str:
        """Write a LaTeX tabular with booktabs rules, for \\input."""

        def cell(cell: Cell) -> str:
            text = _tex(cell.text)
            return rf"\textbf{{{text}}}" if cell.bold else text

        layout = "".join("r" if column.numeric else "l" for column in self.columns)
        heads = " & ".join(_tex(column.title) for column in self.columns)
        body = [" & ".join(cell(item) for item in row) + r" \\" for row in self.rows]
        lines = [
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            heads + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def human_bytes(amount: float) -> str:
    """Format bytes in decimal units (1 MB = 10⁶ bytes) with three digits."""
    if math.isnan(amount):
        return ABSENT
    if amount < 999.5:
        return f"{amount:.0f} B"
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{three_digits(amount)} {unit}"
    return f"{three_digits(amount / 1000)} TB"


def human_seconds(amount: float) -> str:
    """Format seconds in a fitting unit, from microseconds to hours, with about three digits."""
    if math.isnan(amount):
        return ABSENT
    if amount == 0:
        return "0 s"
    if amount < 0.9995e-3:
        return f"{three_digits(amount * 1e6)} µs"
    if amount < 0.9995:
        return f"{three_digits(amount * 1e3)} ms"
    if amount < 99.95:
        return f"{three_digits(amount)} s"
    minutes, seconds = divmod(round(amount), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def amount(value: float) -> str:
    """Format with three significant digits, or whole with commas from 1,000 on: 0.00412, 412, 4,120."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else three_digits(value)


def three_digits(amount: float) -> str:
    """Format with three significant digits, without an exponent: 0.00412, 4.12, 41.2, 412, 4120."""
    if 0 < abs(amount) < 0.9995:
        return (
            f"{amount:.{2 - math.floor(math.log10(abs(amount)))}f}"
            if abs(amount) >= 1e-6
            else f"{amount:.0e}"
        )
    digits = 0 if amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{amount:.{digits}f}"


def _plain(value: float | None) -> str:
    return "" if value is None else repr(value)


def _markdown(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", ABSENT: "--", "<": "$<$", ">": "$>$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)
