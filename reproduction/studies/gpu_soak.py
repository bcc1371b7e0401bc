"""Tries whether training on a busy GPU gives the numbers of an idle one, to the bit.

Rounds of LeNet-5 by one process alone, by the same with all new memory full of NaN, by many at once (under
MPS where there is one); then a small round under compute-sanitizer, where there is one. Prints a JSON line
per part and a verdict, within three minutes; exit code 1 if anything is wrong.
python reproduction/studies/gpu_soak.py [--processes 8] [--rounds 60] [--precision tf32] [--src
other/src]: `--src` has another version of the package, such as one from before a repair.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CLIENTS, PICKED, BATCH, EPOCHS = 100, 20, 128, 5
TOOLS = {"memcheck": [], "initcheck": [], "racecheck": ["--racecheck-report", "analysis"]}
TOOL_SECONDS = 25
START = "soak "  # a child's line begins with it


def say(**found: Any) -> None:
    """Print a finding."""
    print(json.dumps(found), flush=True)


def play(rounds: int, precision: str, dirty: bool, small: bool) -> list[str]:
    """Train rounds of averaged models; give a digest of the clients' weights per round, "nan" for NaN."""
    import numpy as np
    import torch

    from flameche.data.federation import Federation, Samples
    from flameche.models.build import build_model
    from flameche.training.device import prepare_torch
    from flameche.training.kernels import stacked_trainer
    from flameche.training.models import Models
    from flameche.training.trainer import TrainingPlan

    device = "cuda" if torch.cuda.is_available() else "cpu"
    prepare_torch(device)
    if dirty:
        torch.use_deterministic_algorithms(True, warn_only=True)
        stacked_trainer.matmul_precision = _dirty  # type: ignore[attr-defined,assignment]
    clients, picked, batch = (3, 3, 8) if small else (CLIENTS, PICKED, BATCH)
    rng = np.random.default_rng(0)
    sizes = rng.integers(9, 20, clients) if small else rng.integers(300, 900, clients)

    def samples(counts: Any) -> Samples:
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        y = rng.integers(0, 10, offsets[-1])
        x = rng.integers(0, 128, (offsets[-1], 1, 28, 28), dtype=np.uint8)
        for label in range(10):
            row, column = divmod(label, 4)
            x[y == label, :, row * 5 : row * 5 + 5, column * 5 : column * 5 + 5] += 100
        return Samples(x, y, offsets)

    group = np.zeros(clients, np.int64)
    data = Federation("made", "none", 10, samples(sizes), samples(0 * sizes), samples([200]), group, group)
    trainer = stacked_trainer.StackedTrainer(
        build_model("lenet5", (1, 28, 28), 10, seed=0), data,
        TrainingPlan(epochs=1 if small else EPOCHS, batch=batch), 7,
        device=device, precision=precision, budget_gib=4.0, capture=not small,
    )  # fmt: skip
    models, digests = trainer.initial(), []
    for number in range(1, rounds + 1):
        who = rng.choice(clients, picked, replace=False)
        trained = trainer.train(models, np.zeros(picked, np.int64), who, number)
        digest = hashlib.sha256(trained.params.cpu().numpy().tobytes()).hexdigest()[:16]
        digests.append(digest if trained.finite else "nan")
        models = Models(trained.params.mean(0, keepdim=True), trained.buffers[:1])
        if number % 10 == 0:
            trainer.accuracy(models, group)
    return digests


@contextmanager
def _dirty(precision: str) -> Iterator[None]:
    """Set how products round, as the trainer does, but fill new memory with NaN."""
    import torch

    from flameche.training.kernels.cuda_graphs import matmul_precision

    with matmul_precision(precision):  # type: ignore[arg-type]
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        yield


class Child:
    """A process that plays, and what it says."""

    def __init__(self, options: argparse.Namespace, *more: str, before: tuple[str, ...] = ()) -> None:
        given = ["--rounds", str(options.rounds), "--precision", options.precision, "--src", options.src]
        given += ["--small"] * options.small
        command = [*before, sys.executable, str(HERE), "--child", *given, *more]
        self.out = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=self.out, stderr=subprocess.STDOUT)

    def ended(self, deadline: float) -> str:
        """Wait until then at most; give all it printed."""
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.out.seek(0)
        said = self.out.read()
        self.out.close()
        return said

    def digests(self, deadline: float) -> list[str]:
        """Give its digests; raise with its last words if it has none."""
        said = self.ended(deadline)
        for line in said.splitlines():
            if line.startswith(START):
                return [str(each) for each in json.loads(line[len(START) :])]
        raise RuntimeError(f"no result: {said[-600:]}")


@contextmanager
def mps() -> Iterator[bool]:
    """Let processes share the GPU's multiprocessors, where that can be done."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield False
        return
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(own)
        started = subprocess.run([control, "-d"], check=False).returncode == 0
        try:
            yield started
        finally:
            if started:
                subprocess.run([control], input="quit\n", text=True, check=False, timeout=20)
            for key in own:
                os.environ.pop(key)


def compare(part: str, alone: list[str], found: list[list[str]], **more: Any) -> bool:
    """Say in which rounds processes left the numbers of one alone."""
    first = [next((n + 1 for n, d in enumerate(own) if d != alone[n]), None) for own in found]
    nan = [own.index("nan") + 1 if "nan" in own else None for own in found]
    good = not any(first) and not any(nan)
    say(part=part, same=good, first_other_round=first, first_nan_round=nan, **more)
    return good


def sanitize(options: argparse.Namespace, deadline: float) -> bool:
    """Run a small round under each tool; one that is not there or takes too long says nothing."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        say(part="sanitizer", missing=True)
        return True
    good = True
    for name, more in TOOLS.items():
        until = min(deadline, time.monotonic() + TOOL_SECONDS)
        child = Child(options, "--small", "--rounds", "1", before=(tool, "--tool", name, *more))
        said = child.ended(until)
        errors = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", said)
        count = int(errors[1] or errors[2]) if errors else None
        say(part=name, problems=count, tail=said[-300:] if count is None or count else "")
        good = good and not count
    return good


def main() -> int:
    """Play alone, dirty, in a crowd; then the sanitizer; say a verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="tf32")
    parser.add_argument("--src", default=str(HERE.parents[2] / "src"))
    parser.add_argument("--seconds", type=float, default=170.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="a few images only")
    parser.add_argument("--dirty", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        sys.path.insert(0, options.src)
        found = play(options.rounds, options.precision, options.dirty, options.small)
        print(START + json.dumps(found), flush=True)
        return 0
    start = time.monotonic()
    deadline, alone = start + options.seconds, ["nan"]
    try:
        alone = Child(options).digests(deadline)
        say(part="alone", rounds=len(alone), finite="nan" not in alone, s=round(time.monotonic() - start, 1))
        good = compare("again", alone, [Child(options).digests(deadline)])
        good &= compare("dirty memory", alone, [Child(options, "--dirty").digests(deadline)])
        with mps() as shared:
            crowd = [Child(options) for _ in range(options.processes)]
            try:
                found = [child.digests(deadline) for child in crowd]
            finally:
                for child in crowd:
                    child.process.kill()
        good &= compare("crowd", alone, found, mps=shared)
        good &= sanitize(options, deadline)
    except RuntimeError as problem:
        say(part="failed", error=str(problem))
        good = False
    good = good and "nan" not in alone
    say(verdict="good" if good else "BAD", s=round(time.monotonic() - start, 1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
