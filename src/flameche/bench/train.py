"""Local training measured: the plain loop, ours, and Flower's Ray simulation on the same work, in one run.

Every side runs in a process of its own, with the same settings of the allocator; the first round, which pays
for starts and compilations, is told apart. Images are noise: nothing here depends on what they show.
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

from flameche.bench.machine import load, machine, packages
from flameche.bench.processes import PeakMemory
from flameche.training.device import device_name

Progress = Callable[[str, int, int], None]  # what, done, of how many
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}
# What is compared, by device; the first is the measure.
SIDES = {
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
    """List the rounds to measure; quick ones are a taste of the same work."""
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
    """Measure every side of every case; give rows ready for JSON."""
    jobs = [(case, side) for case in rounds for side in SIDES[case.device]]
    rows: list[dict[str, Any]] = []
    for done, (case, side) in enumerate(jobs):
        if progress:
            progress(f"{case.model}, {case.clients} clients: {side}", done, len(jobs))
        about = {key: value for key, value in asdict(case).items() if key not in ("rounds", "seconds")}
        rows.append({"side": side, **about, "load": load(), **run_side(case, side)})
    device = rounds[0].device
    return {
        "machine": machine(),
        "device": device_name(device) if device == "cuda" else "cpu",
        "versions": packages(("torch", "flwr", "ray")),
        "allocator": ALLOCATOR,
        "rows": [{**row, "ratio": _ratio(row, rows)} for row in rows],
    }


def run_side(case: Case, side: str) -> dict[str, Any]:
    """Run one side in a process of its own; its times, its peak memory, or why there are none."""
    if side == "flower" and not (find_spec("flwr") and find_spec("ray")):
        return {"skipped": "not installed"}
    module = "flameche.bench.train_flower" if side == "flower" else "flameche.bench.train_side"
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, side, json.dumps(asdict(case))],
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
