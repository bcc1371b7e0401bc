"""Turns measured overheads into tables: costs at the largest size, and growth beside the paper's."""

from __future__ import annotations

from typing import Any

from flameche.bench.tables import TextTable, markdown_table
from flameche.methods import METHODS

# The paper's complexity table as exponents of (N, K), per family; n is a fixed share of N, and what it gives
# per client is meant per client. None: no cost beyond FedAvg's.
Power = tuple[int, int] | None
PAPER: dict[str, dict[str, Power]] = {
    "server-side": {"server_s": (2, 0), "client_ms": None, "up_kb": None, "down_kb": None},
    "client-side": {"server_s": None, "client_ms": (0, 1), "up_kb": None, "down_kb": (0, 1)},
    "metadata": {"server_s": (2, 0), "client_ms": None, "up_kb": (0, 0), "down_kb": None},
    "flameche": {"server_s": (1, 1), "client_ms": (0, 1), "up_kb": (0, 0), "down_kb": (0, 1)},
    "flameche-soft": dict.fromkeys(("server_s", "client_ms", "up_kb", "down_kb")),  # not in the paper
}
TITLES = {
    "server_s": "Server, seconds",
    "client_ms": "A client, milliseconds",
    "once_ms": "A client, once, milliseconds",
    "up_kb": "A client sends, KB",
    "down_kb": "A client receives, KB",
}


def overhead_tables(found: dict[str, Any]) -> list[TextTable]:
    """Make a table per cost, and one of further local trainings."""
    most = max(row["clients"] for row in found["rows"])
    tables = []
    for key, title in TITLES.items():
        rows = []
        for kind, growth in found["growth"].items():
            about = METHODS[kind].about
            paper = PAPER.get(kind) or PAPER.get(about.family, {})
            rows.append(
                {
                    "method": about.title,
                    "family": about.family,
                    f"N = {most}": _cost(_largest(found, kind, most)[key]),
                    "grows as N^": _power(growth["clients"][key]),
                    "paper: N^": _expected(paper.get(key), 0),
                    "grows as K^": _power(growth["clusters"][key]),
                    "paper: K^": _expected(paper.get(key), 1),
                }
            )
        tables.append(TextTable(f"{title}, beyond FedAvg", rows))
    trainings = [
        {
            "method": METHODS[kind].about.title,
            "trainings": f"{_largest(found, kind, most)['trainings']:.1f}",
        }
        for kind in found["growth"]
    ]
    note = (
        f"A client's local trainings in {found['rounds']} rounds beyond FedAvg's {found['rounds'] / 5:.0f}."
    )
    return [*tables, TextTable("Further local trainings", trainings, note)]


def overhead_markdown(found: dict[str, Any]) -> str:
    """Write all tables as one page."""
    lines = [
        "# What clustering costs beyond FedAvg",
        "",
        f"Made by `flameche overhead --out results` from `overhead.json`, on {found['machine']['cpu']},",
        f"one thread. LeNet-5 (61,706 numbers), metadata of 840, {found['rounds']} rounds, a fifth of N",
        "clients in each; local training is left out. Growth is fitted by least squares on logarithms, over",
        "N at K = 4 and over K at N = 100. A dash: nothing beyond FedAvg. Of IFCA one start (it gets K - 1",
        "models beyond FedAvg's one, hence an exponent above 1), of StoCFL with the search for its",
        "threshold. The paper counts pairs of clients for server-side and metadata methods; FeSEM and K-Fed",
        "compare with K centres.",
    ]
    for table in overhead_tables(found):
        lines += ["", f"## {table.title}", "", *markdown_table(table.rows)]
        if table.note:
            lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _largest(found: dict[str, Any], kind: str, most: int) -> dict[str, Any]:
    rows = [row for row in found["rows"] if row["method"] == kind and row["clients"] == most]
    return next((row for row in rows if row["clusters"] == 4), rows[0])  # one, unless the base is the largest


def _cost(value: float) -> str:
    return "–" if value <= 1e-9 else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _expected(power: Power, which: int) -> str:
    return "–" if power is None else str(power[which])
