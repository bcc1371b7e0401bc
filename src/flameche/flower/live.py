"""What the operator sees while rounds are played: a line for each, and who was lost and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flameche.training.tensorboard import Board


class Live:
    """Tells of rounds as they end; numbers also go to TensorBoard, where there is a board."""

    def __init__(self, rounds: int, say: Callable[[str], None], board: Board | None = None) -> None:
        self._rounds, self._say, self._board = rounds, say, board
        self._up = self._down = 0

    def round(self, record: dict[str, Any]) -> None:
        """Tell of one round."""
        up, down = record["bytes_up"] - self._up, record["bytes_down"] - self._down
        self._up, self._down = record["bytes_up"], record["bytes_down"]
        self._say(line(record, self._rounds, up, down))
        if self._board is not None:
            accuracy = record["accuracy"]
            numbers = {
                "accuracy": float("nan") if accuracy is None else accuracy,
                "MB/up": up / 1e6,
                "MB/down": down / 1e6,
                "nodes/taking part": len({*map(str, record["participants"])} - {*record.get("lost", {})}),
                "nodes/lost": len(record.get("lost", {})),
                "exchanges": record.get("exchanges", 0),
            }
            numbers |= {f"cluster sizes/{k}": size for k, size in enumerate(record["sizes"])}
            self._board.add(record["round"], numbers)


def line(record: dict[str, Any], rounds: int, up: int, down: int) -> str:
    """Write a round as a line."""
    accuracy = record["accuracy"]
    parts = [
        f"round {record['round']}/{rounds}",
        f"nodes {numbers(record['participants'])}",
        f"clusters {' '.join(map(str, record['sizes']))}",
        "" if accuracy is None or accuracy != accuracy else f"accuracy {100 * accuracy:.1f}%",
        f"{up / 1e6:.2f} MB up, {down / 1e6:.2f} down",
        "regrouped" if record["reclustered"] else "",
    ]
    parts += [f"lost node {i}: {why}" for i, why in record.get("lost", {}).items()]
    return " · ".join(part for part in parts if part)


def numbers(which: list[int]) -> str:
    """Write numbers of nodes, runs of them shortly: 0-3 7 9-12."""
    words: list[list[int]] = []
    for number in sorted(which):
        if words and number == words[-1][-1] + 1:
            words[-1] = [words[-1][0], number]
        else:
            words.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in words)
