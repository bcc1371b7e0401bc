"""Writes the files of a report below one folder, each whole or not at all, each name once."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from flameche.errors import StoreError
from flameche.report.canvas import inline_svg, to_pdf, to_svg
from flameche.report.formats import Table


@dataclass(frozen=True)
class Picture:
    """A figure for the page, what it shows, and its files beside the page."""

    svg: Markup
    caption: str
    files: tuple[str, ...]


class Shelf:
    """Writes files atomically below one folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.taken: set[str] = set()

    def write(self, name: str, content: str | bytes) -> Path:
        """Write through a temporary neighbour, so that a reader never meets half a file."""
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
        """Make a file name from free text, distinct from all earlier ones."""
        base = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.").lower() or "unnamed"
        name, turn = base, 1
        while name in self.taken:
            turn += 1
            name = f"{base}-{turn}"
        self.taken.add(name)
        return name

    def table(self, name: str, table: Table) -> tuple[str, ...]:
        """Keep a table in its three formats; name the files."""
        forms = {"md": table.markdown, "csv": table.csv, "tex": table.tex}
        return tuple(self._put(f"tables/{name}.{end}", form()) for end, form in forms.items())

    def figure(self, name: str, figure: Figure, caption: str) -> Picture:
        """Keep a figure as SVG and PDF; hand its inline form to the page."""
        svg = to_svg(figure)
        files = (self._put(f"figures/{name}.svg", svg), self._put(f"figures/{name}.pdf", to_pdf(figure)))
        return Picture(self.inline(svg, caption), caption, files)

    def inline(self, svg: str, caption: str) -> Markup:
        """Make an SVG part of the page, with ids that no other has."""
        return Markup(inline_svg(svg, self.slug("f"), caption))

    def drawing(self, name: str, figure: Figure, *, pdf: bool) -> tuple[str, ...]:
        """Keep a figure in files alone.

        A PDF takes three times as long as an SVG (fonts), so not every figure has one.
        """
        files = [self._put(f"figures/{name}.svg", to_svg(figure))]
        if pdf:
            files.append(self._put(f"figures/{name}.pdf", to_pdf(figure)))
        return tuple(files)

    def _put(self, name: str, content: str | bytes) -> str:
        self.write(name, content)
        return name
