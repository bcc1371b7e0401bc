"""Writes the files of a report into one folder, each file completely or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from flameche.errors import StoreError
from flameche.report.formats import Table
from flameche.report.style import inline_svg, to_pdf, to_svg


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: its SVG element, its caption, and the files with the same figure."""

    svg: Markup
    caption: str
    files: tuple[str, ...]


class ReportWriter:
    """Writes tables, figures and the page below one folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._slugs: set[str] = set()

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file through a temporary one next to it, so that nobody ever reads half a file.

        Raises:
            StoreError: if the file cannot be written.
        """
        path = self.out / name
        data = content.encode() if isinstance(content, str) else content
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as problem:
            raise StoreError(
                f"cannot write {path}: {problem.strerror or problem}; choose another --out folder"
            ) from problem
        return path

    def slug(self, *parts: str) -> str:
        """Make a file name or an id from free text, different from all that were made before."""
        base = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.").lower() or "unnamed"
        name, count = base, 1
        while name in self._slugs:
            count += 1
            name = f"{base}-{count}"
        self._slugs.add(name)
        return name

    def table(self, name: str, table: Table) -> tuple[str, ...]:
        """Write a table as Markdown, CSV and LaTeX; return the files' names."""
        forms = {"md": table.markdown, "csv": table.csv, "tex": table.tex}
        return tuple(self._write_named(f"tables/{name}.{end}", form()) for end, form in forms.items())

    def figure(self, name: str, figure: Figure, *, pdf: bool) -> tuple[str, ...]:
        """Write a figure as SVG, and as PDF if asked for; return the files' names.

        A PDF takes three times as long to write as an SVG, because of its fonts.
        """
        files = [self._write_named(f"figures/{name}.svg", to_svg(figure))]
        if pdf:
            files.append(self._write_named(f"figures/{name}.pdf", to_pdf(figure)))
        return tuple(files)

    def page_figure(self, name: str, figure: Figure, caption: str) -> PageFigure:
        """Write a figure as SVG and PDF, and return it for the page."""
        svg = to_svg(figure)
        files = (
            self._write_named(f"figures/{name}.svg", svg),
            self._write_named(f"figures/{name}.pdf", to_pdf(figure)),
        )
        return PageFigure(self.inline(svg, caption), caption, files)

    def inline(self, svg: str, caption: str) -> Markup:
        """Convert an SVG to an element of the page, with ids that no other element has."""
        return Markup(inline_svg(svg, self.slug("f"), caption))

    def _write_named(self, name: str, content: str | bytes) -> str:
        self.write(name, content)
        return name
