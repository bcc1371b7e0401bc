"""Reports from run folders: one page, its tables, its figures."""

from flameche.report.formats import Table
from flameche.report.page import default_folders, write_report
from flameche.report.runs import Run, find_runs
from flameche.report.tables import summary_table

__all__ = ["Run", "Table", "default_folders", "find_runs", "summary_table", "write_report"]
