"""Flower's SuperNode, but soon back after an answer: the next message of a round comes within seconds.

Flower's own looks for messages every three seconds. Here the pauses are short after a message and grow to
Flower's while nothing comes. Where Flower has changed, its own pauses stay.
"""

from __future__ import annotations

import time
from typing import Any

FIRST, GROWTH = 0.15, 1.25
ANSWER = 0.05  # seconds between looks for the app's answer; Flower's are 0.5


class Pauses:
    """Stands in for the module `time`, with other pauses."""

    def __init__(self, sleep: Any = time.sleep) -> None:
        self._sleep, self._next = sleep, FIRST

    def sleep(self, seconds: float) -> None:
        """Pause: shortly while an app runs, and ever longer while nothing comes."""
        if seconds < 1:  # Flower waits for the app
            self._next = FIRST
            self._sleep(min(seconds, ANSWER))
            return
        self._sleep(min(seconds, self._next))
        self._next *= GROWTH

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def supernode() -> Any:
    """Run a SuperNode with these pauses."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    if getattr(loop, "time", None) is time:
        vars(loop)["time"] = Pauses()
    return flower_supernode()
