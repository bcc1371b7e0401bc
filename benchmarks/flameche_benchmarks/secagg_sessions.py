"""Measures whole sessions of secure aggregation: keys, shares, masks, unmasking, and recovery."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.codec import exact_codec
from flameche_benchmarks.crypto_plan import BOUND, Plan, Row, checked_error, random_vectors

if TYPE_CHECKING:
    from flameche.crypto.secagg.driver import Costs

ATTEMPTS = 5  # a sparse graph loses one session in a thousand to unlucky dropouts; it is held again
Ints = NDArray[np.int64]


def session_row(graph: str, d: int, plan: Plan) -> Row:
    """Sum vectors [d] in sessions with a "full" or "sparse" graph: all present, and with a tenth dropped."""
    n = plan.clients
    row: Row = {"scheme": f"secagg-{graph}", "d": d, "clients": n}
    try:
        from flameche.crypto.secagg.graph import degree
        from flameche.crypto.secagg.session import Session  # noqa: F401 - is all of it there?
    except ImportError:
        return {**row, "skipped": "needs cryptography"}
    neighbours = n - 1 if graph == "full" else degree(n)
    codec, vectors = exact_codec(BOUND, n)[0], random_vectors(n, d)
    encoded = np.stack([codec.encode(vector) for vector in vectors])
    stay = n - n // 10  # the others vanish when their masks are already in everybody's vectors
    whole: list[tuple[Costs, float]] = []
    broken: list[Costs] = []
    start, error = time.perf_counter(), 0.0
    while len(whole) < plan.repeats and (not whole or time.perf_counter() - start < plan.budget):
        total, costs, wall = _session(encoded, neighbours, stay=n)
        error = checked_error("secagg", codec.decode(total), vectors.sum(axis=0), n * codec.tolerance)
        whole.append((costs, wall))
        if stay < n:
            total, costs, _ = _session(encoded, neighbours, stay)
            checked_error("secagg", codec.decode(total), vectors[:stay].sum(axis=0), n * codec.tolerance)
            broken.append(costs)
    costs = whole[0][0]
    return {
        **row,
        "skipped": None,
        "neighbours": neighbours,
        "repeats": len(whole),
        "client_ms": {"cpu": 1e3 * median(costs.client_seconds for costs, _ in whole) / n},
        "server_ms": {"cpu": 1e3 * median(costs.server_seconds for costs, _ in whole)},
        "session_ms": {"wall": 1e3 * median(wall for _, wall in whole)},
        "dropped": n - stay,
        "recovery_ms": {"cpu": 1e3 * median(costs.server_seconds for costs in broken) if broken else None},
        "bytes_up": round(float(costs.up.mean())),
        "bytes_down": round(float(costs.down.mean())),
        "error": error,
    }


def _session(encoded: Ints, neighbours: int, stay: int) -> tuple[Ints, Costs, float]:
    """Run a session in which all but the first `stay` clients drop out; return sum, costs and wall time."""
    from flameche.crypto.secagg import Abort, aggregate

    gone = {"mask": range(stay, len(encoded))}
    for _ in range(ATTEMPTS):
        start = time.perf_counter()
        try:
            total, _, costs = aggregate(encoded, neighbours=neighbours, dropouts=gone)
        except Abort:
            continue
        return total, costs, time.perf_counter() - start
    raise Abort(f"{ATTEMPTS} sessions in a row were lost to dropouts")
