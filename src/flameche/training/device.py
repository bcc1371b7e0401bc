"""Chooses the device and sets torch up on it: thread count, reproducible kernels."""

from __future__ import annotations

import os

import torch

from flameche.errors import ConfigError


def choose_device(wanted: str) -> str:
    """Turn "auto" into "cuda" where there is one, else "cpu"; refuse "cuda" where there is none."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device here; use --device cpu")
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"--device {wanted}: expected auto, cpu or cuda")
    return wanted


def prepare_torch(device: str, threads: int = 1) -> None:
    """Fix what makes a run repeatable: the number of threads and deterministic kernels."""
    torch.set_num_threads(threads)
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


def finish(device: str) -> None:
    """Wait until the device has done what it was given, so that clocks tell the truth."""
    if device == "cuda":
        torch.cuda.synchronize()


def usable_cores() -> int:
    """Count the cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_name(device: str) -> str:
    """Name the device for the record."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    count = torch.get_num_threads()
    return f"cpu, {count} thread{'s' if count > 1 else ''}"
