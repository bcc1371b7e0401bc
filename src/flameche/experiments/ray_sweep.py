"""A sweep on a Ray cluster: its nodes, which have flameche and the data, play the runs.

Run folders need a file system that all nodes share; else a killed run starts again from nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from flameche.errors import BadInput
from flameche.experiments.paper.plan import Planned
from flameche.experiments.play import ERROR, News, Order, leave_error, play

Hear = Callable[[Planned, News], None]


def play_on_ray(orders: Sequence[Order], address: str, hear: Hear) -> None:
    """Send every order to the cluster; tell what became of its runs as orders come back."""
    check_ray(address)
    import ray

    try:
        ray.init(address=None if address == "local" else address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise BadInput(f"--ray {address}: no cluster there: {problem}") from None
    try:
        _collect(ray, orders, hear)
    finally:
        ray.shutdown()


def check_ray(address: str) -> None:
    """Refuse where Ray is not installed, or nobody listens; Ray itself would try for minutes."""
    if find_spec("ray") is None:
        raise BadInput("--ray needs Ray: pip install 'flameche[ray]'")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # "local", "auto"
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except (OSError, ValueError) as problem:
        raise BadInput(f"--ray {address}: no cluster there: {problem}") from None


def _collect(ray: Any, orders: Sequence[Order], hear: Hear) -> None:
    remote = ray.remote(_played)
    sent = {}
    for order in orders:
        share = {"num_gpus": 1 / order.jobs} if order.device == "cuda" else {"num_cpus": 1}
        sent[remote.options(max_retries=2, **share).remote(order)] = order
    while sent:
        (ended, *_), _ = ray.wait(list(sent), num_returns=1)
        order = sent.pop(ended)
        try:
            told = ray.get(ended)
        except ray.exceptions.RayError as problem:  # its node is gone
            why = f"its process ended: {type(problem).__name__}"
            for run in order.planned:
                leave_error(run.folder(order.runs) / ERROR, f"{why}\n{problem}\n")
            told = [News("failed", index, why=why) for index in range(len(order.planned))]
        for news in told:
            hear(order.planned[news.index], news)


def _played(order: Order) -> list[News]:
    """Play an order on a node; give how each run ended."""
    told: list[News] = []
    play(order, told.append)
    return [news for news in told if news.kind not in ("begin", "round")]
