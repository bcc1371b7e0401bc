"""Flower's SuperNode with shorter polling intervals after a message, because the next one follows soon.

Flower polls for messages every three seconds. Here the intervals are short after a message and grow to
Flower's while none arrives. If Flower's code has changed, its own intervals stay.
"""

from __future__ import annotations

import time
from typing import Any

FIRST_INTERVAL, GROWTH = 0.15, 1.25
REPLY_INTERVAL = 0.05  # seconds between polls for the app's reply; Flower's are 0.5


class AdaptiveSleep:
    """Replaces the module `time` in Flower's SuperNode, with a `sleep` of other durations."""

    def __init__(self, sleep: Any = time.sleep) -> None:
        self._sleep, self._next = sleep, FIRST_INTERVAL

    def sleep(self, seconds: float) -> None:
        """Sleep briefly while an app runs, and longer and longer while no message arrives."""
        if seconds < 1:  # Flower waits for the app
            self._next = FIRST_INTERVAL
            self._sleep(min(seconds, REPLY_INTERVAL))
            return
        self._sleep(min(seconds, self._next))
        self._next *= GROWTH

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def supernode() -> Any:
    """Run a SuperNode with these intervals."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    if getattr(loop, "time", None) is time:
        vars(loop)["time"] = AdaptiveSleep()
    return flower_supernode()
