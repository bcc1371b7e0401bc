"""The paper's tables and figures, drawn from stored runs; a cell that was not run says so."""

from flameche.report.paper.drawn import Drawn, write
from flameche.report.paper.renderers import render

__all__ = ["Drawn", "render", "write"]
