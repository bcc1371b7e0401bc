"""Shared memory that processes pass as a file descriptor; it has no name and ends with its last user."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Spec = list[tuple[str, str, tuple[int, ...]]]  # name, dtype, shape
ALIGN = 64


class SharedArrays:
    """Named arrays in shared memory; every process with the descriptor and the spec sees the same arrays."""

    def __init__(self, fd: int, spec: Spec) -> None:
        self.fd, self.spec = fd, spec
        ends = _ends(spec)
        memory = mmap.mmap(fd, ends[-1])
        self.arrays: Arrays = {
            name: np.ndarray(shape, dtype, memory, end - _padded(dtype, shape))
            for (name, dtype, shape), end in zip(spec, ends, strict=True)
        }

    @classmethod
    def allocate(cls, spec: Spec) -> SharedArrays:
        """Allocate zeros."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("flameche")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _ends(spec)[-1])
        return cls(fd, spec)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], extra: Spec | None = None) -> SharedArrays:
        """Allocate and copy arrays, plus `extra` arrays of zeros."""
        given = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
        shared = cls.allocate(given + (extra or []))
        for name, array in arrays.items():
            shared.arrays[name][...] = array
        return shared

    def close(self) -> None:
        """Close the descriptor; arrays stay valid while referenced."""
        os.close(self.fd)


def _padded(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array rounded up to ALIGN; at least ALIGN, since empty maps do not exist."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    return max(-(-size // ALIGN), 1) * ALIGN


def _ends(spec: Spec) -> list[int]:
    return list(itertools.accumulate(_padded(dtype, shape) for _, dtype, shape in spec))
