"""A drawn table or figure, and its files: Markdown, CSV and LaTeX, for a figure also SVG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flameche.errors import BadInput
from flameche.report.canvas import to_pdf, to_svg
from flameche.report.formats import Table


@dataclass
class Drawn:
    """What is to be shown: what it is, tables under headings, data in full, a picture, remarks below."""

    name: str
    title: str
    lead: str
    tables: list[tuple[str, Table]]
    data: Table
    figure: Figure | None = None
    remarks: list[str] = field(default_factory=list)
    runs: tuple[int, int] = (0, 0)  # there, wanted

    def markdown(self) -> str:
        """Write the page."""
        parts = [f"# {self.title}", self.lead]
        if self.figure is not None:
            parts.append(f"![{self.title}]({self.name}.svg)")
        for heading, table in self.tables:
            parts += [f"## {heading}"] if heading else []
            parts.append(table.markdown().rstrip("\n"))
        return "\n\n".join([*parts, *self.remarks]) + "\n"

    def tex(self) -> str:
        """Write all tables, each under a comment that names it."""
        return "\n".join(f"% {heading or self.title}\n{table.tex()}" for heading, table in self.tables)

    def told(self) -> dict[str, Any]:
        """Tell it in JSON: the data, row by row."""
        keys = [column.key for column in self.data.columns]
        rows = [
            {
                key: cell.text if cell.value is None else cell.value
                for key, cell in zip(keys, row, strict=True)
            }
            for row in self.data.rows
        ]
        return {"title": self.title, "there": self.runs[0], "wanted": self.runs[1], "rows": rows}


def write(drawn: Drawn, out: Path) -> list[Path]:
    """Write all files of a drawn table or figure; name them."""
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
    """Join sentences that are there."""
    return " ".join(part for part in parts if part)
