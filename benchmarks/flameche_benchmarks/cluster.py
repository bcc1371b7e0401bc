"""Measures clustering: how extraction, E-step and M-step grow with clients, metadata and clusters.

In the clear and sealed. The M-step is the server's sums of all clients' terms; sealed, clients also seal
their terms once and open the sums. Rounds of large federations are run, and their memory is watched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from flameche.crypto.api import Scheme
from flameche.crypto.registry import make_scheme
from flameche.em.spherical import Centroids, e_step, m_step, statistics
from flameche.errors import ConfigError
from flameche.metadata.extractors import ClientSamples, class_means, mean_images
from flameche.models.build import build_model
from flameche.models.features import FeatureExtractor
from flameche.rng import stream
from flameche.training.device import prepare_torch
from flameche_benchmarks.crypto_tables import TextTable, markdown_table
from flameche_benchmarks.machine import describe_machine, package_versions
from flameche_benchmarks.overhead import growth_exponent
from flameche_benchmarks.stand_in_training import planted_federation
from flameche_benchmarks.timing import time_call

Progress = Callable[[str, int, int], None]  # what, done, of how many
BLOCKS = 10
SEALED = 16  # different sealed terms, which are summed in turn: sealing is measured on its own
STEPS = ("extraction", "seal", "e_step", "m_step", "open")  # of all clients, but the server's and a client's


INDEPENDENT = (("extraction", "K"), ("seal", "K"), ("open", "N"))


@dataclass(frozen=True)
class Grid:
    """Sizes to measure, one after another while the others stay at the base; and the large federations."""

    clients: tuple[int, ...] = (100, 200, 400, 800, 1600)
    features: tuple[int, ...] = (21, 42, 84, 168, 336)  # d = 10 x
    clusters: tuple[int, ...] = (2, 4, 8, 16)
    base: tuple[int, int, int] = (400, 84, 4)
    repeats: int = 7
    budget: float = 3.0  # seconds for one figure
    large: tuple[int, ...] = (100_000,)
    rounds: int = 30

    @classmethod
    def quick(cls) -> Grid:
        """Measure in about a minute."""
        return cls((50, 100, 200), (42, 84, 168), (2, 4, 8), (100, 84, 4), 3, 0.5, (10_000,), 5)

    def points(self) -> list[tuple[int, int, int]]:
        """List the triples (N, F, K), each once."""
        n, f, k = self.base
        found = [(c, f, k) for c in self.clients] + [(n, c, k) for c in self.features]
        return list(dict.fromkeys(found + [(n, f, c) for c in self.clusters]))


@dataclass(frozen=True)
class Large:
    """A large federation; a hundredth of the clients takes part in each round."""

    clients: int
    least: int  # the smallest sum that may be opened
    rounds: int
    features: int = 84
    clusters: int = 16


def measure(grid: Grid, progress: Progress | None = None) -> dict[str, Any]:
    """Measure all sizes; return rows, growth and the large federations, ready for JSON."""
    prepare_torch("cpu", 1)
    points = grid.points()
    large = [Large(n, least, grid.rounds) for n in grid.large for least in (1, 3)]
    of = 2 * len(points) + len(large)
    rows: list[dict[str, Any]] = []
    for number, kind in enumerate(("plain", "bfv")):
        try:
            scheme = make_scheme(kind, clients=max(n for n, _, _ in points))
        except ConfigError as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            continue
        for done, point in enumerate(points):
            if progress:
                progress(f"{kind}, N {point[0]}, d {BLOCKS * point[1]}", number * len(points) + done, of)
            with threadpool_limits(1, "blas"):  # whose threads spin, which would count as work
                rows.append(_row(kind, scheme, point, grid))
    played = []
    for done, case in enumerate(large):
        if progress:
            progress(f"{case.clients:,} clients, least {case.least}", 2 * len(points) + done, of)
        played.append(_run_large(case))
    kinds = list(dict.fromkeys(row["scheme"] for row in rows))
    return {
        "machine": describe_machine(),
        "versions": package_versions(("torch",)),
        "base": dict(zip(("N", "F", "K"), grid.base, strict=True)),
        "rows": rows,
        "growth": {kind: _growth([r for r in rows if r["scheme"] == kind], grid) for kind in kinds},
        "large": played,
    }


def _row(kind: str, scheme: Scheme, point: tuple[int, int, int], grid: Grid) -> dict[str, Any]:
    """Time every step at one size, in milliseconds of CPU time."""
    n, f, k = point
    phi = 1.0 + 0.5 * stream(0, "bench", "cluster", n, f).random((n, BLOCKS, f))
    weight = np.ones((n, BLOCKS))
    centroids = Centroids(phi[:k].copy(), np.ones((k, BLOCKS)))
    assignment = np.arange(n) % k
    key, adder = scheme.client_key(), scheme.adder()
    terms = statistics(phi, weight)

    def ms(call: Callable[[], Any]) -> float:
        return time_call(call, most=grid.repeats, budget=grid.budget)[1]["cpu"]

    data = [key.seal(term) for term in terms[:SEALED]]
    loaded = [adder.load(each) for each in data]
    members = [np.flatnonzero(assignment == i) for i in range(k)]

    def sums() -> list[bytes]:
        return [adder.add([loaded[i % len(loaded)] for i in mine]).to_bytes() for mine in members]

    totals = sums()
    opened = np.stack([key.open(total) for total in totals])
    plain = kind == "plain"
    return {
        "scheme": kind,
        "N": n,
        "d": BLOCKS * f,
        "K": k,
        "extraction": _extraction(n, f, grid) if plain else None,
        "seal": None if plain else n * ms(lambda: key.seal(terms[0])),
        "e_step": ms(lambda: e_step(phi, weight, centroids)) if plain else None,
        "m_step": ms(sums) + ms(lambda: m_step(opened, centroids)),
        "open": None if plain else ms(lambda: [key.open(total) for total in totals]),
    }


def _extraction(n: int, f: int, grid: Grid) -> float:
    """Time all clients' class means: of LeNet-5's features at the base, else of images with f pixels."""
    federation = planted_federation(n, 4)
    own = federation.train
    if f == grid.base[1]:
        samples = ClientSamples(own.x, own.y, own.offsets, federation.classes)
        model = build_model("lenet5", federation.shape, federation.classes, 0)
        network = FeatureExtractor(model, federation.shape, seed=0)
        return time_call(lambda: class_means(samples, network), most=3, budget=grid.budget)[1]["cpu"]
    pixels = own.x.reshape(len(own.x), 1, 1, -1)[..., :f].copy()
    samples = ClientSamples(pixels, own.y, own.offsets, federation.classes)
    return time_call(lambda: mean_images(samples), most=grid.repeats, budget=grid.budget)[1]["cpu"]


def _growth(rows: list[dict[str, Any]], grid: Grid) -> dict[str, dict[str, float | None]]:
    """Fit an exponent for every step and size; None where a step has no cost, or was another at the base."""
    n, f, k = grid.base
    base = {"N": n, "d": BLOCKS * f, "K": k}
    found: dict[str, dict[str, float | None]] = {}
    for step in STEPS:
        for by in base:
            same = [r for r in rows if all(r[other] == base[other] for other in base if other != by)]
            if step == "extraction" and by == "d":
                same = [r for r in same if r["d"] != base["d"]]
            costs = [r[step] for r in same]
            nothing = None in costs or (step, by) in INDEPENDENT
            found.setdefault(step, {})[by] = (
                None if nothing else growth_exponent([r[by] for r in same], costs)
            )
    return found


def _run_large(case: Large) -> dict[str, Any]:
    """Run a large federation in a process of its own, so that its memory can be measured."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flameche_benchmarks.large_federation", json.dumps(asdict(case))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        return {**asdict(case), "skipped": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        **asdict(case),
        "skipped": None,
        "median_s": median(found["seconds"]),
        "slowest_s": max(found["seconds"]),
        **found,
    }


