"""Progress bars on stderr, and the scores that they show."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flameche.cli.output import log


def progress_bar() -> Progress:
    """Make a progress display on stderr; it draws nothing where stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=log,
        disable=not log.is_terminal,
    )


def scores(record: dict[str, Any]) -> str:
    """Format the accuracy and the ARI of a round or a summary, those that it has, to follow a label."""
    accuracy, ari = record["accuracy"], record["ari"]
    text = "" if accuracy is None or accuracy != accuracy else f" · accuracy {100 * accuracy:.1f}%"
    return text if ari is None or ari != ari else f"{text} · ARI {ari:.2f}"
