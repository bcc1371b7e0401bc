"""The reference for Paillier: `phe`, one ciphertext per element, called as its manual does.

`phe` is under the GPL and never a dependency: it is measured where it happens to be installed. A sample of
elements is measured, and scaled linearly to d.
"""

from __future__ import annotations

import importlib
from functools import partial, reduce
from operator import add

import numpy as np

from flameche_benchmarks.crypto_plan import Plan, Row, checked_error, random_vectors
from flameche_benchmarks.timing import Times, time_call, time_calls

KEY_BITS = 2048
PRECISION = 2.0**-24  # one exponent for all, so that phe need not align them before it adds


def phe_row(d: int, plan: Plan) -> Row:
    """Encrypt, add and decrypt a sample of elements; times and bytes are scaled to vectors [d]."""
    row: Row = {"scheme": f"phe-{KEY_BITS}", "d": d, "clients": plan.clients}
    try:
        phe = importlib.import_module("phe")
    except ImportError:
        return {**row, "skipped": "needs phe"}
    public, private = phe.generate_paillier_keypair(n_length=KEY_BITS)
    values = random_vectors(1, d)[0, : plan.phe_sample]
    encrypts = [partial(public.encrypt, value, precision=PRECISION) for value in values.tolist()]
    sealed, seal = time_calls(encrypts, least=len(values), budget=0)
    terms = [sealed[i % len(sealed)] for i in range(plan.clients)]
    total, adding = time_call(lambda: reduce(add, terms), most=plan.repeats, budget=plan.budget)
    opened, opening = time_calls([partial(private.decrypt, c) for c in sealed], least=len(values), budget=0)
    expected = np.array([sum(values[i % len(values)] for i in range(plan.clients))])
    checked_error("phe", np.array([private.decrypt(total)]), expected, plan.clients * PRECISION)
    return {
        **row,
        "skipped": None,
        "scaled_from": len(values),
        "seal_ms": _scaled(seal, d),
        "sum_ms": _scaled(adding, d),
        "open_ms": _scaled(opening, d),
        "bytes_up": d * 2 * KEY_BITS // 8,
        "error": checked_error("phe", np.array(opened), values, PRECISION),
    }


def _scaled(times: Times, d: int) -> Times:
    return Times(cpu=d * times["cpu"], wall=d * times["wall"], repeats=times["repeats"])