TITLES = {
    "extraction": "extraction, all clients",
    "seal": "sealing, all clients, once",
    "e_step": "E-step, all clients",
    "m_step": "M-step, server",
    "open": "opening the sums, a client",
}


def cluster_heading(found: dict[str, Any]) -> list[str]:
    """Say on what machine and how it was measured."""
    describe_machine, base = found["machine"], found["base"]
    busy = "" if describe_machine["load"] is None else f", load {describe_machine['load']:.1f}"
    return [
        f"{describe_machine['cpu']}, {describe_machine['cores']} cores{busy}; one thread",
        "Medians of process CPU time in ms. Sizes change one at a time around "
        f"N = {base['N']}, d = {10 * base['F']}, K = {base['K']}.",
    ]


def cluster_tables(found: dict[str, Any]) -> list[TextTable]:
    """Make the tables: growth first, then the times behind it, then rounds of large federations."""
    tables = [_growth_table(found), _times(found)]
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


def _growth_table(found: dict[str, Any]) -> TextTable:
    base = {"N": found["base"]["N"], "d": 10 * found["base"]["F"], "K": found["base"]["K"]}
    rows = []
    for kind, powers_of in found["growth"].items():
        at = next(r for r in found["rows"] if r["scheme"] == kind and all(r[k] == v for k, v in base.items()))
        for step in STEPS:
            if at[step] is not None:
                powers = {f"grows as {by}^": _power(powers_of[step][by]) for by in base}
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
