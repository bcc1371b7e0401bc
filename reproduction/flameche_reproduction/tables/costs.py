"""Tables of costs, from the benchmarks' results: time and bytes of encryption, and growth beyond FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flameche.methods import METHODS
from flameche.report.formats import ABSENT, Cell, Column, Table, amount
from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.published import published_value
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.tables.cells import NOT_RUN
from flameche_reproduction.tables.document import RenderedTable, sentences

MIB = 2**20
VECTORS = {
    840: "LeNet-5 metadata",
    61706: "LeNet-5 model",
    5120: "ResNet-18 metadata",
    11176512: "ResNet-18 model",
}
# What stands beside which of the paper's: its secure aggregation, CKKS and Paillier.
SCHEMES = {
    "plain": "plain",
    "secagg-full": "secagg",
    "secagg-sparse": "",
    "ckks-paper": "ckks",
    "ckks": "",
    "bfv": "",
    "phe-2048": "paillier",
    "paillier-2048": "",
    "paillier-3072": "",
}
# The paper's Table 1: R rounds, N clients, n of them a round, K clusters, M numbers a model, d of metadata.
COMPLEXITY = {
    "server-side": ("O(R n² M)", ABSENT, ABSENT, ABSENT),
    "client-side": (ABSENT, "O(R K M)", ABSENT, "O(R K M)"),
    "metadata": ("O(N² d)", ABSENT, "O(d)", ABSENT),
    "flameche": ("O(R n K d)", "O(R K d)", "O(d)", "O(R K d)"),
}
COSTS = (
    ("server_s", "Server, s"),
    ("client_ms", "Client, ms"),
    ("up_kb", "Client sends, KB"),
    ("down_kb", "Client receives, KB"),
)
COMPARED = ("flameche", "fedgroup", "stocfl", "fesem", "ifca", "kfed", "pacfl")
NOTHING = 1e-9


def draw_crypto_time(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Milliseconds of a client that seals and opens, and of a server that sums 100 vectors."""
    found = stored.document(entry.file)
    columns = [Column("Vector", "vector"), Column("Numbers", "d", numeric=True), Column("Scheme", "scheme")]
    steps = (("seal_ms", "Client seals"), ("sum_ms", "Server sums 100"), ("open_ms", "Client opens"))
    for key, title in steps:
        columns += [Column(f"{title}, ms", key, numeric=True), Column("paper", f"{key}_paper", numeric=True)]
    rows = []
    for d, title in VECTORS.items():
        for scheme, theirs in SCHEMES.items():
            row = _measured(found, scheme, d)
            cells = [Cell(title), Cell(f"{d:,}", d), Cell(_name(scheme, row))]
            for key, _ in steps:
                cells += [_milliseconds(row, key), _printed(entry.name, d, theirs, key)]
            if row is not None or any(cell.value is not None for cell in cells[4::2]):
                rows.append(tuple(cells))
    lead = (
        "Medians of process CPU time, 100 clients. The paper's are wall-clock times on a Core i7 with 16 "
        "threads; its Paillier is its own C++, one ciphertext a number, beside which `phe` (scaled from 50 "
        "numbers, *) stands. Of secure aggregation, sealing is all that a client does in a session, key "
        "agreement included, which the paper's masking leaves out."
    )
    table = Table(tuple(columns), tuple(rows))
    return _drawn(entry, lead, table, found)


