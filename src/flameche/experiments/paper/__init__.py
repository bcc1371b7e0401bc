"""The paper's tables and figures by name: which runs each needs, and what the paper printed."""

from flameche.experiments.paper.entries import Entry
from flameche.experiments.paper.plan import Choice, Planned
from flameche.experiments.paper.registry import ENTRIES, entry_named

__all__ = ["ENTRIES", "Choice", "Entry", "Planned", "entry_named"]
