"""Prints tables, JSON and notes: results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

# Paths, names and messages may hold [brackets], which rich would take for markup.
out_console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
log = Console(stderr=True, highlight=False, markup=False)


def print_runs(summaries: list[dict[str, Any]], as_json: bool) -> None:
    """Print a table with one row for each run; values that all runs share go above it.

    Args:
        summaries: the `summary.json` of each run.
        as_json: print the summaries as JSON instead, a single one without a list around it.
    """
    if as_json:
        print_json(summaries[0] if len(summaries) == 1 else summaries)
        print_notes(summaries)
        return
    rows = [
        {
            "method": s["label"],
            "scheme": s["scheme"],
            "data": f"{s['dataset']} {s['setting']}",
            "seed": str(s["seed"]),
            "K": str(s["k"]),
            "ARI": number(s["ari"]),
            "final": number(s["ari_final"]),
            "DBI": number(s["dbi"]),
            "CH": number(s["ch"], ".1f"),
            "acc %": "diverged" if s.get("diverged") else number(s["accuracy"] and 100 * s["accuracy"]),
            "MB up": number(s["bytes_up"] / 1e6),
            "down": number(s["bytes_down"] / 1e6),
            "s": number(s["wall_s"], ".1f"),
        }
        for s in summaries
    ]
    shared = [key for key in ("data", "seed") if len({row[key] for row in rows}) == 1]
    heading = " · ".join(rows[0][key] if key == "data" else f"{key} {rows[0][key]}" for key in shared)
    shown = [key for key in rows[0] if key not in shared and any(row[key] != "–" for row in rows)]
    if heading:
        out_console.print(f"{heading} · {summaries[0]['rounds']} rounds", style="bold")
    print_rows([{key: row[key] for key in shown} for row in rows], as_json=False)
    print_notes(summaries)


def print_notes(results: list[dict[str, Any]]) -> None:
    """Print the notes of several results to stderr, each note once."""
    for note in sorted({note for result in results for note in result.get("notes", [])}):
        log.print(f"note: {note}", soft_wrap=True)


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows with the same keys as a table, or as a JSON list; numbers go to the right."""
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0]:
        right = all(isinstance(row[key], int | float) or _is_number(row[key]) for row in rows)
        table.add_column(key, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*("yes" if v is True else "no" if v is False else str(v) for v in row.values()))
    out_console.print(table)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=1))


def number(value: float | None, form: str = ".2f") -> str:
    """Format a number, or a dash for None."""
    return "–" if value is None else format(value, form)


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and set(text) <= set("0123456789.+-–")
