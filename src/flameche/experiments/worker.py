"""A process of a sweep: it plays the orders that come through a socket, and tells what became of them.

It ends when its standard input does, which is when whoever started it is gone; runs go on from checkpoints.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from flameche.experiments.play import play


def main() -> None:
    """Serve the sweep at the other end of a socket, whose descriptor is the first argument."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sweep: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        while True:
            sweep.send(None)  # idle
            play(sweep.recv(), sweep.send)
    except (EOFError, OSError):
        return  # the sweep is over


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
