"""A drawn table or figure, and its files: Markdown, CSV and LaTeX, for a figure also SVG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flameche.errors import BadInput
from flameche.report.formats import Column, Table
from flameche.report.style import to_pdf, to_svg


@dataclass
class RenderedTable:
    """A drawn table or figure: title, lead, titled tables, the full data, the picture, remarks."""

    name: str
    title: str
    lead: str
    tables: list[tuple[str, Table]]
    data: Table
    figure: Figure | None = None
    remarks: list[str] = field(default_factory=list)
    runs: tuple[int, int] = (0, 0)  # there, wanted
    changes: tuple[str, ...] = ()  # that make its runs others than the paper's

    def markdown(self) -> str:
        """Write the page."""
        parts = [f"# {self.title}", *([self._changed()] if self.changes else []), self.lead]
        if self.figure is not None:
            parts.append(f"![{self.title}]({self.name}.svg)")
        for heading, table in self.tables:
            parts += [f"## {heading}"] if heading else []
            parts.append(table.markdown().rstrip("\n"))
        return "\n\n".join([*parts, *self.remarks]) + "\n"

    def tex(self) -> str:
        """Write all tables, each under a comment that names it."""
        above = f"% {self._changed()}\n" if self.changes else ""
        return above + "\n".join(
            f"% {heading or self.title}\n{table.tex()}" for heading, table in self.tables
        )

    def as_json(self) -> dict[str, Any]:
        """Return the data row by row, for JSON."""
        keys = [column.key for column in self.data.columns]
        rows = [
            {
                key: cell.text if cell.value is None else cell.value
                for key, cell in zip(keys, row, strict=True)
            }
            for row in self.data.rows
        ]
        about = {"title": self.title, "there": self.runs[0], "wanted": self.runs[1], "rows": rows}
        return {**about, "changes": list(self.changes)} if self.changes else about

    def _changed(self) -> str:
        words = ", ".join(f"`{word}`" for word in self.changes)
        return f"Changed by {words}: these are not the paper's runs, whose values are for reference only."


def without_verdicts(drawn: RenderedTable, changes: Sequence[str]) -> RenderedTable:
    """Note the changed options, and label the paper's values as for reference only."""

    def column(own: Column) -> Column:
        return replace(own, title="paper, for reference") if own.title == "paper" else own

    tables = [
        (heading, replace(table, columns=tuple(map(column, table.columns))))
        for heading, table in drawn.tables
    ]
    return replace(drawn, tables=tables, remarks=[], changes=tuple(changes))


def write(drawn: RenderedTable, out: Path) -> list[Path]:
    """Write all files of a drawn table or figure; return their paths."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        files: list[tuple[str, str | bytes]] = [
            ("md", drawn.markdown()),
            ("csv", drawn.data.csv()),
            ("tex", drawn.tex()),
        ]
        if drawn.figure is not None:
            files += [("svg", to_svg(drawn.figure)), ("pdf", to_pdf(drawn.figure))]
        return [_put(out / f"{drawn.name}.{end}", content) for end, content in files]
    except OSError as problem:
        raise BadInput(f"--out {out} cannot be written: {problem.strerror or problem}") from None


def _put(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def sentences(parts: Sequence[str]) -> str:
    """Join the sentences that are not empty."""
    return " ".join(part for part in parts if part)
