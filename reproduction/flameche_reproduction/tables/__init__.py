"""The paper's tables and figures, drawn from stored runs."""

from __future__ import annotations

from collections.abc import Callable

from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.tables.ablations import draw_by_setting, draw_over_settings
from flameche_reproduction.tables.accuracy import draw_pooled, draw_setting
from flameche_reproduction.tables.costs import draw_communication, draw_complexity, draw_crypto_time
from flameche_reproduction.tables.curves import draw_curves, draw_dbi
from flameche_reproduction.tables.document import RenderedTable, without_verdicts
from flameche_reproduction.tables.ranks import draw_ranks
from flameche_reproduction.tables.trilemma import draw_trilemma

DRAW: dict[str, Callable[[CatalogueEntry, Selection, ResultsIndex], RenderedTable]] = {
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


def render(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Draw a table or figure from stored runs; changed runs are not compared with the paper."""
    drawn = DRAW[entry.name](entry, choice, stored)
    return without_verdicts(drawn, choice.changes) if entry.is_changed(choice) else drawn
