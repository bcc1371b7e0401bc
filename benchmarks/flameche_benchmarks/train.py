"""Measures local training: the plain loop, ours, and Flower's Ray simulation on the same work, in one run.

Each contender runs in a process of its own, with the same allocator settings; the first round, which includes
start-up and compilation, is reported separately. Images are noise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from statistics import median
from typing import Any

from flameche.training.device import device_name
from flameche_benchmarks.crypto_tables import TextTable, markdown_table
from flameche_benchmarks.machine import PeakMemory, describe_machine, load_average, package_versions

Progress = Callable[[str, int, int], None]  # what, done, of how many
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}
# What is compared, by device; the first is the measure.
CONTENDERS = {
    "cpu": ("loop", "auto", "flower"),
    "cuda": ("loop", "vmap", "fused tf32", "fused bf16"),
}
TITLES = {"loop": "plain loop", "auto": "ours (auto)", "flower": "Flower, Ray simulation", "vmap": "vmap"}


@dataclass(frozen=True)
class Case:
    """A round: so many clients train a model, each on as many samples."""

    model: str
    clients: int
    samples: int
    epochs: int
    batch: int
    shape: tuple[int, int, int]
    rounds: int  # at most
    seconds: float  # after which no other round begins, but for the second
    device: str = "cpu"


LENET = Case("lenet5", 20, 500, 5, 128, (1, 28, 28), 6, 60.0)
RESNET = Case("resnet18", 20, 500, 10, 256, (3, 32, 32), 3, 60.0)


def cases(models: Sequence[str], clients: Sequence[int], quick: bool, device: str) -> list[Case]:
    """List the rounds to measure; quick ones do a fraction of the same work."""
    found = []
    for case in (LENET, RESNET):
        if case.model in models:
            found += [replace(case, clients=n, device=device) for n in clients]
    if quick:
        small: dict[str, dict[str, Any]] = {
            "lenet5": {"epochs": 2},
            "resnet18": {"samples": 64, "epochs": 1, "batch": 32},
        }
        found = [replace(c, clients=c.clients // 5, rounds=3, **small[c.model]) for c in found]
    return found


def measure(rounds: Sequence[Case], progress: Progress | None = None) -> dict[str, Any]:
    """Measure every contender in every case; return rows ready for JSON."""
    jobs = [(case, contender) for case in rounds for contender in CONTENDERS[case.device]]
    rows: list[dict[str, Any]] = []
    for done, (case, contender) in enumerate(jobs):
        if progress:
            progress(f"{case.model}, {case.clients} clients: {contender}", done, len(jobs))
        about = {key: value for key, value in asdict(case).items() if key not in ("rounds", "seconds")}
        rows.append({"side": contender, **about, "load": load_average(), **run_contender(case, contender)})
    device = rounds[0].device
    return {
        "machine": describe_machine(),
        "device": device_name(device) if device == "cuda" else "cpu",
        "versions": package_versions(("torch", "flwr", "ray")),
        "allocator": ALLOCATOR,
        "rows": [{**row, "ratio": _ratio(row, rows)} for row in rows],
    }


def run_contender(case: Case, contender: str) -> dict[str, Any]:
    """Run one contender in a process of its own; return its times and peak memory, or why there are none."""
    if contender == "flower" and not (find_spec("flwr") and find_spec("ray")):
        return {"skipped": "not installed"}
    module = (
        "flameche_benchmarks.train_flower" if contender == "flower" else "flameche_benchmarks.train_worker"
    )
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, contender, json.dumps(asdict(case))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ALLOCATOR, **threads, "PYTHONPATH": path},
    )
    try:
        with PeakMemory(process.pid) as watch:
            out, err = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        last = (err.strip().splitlines() or ["no message"])[-1]
        return {"skipped": f"failed: {last[:200]}"}
    found = json.loads(out.strip().splitlines()[-1])
    if "skipped" in found:
        return {"skipped": found["skipped"]}
    later = found["seconds"][1:]
    return {
        "skipped": None,
        "first_s": found["seconds"][0],
        "round_s": median(later),
        "fastest_s": min(later),
        "slowest_s": max(later),
        "rounds": len(later),
        "cpu_s": median(found["cpu"][1:]),
        "peak_mb": watch.peak / 1e6,
        "cuda_mb": found["cuda_mb"],
    }


def _ratio(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """Divide the plain loop's time by a row's."""
    same = ("model", "clients", "device")
    base = next(
        (r for r in rows if r["side"] == "loop" and all(r[key] == row[key] for key in same)), {"skipped": ""}
    )
    if row["skipped"] is not None or base["skipped"] is not None:
        return None
    return float(base["round_s"] / row["round_s"])


def train_heading(found: dict[str, Any]) -> list[str]:
    """Say on what machine and how it was measured."""
    describe_machine = found["machine"]
    busy = "" if describe_machine["load"] is None else f", load {describe_machine['load']:.1f}"
    numbers = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if number)
    on = "" if found["device"] == "cpu" else f"; {found['device']}"
    return [
        f"{describe_machine['cpu']}, {describe_machine['cores']} cores{busy}{on}",
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