def draw_communication(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Megabytes (of 2^20 bytes, as in the paper) that a client sends of one vector."""
    found = stored.document(entry.file)
    columns = (
        Column("Vector", "vector"),
        Column("Numbers", "d", numeric=True),
        Column("Scheme", "scheme"),
        Column("MiB up", "mib", numeric=True),
        Column("paper", "mib_paper", numeric=True),
    )
    rows = []
    for d, title in VECTORS.items():
        for scheme, theirs in SCHEMES.items():
            row = _measured(found, scheme, d)
            ours = Cell(NOT_RUN)
            if row is not None and row.get("bytes_up") is not None:
                ours = Cell(f"{row['bytes_up'] / MIB:.4f}", row["bytes_up"] / MIB)
            paper = _printed(entry.name, d, theirs, "mib", digits=4)
            if ours.value is not None or paper.value is not None:
                rows.append((Cell(title), Cell(f"{d:,}", d), Cell(_name(scheme, row)), ours, paper))
    lead = (
        "The paper counts plain numbers of 4 bytes, masks of 8 bytes, and Paillier's ciphertexts in hex; "
        "of protocols nothing. Ours are whole messages as they travel; of secure aggregation all of a "
        "session."
    )
    table = Table(columns, tuple(rows))
    return _drawn(entry, lead, table, found)


def draw_complexity(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Costs beyond FedAvg at 100 clients, how they grow with N and K, and the paper's formulas."""
    found = stored.document(entry.file)
    columns = [Column("Method", "method"), Column("Family", "family")]
    for key, title in COSTS:
        columns += [
            Column(title, key, numeric=True),
            Column("N^", f"{key}_n", numeric=True),
            Column("K^", f"{key}_k", numeric=True),
            Column("paper", f"{key}_paper"),
        ]
    rows = []
    for kind in COMPARED:
        about = METHODS[kind].about
        formulas = COMPLEXITY.get(kind) or COMPLEXITY[about.family]
        cells = [Cell(about.title), Cell(about.family)]
        at = at_base(found, kind)
        growth = (found or {}).get("growth", {}).get(kind)
        for (key, _), formula in zip(COSTS, formulas, strict=True):
            cells.append(_cost(at, key))
            cells += [_power(growth, by, key) for by in ("clients", "clusters")]
            cells.append(Cell(formula))
        rows.append(tuple(cells))
    lead = (
        "Beyond FedAvg: 100 clients, 4 clusters, 10 rounds, a fifth of the clients in each; LeNet-5 "
        "(61,706 numbers), metadata of 840; local training is left out. N^ and K^: exponents of growth "
        "from 100 to 1,600 clients, and from 2 to 16 clusters. A dash: nothing. The paper's formulas: R "
        "rounds, N clients, n of them a round, M numbers of a model, d of metadata. Of IFCA one start; "
        "StoCFL's search for its threshold is counted."
    )
    table = Table(tuple(columns), tuple(rows))
    return _drawn(entry, lead, table, found)


def at_base(found: Mapping[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """A method's costs at 100 clients and 4 clusters."""
    for row in (found or {}).get("rows", []):
        if (row["method"], row["clients"], row["clusters"]) == (kind, 100, 4):
            return dict(row)
    return None


def _measured(found: Mapping[str, Any] | None, scheme: str, d: int) -> dict[str, Any] | None:
    if found is None:
        return None
    rows = [row for part in ("schemes", "secagg", "references") for row in found.get(part, [])]
    for row in rows:
        if (row["scheme"], row["d"]) == (scheme, d) and not row.get("skipped"):
            return dict(row)
    return None


def _name(scheme: str, row: Mapping[str, Any] | None) -> str:
    return f"{scheme}*" if row and row.get("scaled_from") else scheme


def _milliseconds(row: Mapping[str, Any] | None, key: str) -> Cell:
    if row is None:
        return Cell(NOT_RUN)
    secagg = {"seal_ms": "client_ms", "sum_ms": "server_ms"}
    value = row.get(key) or row.get(secagg.get(key, ""))
    return Cell(ABSENT) if value is None else Cell(amount(value["cpu"]), value["cpu"])


def _printed(table: str, d: int, scheme: str, key: str, digits: int | None = None) -> Cell:
    theirs = published_value(table, str(d), "all", scheme, key) if scheme else None
    if theirs is None:
        return Cell(ABSENT)
    return Cell(amount(theirs.mean) if digits is None else f"{theirs.mean:.{digits}f}", theirs.mean)


def _cost(row: Mapping[str, Any] | None, key: str) -> Cell:
    if row is None:
        return Cell(NOT_RUN)
    value = row[key] + (row["once_ms"] if key == "client_ms" else 0.0)
    return Cell(ABSENT) if value <= NOTHING else Cell(amount(value), value)


def _power(growth: Mapping[str, Any] | None, by: str, key: str) -> Cell:
    value = None if growth is None else growth[by][key]
    return Cell(ABSENT) if value is None else Cell(f"{round(value, 2) + 0.0:.2f}", value)


def _drawn(entry: CatalogueEntry, lead: str, table: Table, found: Mapping[str, Any] | None) -> RenderedTable:
    told, runs = sentences([lead, _where(found)]), (0 if found is None else 1, 1)
    return RenderedTable(entry.name, entry.title, told, [("", table)], table, runs=runs)


def _where(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "Not measured here."
    return f"Measured on {found['machine']['cpu']}, {found['machine']['cores']} cores."
