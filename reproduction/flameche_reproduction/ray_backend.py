"""Runs a sweep on a Ray cluster, whose nodes have flameche and the data.

Run folders need a file system that all nodes share; otherwise a killed run starts from its first round.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from flameche.errors import BadInput
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.run_worker import ERROR, Batch, RunEvent, play_batch, write_error

OnEvent = Callable[[PlannedRun, RunEvent], None]


def run_on_ray(batches: Sequence[Batch], address: str, on_event: OnEvent) -> None:
    """Send every batch to the cluster, and report the events of its runs when it comes back."""
    check_ray(address)
    import ray

    try:
        ray.init(address=None if address == "local" else address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise BadInput(f"--ray {address}: no cluster there: {problem}") from None
    try:
        _collect(ray, batches, on_event)
    finally:
        ray.shutdown()


def check_ray(address: str) -> None:
    """Raise BadInput if Ray is missing or the address does not answer; Ray itself would retry for minutes."""
    if find_spec("ray") is None:
        raise BadInput("--ray needs Ray: pip install 'flameche-reproduction[ray]'")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # "local", "auto"
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except (OSError, ValueError) as problem:
        raise BadInput(f"--ray {address}: no cluster there: {problem}") from None


def _collect(ray: Any, batches: Sequence[Batch], on_event: OnEvent) -> None:
    remote = ray.remote(_run_one)
    pending = {}
    for batch in batches:
        share = {"num_gpus": 1 / batch.jobs} if batch.device == "cuda" else {"num_cpus": 1}
        pending[remote.options(max_retries=2, **share).remote(batch)] = batch
    while pending:
        (ended, *_), _ = ray.wait(list(pending), num_returns=1)
        batch = pending.pop(ended)
        try:
            events = ray.get(ended)
        except ray.exceptions.RayError as problem:  # its node is gone
            why = f"its process ended: {type(problem).__name__}"
            for run in batch.planned:
                write_error(run.folder(batch.runs) / ERROR, f"{why}\n{problem}\n")
            events = [RunEvent("failed", index, why=why) for index in range(len(batch.planned))]
        for event in events:
            on_event(batch.planned[event.index], event)


def _run_one(batch: Batch) -> list[RunEvent]:
    """Run a batch on a node; return how each run ended."""
    events: list[RunEvent] = []
    play_batch(batch, events.append)
    return [event for event in events if event.kind not in ("begin", "round")]
