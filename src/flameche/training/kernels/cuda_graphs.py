"""CUDA graphs: a step is captured once and replayed, so that launching its kernels costs almost nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


class GraphCache:
    """Runs functions without arguments that read and write fixed tensors, each identified by a key.

    The first call of a key runs the function, which compiles and warms up; the second captures a graph; later
    calls replay it. Every call does the work exactly once.
    """

    def __init__(self, device: str, capture: bool = True) -> None:
        self._capture = capture and device == "cuda"
        self._graphs: dict[Hashable, Any] = {}
        self._warm: set[Hashable] = set()
        self._pool: Any = None

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run the function of this key once more."""
        if not self._capture:
            function()
        elif key in self._graphs:
            self._graphs[key].replay()
        elif key not in self._warm:
            self._warm.add(key)
            _aside(function)
        else:
            self._graphs[key] = self._captured(function)
            self._graphs[key].replay()

    def _captured(self, function: Callable[[], None]) -> Any:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # gives the graph what the warm-up used
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        return graph


def _aside(function: Callable[[], None]) -> None:
    """Run on a separate stream, as a warm-up before a capture must."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Set how matrix products round, and skip filling new memory that is written anyway."""
    before = torch.backends.cuda.matmul.allow_tf32
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
