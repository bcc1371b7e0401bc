"""Times calls: medians of process CPU time, the main figure, and of wall time, in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypedDict, TypeVar

T = TypeVar("T")


class Times(TypedDict):
    """Medians over `repeats` calls; CPU time adds up all threads of this process."""

    cpu: float
    wall: float
    repeats: int


class Stopwatch:
    """Times one call after another."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def __call__(self, call: Callable[[], T]) -> T:
        """Make the call and record its seconds."""
        cpu, wall = time.process_time(), time.perf_counter()
        result = call()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        return result

    def over(self, budget: float) -> bool:
        """Whether the calls took this many seconds or more."""
        return sum(self.wall) >= budget

    @property
    def times(self) -> Times:
        """The medians in milliseconds."""
        return Times(cpu=1e3 * median(self.cpu), wall=1e3 * median(self.wall), repeats=len(self.cpu))


def time_call(call: Callable[[], T], *, most: int, budget: float) -> tuple[T, Times]:
    """Make one call up to `most` times, until `budget` seconds are spent; its last result, and times."""
    watch = Stopwatch()
    result = watch(call)
    while len(watch.wall) < most and not watch.over(budget):
        result = watch(call)
    return result, watch.times


def time_calls(calls: Sequence[Callable[[], T]], *, least: int, budget: float) -> tuple[list[T], Times]:
    """Make different calls once each, at least so many, until `budget` seconds are spent."""
    watch = Stopwatch()
    results: list[T] = []
    for call in calls:
        if len(results) >= least and watch.over(budget):
            break
        results.append(watch(call))
    return results, watch.times
