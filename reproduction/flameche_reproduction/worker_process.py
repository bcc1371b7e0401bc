"""A worker process of a sweep: it receives batches through a socket and sends back the events of their runs.

It ends when its standard input closes, that is when the parent process is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from flameche_reproduction.run_worker import play_batch


def main() -> None:
    """Serve the sweep through the socket whose file descriptor is the first argument."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sweep: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        while True:
            sweep.send(None)  # idle
            play_batch(sweep.recv(), sweep.send)
    except (EOFError, OSError):
        return  # the sweep is over


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
