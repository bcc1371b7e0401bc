"""Measures what encryption costs: every scheme, the references, and a round of the protocol, in one run.

Every sum is opened and compared with the plain one; a wrong sum ends the benchmark. Process CPU time is the
main figure, since it depends least on who else is on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from flameche.crypto.api import ClientKey, Scheme
from flameche.crypto.registry import make_scheme
from flameche.errors import ConfigError
from flameche.experiments.provenance import environment
from flameche.registry import SCHEMES
from flameche_benchmarks.crypto_plan import BOUND, Plan, Progress, Row, checked_error, random_vectors
from flameche_benchmarks.crypto_rounds import round_row
from flameche_benchmarks.crypto_targets import paper_rows, ratios, targets
from flameche_benchmarks.machine import describe_machine, load_average, package_versions
from flameche_benchmarks.phe_reference import phe_row
from flameche_benchmarks.secagg_sessions import session_row
from flameche_benchmarks.timing import time_call, time_calls

KINDS = {  # label: scheme, bits of its key
    "plain": ("plain", 0),
    "paillier-3072": ("paillier", 3072),
    "paillier-2048": ("paillier", 2048),
    "bfv": ("bfv", 0),
    "ckks": ("ckks", 0),
    "ckks-paper": ("ckks-paper", 0),
}
LARGE = 20_000  # numbers in a vector; Paillier above it is left out of quick runs
LEAST_SEALED = 3
TIME = "milliseconds, medians; cpu: process CPU time over all threads, the main figure; wall: elapsed"


def measure(plan: Plan, progress: Progress | None = None) -> dict[str, Any]:
    """Measure everything in the plan: one document, ready for JSON."""
    jobs: list[tuple[str, str, Callable[[], Row]]] = []
    for d in plan.dims:
        jobs += [("schemes", f"{label}, d = {d:,}", partial(scheme_row, label, d, plan)) for label in KINDS]
        jobs += [
            ("secagg", f"secagg {graph}, d = {d:,}", partial(session_row, graph, d, plan))
            for graph in ("full", "sparse")
        ]
        jobs.append(("references", f"phe, d = {d:,}", partial(phe_row, d, plan)))
    jobs.append(("rounds", "rounds under bfv", partial(round_row, "bfv", plan)))
    found: dict[str, Any] = {
        "benchmark": "crypto",
        "time": TIME,
        "machine": describe_machine(),
        "versions": package_versions(),
        "environment": environment("cpu"),
        "plan": asdict(plan),
        **{table: [] for table in ("schemes", "secagg", "references", "rounds")},
    }
    for i, (table, what, job) in enumerate(jobs):
        if progress:
            progress(what, i, len(jobs))
        found[table].append(job())
    if progress:
        progress("done", len(jobs), len(jobs))
    found["machine"]["load_after"] = load_average()
    found["paper"] = paper_rows(plan.dims)
    found["ratios"] = ratios(found)
    found["targets"] = targets(found)
    return found


def scheme_row(label: str, d: int, plan: Plan) -> Row:
    """Seal, load, add and open all clients' vectors [d] under one scheme."""
    row: Row = {"scheme": label, "d": d, "clients": plan.clients}
    kind, bits = KINDS[label]
    if kind == "paillier" and d > LARGE and not plan.large_paillier:
        return {**row, "skipped": "takes a minute, not in a quick run"}
    try:
        (scheme, key), setup = time_call(lambda: _prepare_keys(kind, bits, plan.clients), most=1, budget=0)
    except ConfigError as error:
        if isinstance(error.__cause__, ImportError):
            return {**row, "skipped": f"needs {SCHEMES[kind].needs}"}
        raise
    vectors = random_vectors(plan.clients, d)
    seals = [partial(key.seal, vector) for vector in vectors]
    sealed, seal = time_calls(seals, least=LEAST_SEALED, budget=plan.budget)
    # Where sealing all of them would take too long, those that are sealed enter the sum several times.
    order = np.arange(plan.clients) % len(sealed)
    adder = scheme.adder()
    most, budget = plan.repeats, plan.budget
    loaded, loading = time_call(lambda: [adder.load(sealed[i]) for i in order], most=most, budget=budget)
    total, add = time_call(lambda: adder.add(loaded), most=most, budget=budget)
    data, write = time_call(total.to_bytes, most=most, budget=budget)
    opened, opening = time_call(lambda: key.open(data), most=most, budget=budget)
    return {
        **row,
        "skipped": None,
        "setup_ms": setup,
        "seal_ms": seal,
        "load_ms": loading,
        "add_ms": add,
        "write_ms": write,
        "sum_ms": {
            "cpu": loading["cpu"] + add["cpu"] + write["cpu"],
            "wall": loading["wall"] + add["wall"] + write["wall"],
        },
        "open_ms": opening,
        "bytes_up": len(sealed[0]),
        "bytes_down": len(data),
        "sealed": len(sealed),
        "error": checked_error(label, opened, vectors[order].sum(axis=0), plan.clients * tolerance(scheme)),
    }


def tolerance(scheme: Scheme) -> float:
    """Bound the error of one term, by what the scheme itself states; in the clear that is float32's."""
    if scheme.name == "plain":
        return float(np.finfo(np.float32).eps) / 2
    stated: Any = getattr(scheme, "public", scheme)  # Paillier's codec belongs to its public key
    return float(getattr(stated, "codec", stated).tolerance)


def _prepare_keys(kind: str, bits: int, clients: int) -> tuple[Scheme, ClientKey]:
    """Make keys and use them once: what is computed once per key is set-up, not sealing."""
    scheme = make_scheme(kind, clients=clients, bound=BOUND, key_bits=bits or 3072)
    key = scheme.client_key()
    key.seal(np.zeros(1))
    return scheme, key
