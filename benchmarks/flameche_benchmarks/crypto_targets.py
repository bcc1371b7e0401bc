"""Measured costs of encryption beside those that the paper published, and beside targets.

The paper's are of its tables of cryptographic overhead and of communication ("Discussion of Cryptographic
Implications"): 100 clients, wall-clock time on an Intel Core i7 with 16 threads; CKKS by TenSEAL, Paillier by
the authors' C++ with 2048-bit keys, one ciphertext per element, sizes in hex. Its MB are of 2**20 bytes.
Paillier at 840 is scaled linearly from 5,120 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flameche_benchmarks.crypto_plan import Row

MIB = 2**20


@dataclass(frozen=True)
class Published:
    """One cell group of the tables: milliseconds, and bytes up per client; None where the paper has none."""

    seal: float
    sum: float
    open: float | None
    bytes: int | None


def _mib(size: float) -> int:
    return round(size * MIB)


PUBLISHED = {
    ("secagg", 840): Published(0.35, 0.05, None, _mib(0.0064)),
    ("secagg", 5120): Published(2.54, 0.26, None, _mib(0.0391)),
    ("secagg", 61706): Published(27.72, 2.80, None, None),
    ("ckks", 840): Published(6.90, 12.40, 1.80, _mib(0.6996)),
    ("ckks", 5120): Published(9.00, 12.40, 1.80, _mib(0.6996)),
    ("ckks", 61706): Published(60.70, 99.20, 14.90, None),
    ("paillier", 840): Published(9570.0, 330.0, 6220.0, _mib(0.4095)),
    ("paillier", 5120): Published(58300.0, 2010.0, 37890.0, _mib(2.4963)),
}


METADATA, LARGER = 840, 5120
STEPS = ("seal", "sum", "open")


def paper_rows(dims: tuple[int, ...]) -> list[Row]:
    """List what the paper published for these sizes."""
    return [
        {
            "scheme": scheme,
            "d": d,
            "seal_ms": published.seal,
            "sum_ms": published.sum,
            "open_ms": published.open,
            "bytes_up": published.bytes,
        }
        for (scheme, d), published in PUBLISHED.items()
        if d in dims
    ]


def ratios(found: dict[str, Any]) -> list[Row]:
    """Return how many times faster (in CPU time) and smaller each scheme is than its reference."""
    rows = []
    for ours, reference, d in (("paillier-3072", "phe-2048", LARGER), ("bfv", "ckks-paper", METADATA)):
        a, b = _row(found, ours, d), _row(found, reference, d)
        if a is None or b is None:
            continue
        times = {step: b[f"{step}_ms"]["cpu"] / a[f"{step}_ms"]["cpu"] for step in STEPS}
        rows.append(
            {"ours": ours, "reference": reference, "d": d, **times, "bytes": b["bytes_up"] / a["bytes_up"]}
        )
    return rows


def targets(found: dict[str, Any]) -> list[Row]:
    """Compare the measurements with targets; `met` is None where a value was not measured."""
    by_pair = {(row["ours"], row["reference"]): row for row in found["ratios"]}
    phe, ckks = by_pair.get(("paillier-3072", "phe-2048")), by_pair.get(("bfv", "ckks-paper"))
    paillier = _row(found, "paillier-3072", LARGER)
    secagg = [r for graph in ("full", "sparse") if (r := _row(found, f"secagg-{graph}", LARGER))]
    rounds = [row for row in found["rounds"] if not row["skipped"]]
    return [
        _least(
            "Paillier 3072 seals d = 5,120 faster than phe 2048", phe["seal"] if phe else None, 100, "times"
        ),
        _most("Paillier 3072, d = 5,120, up", paillier["bytes_up"] / 1e3 if paillier else None, 60, "KB"),
        _least(
            "BFV faster than ckks-paper, d = 840, in its worst step",
            min(ckks[step] for step in STEPS) if ckks else None,
            4,
            "times",
        ),
        _least("BFV smaller than ckks-paper, d = 840", ckks["bytes"] if ckks else None, 5, "times"),
        *(
            _most(
                f"{row['scheme']}, {row['clients']} clients, d = 5,120, a client",
                row["client_ms"]["cpu"],
                15,
                "ms",
            )
            for row in secagg
        ),
        *(
            _most(
                f"BFV adds to a round of {row['participants']}, {when}, all opening",
                row["added_each_s"][key],
                0.1,
                "s",
            )
            for row in rounds
            for key, when in (("first", "first"), ("steady", "later"))
        ),
    ]


def _row(found: dict[str, Any], scheme: str, d: int) -> Row | None:
    rows = [*found["schemes"], *found["secagg"], *found["references"]]
    return next((r for r in rows if r["scheme"] == scheme and r["d"] == d and not r["skipped"]), None)


def _least(what: str, value: float | None, bound: float, unit: str) -> Row:
    met = None if value is None else value >= bound
    return {"what": what, "wanted": f">= {bound:g} {unit}", "measured": value, "unit": unit, "met": met}


def _most(what: str, value: float | None, bound: float, unit: str) -> Row:
    met = None if value is None else value <= bound
    return {"what": what, "wanted": f"<= {bound:g} {unit}", "measured": value, "unit": unit, "met": met}
