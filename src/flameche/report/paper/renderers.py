"""Which function draws which table or figure."""

from __future__ import annotations

from collections.abc import Callable

from flameche.experiments.paper import Choice, Entry
from flameche.experiments.stored import Stored
from flameche.report.paper.ablations import draw_by_setting, draw_over_settings
from flameche.report.paper.costs import draw_communication, draw_complexity, draw_crypto_time
from flameche.report.paper.curves import draw_curves, draw_dbi
from flameche.report.paper.drawn import Drawn, unjudged
from flameche.report.paper.main import draw_pooled, draw_setting
from flameche.report.paper.ranks import draw_ranks
from flameche.report.paper.trilemma import draw_trilemma

DRAW: dict[str, Callable[[Entry, Choice, Stored], Drawn]] = {
    "accuracy": draw_pooled,
    "csl": draw_setting,
    "fds": draw_setting,
    "csf": draw_setting,
    "metadata": draw_over_settings,
    "missing": draw_by_setting,
    "missing-curves": draw_curves,
    "recluster": draw_by_setting,
    "m-step": draw_over_settings,
    "ckks": draw_over_settings,
    "crypto-time": draw_crypto_time,
    "communication": draw_communication,
    "complexity": draw_complexity,
    "trilemma": draw_trilemma,
    "ranks": draw_ranks,
    "dbi": draw_dbi,
    "missing-readings": draw_by_setting,
    "readings": draw_by_setting,
    "clusters": draw_by_setting,
    "recipes": draw_by_setting,
}


def render(entry: Entry, choice: Choice, stored: Stored) -> Drawn:
    """Draw a table or figure from what is stored; runs that were changed are not judged by the paper's."""
    drawn = DRAW[entry.name](entry, choice, stored)
    return unjudged(drawn, choice.changes) if entry.altered(choice) else drawn
