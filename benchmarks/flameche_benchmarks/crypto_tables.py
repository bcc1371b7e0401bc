"""Turns a measured document into tables: titles and rows of text, and those as markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flameche_benchmarks.crypto_plan import Row

SCALED = "*"  # marks what was measured on a sample and scaled


@dataclass(frozen=True)
class TextTable:
    """Rows of text under a title; all rows have the same keys."""

    title: str
    rows: list[dict[str, str]]
    note: str = ""


def crypto_tables(found: dict[str, Any]) -> list[TextTable]:
    """Make every table of a run."""
    dims = found["plan"]["dims"]
    tables = [_schemes(found, d) for d in dims]
    tables += [_sessions(found), _rounds(found)]
    if found["ratios"]:
        tables.append(_ratios(found))
    return [*tables, _targets(found)]


def crypto_heading(found: dict[str, Any]) -> list[str]:
    """Say on what machine, with what versions and how it was measured."""
    machine = found["machine"]
    numbers = {name: number for name, number in found["versions"].items() if number}
    base = ", ".join(f"{name} {numbers.pop(name)}" for name in ("python", "flameche") if name in numbers)
    busy = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    return [
        f"{machine['cpu']}, {machine['cores']} cores{busy}; {base}",
        ", ".join(f"{name} {number}" for name, number in numbers.items()),
        "Medians of process CPU time in ms: it adds up all threads, and does not count waiting for others.",
        "KB = 1000 bytes. The paper's figures are wall-clock times on a Core i7 with 16 threads.",
    ]


def crypto_markdown(found: dict[str, Any]) -> str:
    """Write all tables as one page."""
    command = "flameche bench crypto --out results"
    lines = ["# Cost of encryption", "", f"Made by `{command}`, from `bench-crypto.json`.", ""]
    lines += [f"{line}  " for line in crypto_heading(found)]
    for table in crypto_tables(found):
        lines += ["", f"## {table.title}", "", *markdown_table(table.rows)]
        if table.note:
            lines += ["", table.note]
    return "\n".join(lines) + "\n"


def markdown_table(rows: list[dict[str, str]]) -> list[str]:
    """Write rows as a markdown table."""
    keys = list(rows[0])
    lines = [keys, ["---"] + ["---:"] * (len(keys) - 1), *([row[key] for key in keys] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def crypto_overview(found: dict[str, Any]) -> list[dict[str, str]]:
    """Put all schemes at the sizes of metadata into one short table, for README."""
    dims = [d for d in found["plan"]["dims"] if d <= 5120]
    names = list(dict.fromkeys(row["scheme"] for part in _PARTS for row in found[part]))
    rows = [_overview(name, [_find(found, name, d) for d in dims]) for name in names]
    for name, label in (("secagg", "secagg"), ("ckks", "CKKS"), ("paillier", "Paillier 2048")):
        known = {row["d"]: row for row in found["paper"] if row["scheme"] == name}
        rows.append(_overview(f"*paper: {label}*", [known.get(d) for d in dims]))
    return rows


_PARTS = ("schemes", "secagg", "references")


def _overview(name: str, rows: list[Row | None]) -> dict[str, str]:
    def both(*keys: str) -> str:
        return " / ".join(_ms(_cpu(row, *keys)) for row in rows)

    star = SCALED if any(row and row.get("scaled_from") for row in rows) else ""
    return {
        "scheme": name + star,
        "client seals": both("seal_ms", "client_ms"),
        "server sums 100": both("sum_ms", "server_ms"),
        "client opens": both("open_ms"),
        "KB up": " / ".join(_kb(row.get("bytes_up") if row else None) for row in rows),
    }


def _schemes(found: dict[str, Any], d: int) -> TextTable:
    rows, notes = [], []
    published = {row["scheme"]: row for row in found["paper"] if row["d"] == d}
    for row in [*found["schemes"], *found["references"]]:
        if row["d"] != d:
            continue
        rows.append(_scheme(row))
        if row.get("scaled_from"):
            notes.append(f"{SCALED} measured on {row['scaled_from']} elements and scaled linearly to d.")
        if 0 < row.get("sealed", 0) < row["clients"]:
            notes.append(f"{row['scheme']}: {row['sealed']} vectors sealed, added in turn.")
    for name, label in (("ckks", "paper: CKKS"), ("paillier", "paper: Paillier")):
        if name in published:
            rows.append(_scheme({"skipped": None, **published[name], "scheme": label}))
    n = found["plan"]["clients"]
    notes.insert(
        0,
        "sum: load, add, write out the total; the paper does not say what its sum includes. "
        "wall: seal + sum + open, elapsed. error: against the plain sum.",
    )
    return TextTable(f"d = {d:,}: {n} vectors sealed, summed, opened", rows, " ".join(notes))


def _scheme(row: Row) -> dict[str, str]:
    star = SCALED if row.get("scaled_from") else ""
    error = row.get("error")
    return {
        "scheme": row["scheme"] + star,
        "seal ms": row["skipped"] or _ms(_cpu(row, "seal_ms")),
        "load ms": _ms(_cpu(row, "load_ms")),
        "add ms": _ms(_cpu(row, "add_ms")),
        "sum ms": _ms(_cpu(row, "sum_ms")),
        "open ms": _ms(_cpu(row, "open_ms")),
        "wall ms": _ms(_wall(row)),
        "KB up": _kb(row.get("bytes_up")),
        "error": "–" if error is None else f"{error:.0e}",
    }


def _sessions(found: dict[str, Any]) -> TextTable:
    rows = []
    for d in found["plan"]["dims"]:
        rows += [_session(row) for row in found["secagg"] if row["d"] == d]
        for row in found["paper"]:
            if row["d"] == d and row["scheme"] == "secagg":
                times = {"client_ms": row["seal_ms"], "server_ms": row["sum_ms"]}
                rows.append(_session({**row, **times, "scheme": "paper: masks", "skipped": None}))
    note = (
        "client: everything it does in a session. recovery: the server with a tenth of the clients gone "
        "after sharing. The paper reports masking and adding, and leaves out what else the protocol needs."
    )
    return TextTable(f"secure aggregation: sessions of {found['plan']['clients']}", rows, note)


def _session(row: Row) -> dict[str, str]:
    return {
        "scheme": row["scheme"],
        "d": f"{row['d']:,}",
        "peers": str(row.get("neighbours", "–")),
        "client ms": row["skipped"] or _ms(_cpu(row, "client_ms")),
        "server ms": _ms(_cpu(row, "server_ms")),
        "recovery ms": _ms(_cpu(row, "recovery_ms")),
        "KB up": _kb(row.get("bytes_up")),
        "KB down": _kb(row.get("bytes_down")),
    }


def _rounds(found: dict[str, Any]) -> TextTable:
    rows, notes = [], []
    for row in found["rounds"]:
        for key, when in (("first", "first, with uploads"), ("steady", "later")):
            parts = {
                name: row["skipped"] or f"{row[part][key]:.4f}"
                for name, part in (
                    ("in the clear s", "clear_s"),
                    ("added s", "added_s"),
                    ("added s, all open", "added_each_s"),
                )
            }
            rows.append({"round": when, **parts})
        notes.append(row.get("note", ""))
    first = found["rounds"][0]
    title = f"a round of {first['participants']}, paper mode under {first['scheme']}, d = {first['d']}"
    return TextTable(title, rows, " ".join(notes))


def _ratios(found: dict[str, Any]) -> TextTable:
    rows = [
        {
            "ours : reference": f"{row['ours']} : {row['reference']}",
            "d": f"{row['d']:,}",
            **{f"{step} x": f"{row[step]:,.1f}" for step in ("seal", "sum", "open")},
            "bytes x": f"{row['bytes']:,.1f}",
        }
        for row in found["ratios"]
    ]
    return TextTable("times faster, times smaller", rows)


def _targets(found: dict[str, Any]) -> TextTable:
    rows = [
        {
            "target": row["what"],
            "wanted": row["wanted"],
            "measured": "–" if row["measured"] is None else f"{row['measured']:,.3g} {row['unit']}",
            "met": {True: "yes", False: "NO", None: "not measured"}[row["met"]],
        }
        for row in found["targets"]
    ]
    return TextTable("targets", rows)


def _find(found: dict[str, Any], name: str, d: int) -> Row | None:
    rows = [row for part in _PARTS for row in found[part]]
    return next((r for r in rows if r["scheme"] == name and r["d"] == d and not r["skipped"]), None)


def _cpu(row: Row | None, *keys: str) -> float | None:
    """Take the first of these times that a row has."""
    for key in keys:
        if row and row.get(key) is not None:
            value = row[key]["cpu"] if isinstance(row[key], dict) else row[key]
            return None if value is None else float(value)
    return None


def _wall(row: Row) -> float | None:
    """Add up the elapsed time of a sealing, the sum and an opening; the paper's times are such."""
    if row["skipped"]:
        return None
    times = [row[key] for key in ("seal_ms", "sum_ms", "open_ms")]
    return float(sum(time["wall"] if isinstance(time, dict) else time for time in times))


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _kb(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e3:,.1f}"
