"""The command line of scripts that play one of several ways, or write the table of what was kept of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable


def play_or_table(
    doc: str | None, ways: Iterable[str], play: Callable[[str, int], None], table: Callable[[], None]
) -> None:
    """Do what the command line says: `WAY [--rounds N]`, or `table`."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("what", choices=[*ways, "table"])
    parser.add_argument("--rounds", type=int, default=100)
    given, start = parser.parse_args(), time.perf_counter()
    if given.what == "table":
        table()
        return
    play(given.what, given.rounds)
    print(f"{time.perf_counter() - start:.0f} s")
