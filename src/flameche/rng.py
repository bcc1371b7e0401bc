"""Named random streams: every consumer has its own, so that adding one never disturbs another.

`stream(seed, "train", round, client)` always gives the same generator for the same names, wherever and
in whatever order it is asked for. That is what makes resumed runs bit-identical and lets all methods
share one schedule. Not for keys or masks: those come from `secrets`.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream_seed(seed: int, *names: str | int) -> int:
    """Return the 128-bit seed of the stream called `names` under `seed`."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return a fresh generator at the start of the stream called `names` under `seed`."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, *names)))
