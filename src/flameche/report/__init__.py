"""Reports from run folders: one page, its tables, its figures."""

from flameche.report.formats import Table
from flameche.report.page import usual_places, write_report
from flameche.report.runs import Run, find_runs
from flameche.report.tables import summary_table

__all__ = ["Run", "Table", "find_runs", "summary_table", "usual_places", "write_report"]
