"""Tables as HTML: numbers to sort by, and the method that a row is about."""

import re

from flameche.report.formats import Cell, Column, Table
from flameche.report.markup import method_of, show


def test_numbers_to_sort_by_are_those_behind_the_cells() -> None:
    values = [3.25, -0.004, 1234.5, 0.1]
    rows = tuple((Cell(str(n)), Cell(f"{v:.1f} MB", v), Cell(f"{v:.3f}", v)) for n, v in enumerate(values))
    columns = (Column("n", "n"), Column("a", "a", numeric=True), Column("b", "b", numeric=True))
    html = show(Table(columns, rows), "t")
    assert [float(v) for v in re.findall(r"data-value=([^>]*)>", html)] == values
    assert [float(v) for v in re.findall(r">(-?[\d.]+)</td>", html)] == values  # sorted by their text


def test_a_row_is_known_by_how_its_title_begins() -> None:
    assert method_of("FLAMECHE, paper mode (m)") == "flameche"
    assert method_of("FLAMECHE soft, vmf") == "flameche-soft"
    assert method_of("K-Fed (m)") == "kfed" and method_of("IFCA: one start") == "ifca"
    assert method_of("Oracles") is None and method_of("tau = 10") is None
