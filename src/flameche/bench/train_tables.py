"""Turns measured training into tables, one for each model and number of clients."""

from __future__ import annotations

from typing import Any

from flameche.bench.tables import TextTable, markdown_table
from flameche.bench.train import TITLES


def train_heading(found: dict[str, Any]) -> list[str]:
    """Say on what machine and how it was measured."""
    machine = found["machine"]
    busy = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    numbers = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if number)
    on = "" if found["device"] == "cpu" else f"; {found['device']}"
    return [
        f"{machine['cpu']}, {machine['cores']} cores{busy}{on}",
        numbers,
        "Seconds a round, medians after the first, a process for each side, allocator alike; no scoring.",
        "CPU s: of all processes. Peak memory: of all processes, what they share counted once.",
    ]


def train_tables(found: dict[str, Any]) -> list[TextTable]:
    """Make the tables."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault((row["model"], row["clients"]), []).append(row)
    return [
        TextTable(
            f"{model}: {clients} clients x {rows[0]['samples']} samples, {rows[0]['epochs']} epochs, "
            f"batch {rows[0]['batch']}",
            [_row(row) for row in rows],
        )
        for (model, clients), rows in groups.items()
    ]


def train_markdown(found: dict[str, Any]) -> str:
    """Write all tables as one page."""
    lines = ["# Speed of local training", "", "Made by `flameche bench train --out results`.", ""]
    lines += [f"{line}  " for line in train_heading(found)]
    for table in train_tables(found):
        lines += ["", f"## {table.title}", "", *markdown_table(table.rows)]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> dict[str, str]:
    name = TITLES.get(row["side"], row["side"])
    keys = ("s a round", "fastest–slowest", "times the loop", "first round s", "CPU s", "peak MB", "load")
    if row["skipped"] is not None:
        return {"side": name, **dict(zip(keys, [row["skipped"], *"–" * 6], strict=True))}
    peak = row["cuda_mb"] or row["peak_mb"]
    values = (
        _s(row["round_s"]),
        f"{_s(row['fastest_s'])}–{_s(row['slowest_s'])}",
        "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
        _s(row["first_s"]),
        _s(row["cpu_s"]),
        f"{peak:,.0f}",
        "–" if row["load"] is None else f"{row['load']:.1f}",
    )
    return {"side": name, **dict(zip(keys, values, strict=True))}


def _s(seconds: float) -> str:
    return f"{seconds:.4f}" if seconds < 0.1 else f"{seconds:.2f}"
