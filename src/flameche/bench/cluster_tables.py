"""Turns measured clustering into tables: times by size, growth, and the large federations."""

from __future__ import annotations

from typing import Any

from flameche.bench.cluster import STEPS
from flameche.bench.tables import TextTable, markdown_table

TITLES = {
    "extraction": "extraction, all clients",
    "seal": "sealing, all clients, once",
    "e_step": "E-step, all clients",
    "m_step": "M-step, server",
    "open": "opening the sums, a client",
}


def cluster_heading(found: dict[str, Any]) -> list[str]:
    """Say on what machine and how it was measured."""
    machine, base = found["machine"], found["base"]
    busy = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    return [
        f"{machine['cpu']}, {machine['cores']} cores{busy}; one thread",
        "Medians of process CPU time in ms. Sizes change one at a time around "
        f"N = {base['N']}, d = {10 * base['F']}, K = {base['K']}.",
    ]


def cluster_tables(found: dict[str, Any]) -> list[TextTable]:
    """Make the tables: growth first, then the times behind it, then rounds of large federations."""
    tables = [_growth(found), _times(found)]
    return [*tables, _large(found)] if found["large"] else tables


def cluster_markdown(found: dict[str, Any]) -> str:
    """Write all tables as one page."""
    lines = ["# Growth of clustering", "", "Made by `flameche bench cluster --out results`.", ""]
    lines += [f"{line}  " for line in cluster_heading(found)]
    for table in cluster_tables(found):
        lines += ["", f"## {table.title}", "", *markdown_table(table.rows)]
        if table.note:
            lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _growth(found: dict[str, Any]) -> TextTable:
    base = {"N": found["base"]["N"], "d": 10 * found["base"]["F"], "K": found["base"]["K"]}
    rows = []
    for kind, growth in found["growth"].items():
        at = next(r for r in found["rows"] if r["scheme"] == kind and all(r[k] == v for k, v in base.items()))
        for step in STEPS:
            if at[step] is not None:
                powers = {f"grows as {by}^": _power(growth[step][by]) for by in base}
                rows.append({"step": TITLES[step], "scheme": kind, "ms at the base": _ms(at[step]), **powers})
    note = (
        "Least squares on logarithms. Extraction: LeNet-5's features, for growth in d class means of d/10 "
        "pixels. A dash: does not depend on it."
    )
    return TextTable("growth", rows, note)


def _times(found: dict[str, Any]) -> TextTable:
    rows = [
        {
            "scheme": row["scheme"],
            **{key: f"{row[key]:,}" for key in ("N", "d", "K")},
            **{f"{step.replace('_', '-')} ms": _ms(row[step]) for step in STEPS},
        }
        for row in found["rows"]
    ]
    return TextTable("times", rows, "m-step: K sums over all N terms, written out. open: all K sums.")


def _large(found: dict[str, Any]) -> TextTable:
    rows = []
    for case in found["large"]:
        about = {"N": f"{case['clients']:,}", "K": str(case["clusters"]), "least": str(case["least"])}
        if case["skipped"] is not None:
            rows.append({**about, **dict.fromkeys(_LARGE, "–"), "s a round": case["skipped"]})
            continue
        held = case["memory_mb"]
        values = (
            f"{case['median_s']:.2f}",
            f"{case['slowest_s']:.2f}",
            f"{case['metadata_mb']:,.0f}",
            f"{held[0]:,.0f}",
            f"{held[len(held) // 2]:,.0f}",
            f"{held[-1]:,.0f}",
            "–" if case["ari"] is None else f"{case['ari']:.2f}",
        )
        rows.append({**about, **dict(zip(_LARGE, values, strict=True))})
    first = found["large"][0]
    note = (
        f"d = {10 * first['features']}, {first['rounds']} rounds, 1% of the clients in each, in the clear; "
        "least: the smallest sum that may be opened (scheme.min_cluster). ARI over the clients seen."
    )
    return TextTable("large federations", rows, note)


_LARGE = (
    "s a round",
    "slowest",
    "MB before",
    "MB, round 1",
    "MB, half-way",
    "MB at the end",
    "ARI",
)


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
