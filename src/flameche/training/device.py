"""Chooses the device and configures torch for it: threads, deterministic kernels, memory."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import torch

from flameche.errors import ConfigError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def choose_device(wanted: str) -> str:
    """Turn "auto" into "cuda" where there is a GPU, else "cpu"; raise ConfigError for "cuda" without one."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device here; use --device cpu")
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"--device {wanted}: expected auto, cpu or cuda")
    return wanted


def prepare_torch(device: str, threads: int = 1) -> None:
    """Make runs repeatable: at most one thread per core, and deterministic kernels."""
    torch.set_num_threads(min(threads, usable_cores()))
    tune_malloc()
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


def tune_malloc() -> None:
    """Let glibc keep freed memory: returning it to the system and fetching it again may double a step."""
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:  # the user has decided
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    for option, size in ((M_MMAP_THRESHOLD, 2**30), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**28)):
        mallopt(option, size)


def finish(device: str) -> None:
    """Wait until the device has finished its work, so that timings are right."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_device_memory(device: str) -> int:
    """Return the peak GPU memory of tensors, in bytes."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def device_gib() -> float:
    """Return the memory of the GPU, in GiB."""
    return float(torch.cuda.mem_get_info()[1]) / 2**30


def release(device: str) -> None:
    """Free the device memory of a finished run, before the next one measures what is free."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def usable_cores() -> int:
    """Count the cores this process may use; in a container these are fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no cgroup limit
        return cores


def torch_version() -> str:
    """Return torch's version with its build ("+cpu", "+cu130"), which package metadata may leave out."""
    return str(torch.__version__)


def device_name(device: str) -> str:
    """Return the device's name, for the records of a run."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    count = torch.get_num_threads()
    return f"cpu, {count} thread{'s' if count > 1 else ''}"
