"""A table or figure of the paper: which runs it needs, and what hardware it wants."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flameche.experiments.paper.plan import Choice, Planned, Row
from flameche.experiments.paper.sets import PAPER_SETS, SETTINGS


@dataclass(frozen=True)
class Entry:
    """A table or figure: its title, where the paper has it, and the runs it is made of.

    `keep`: the compact file in results/ to which its runs go. `command`: what measures it, where that is a
    benchmark and no runs. `beside`: the paper's table whose values stand beside ours, where it is another.
    """

    name: str
    kind: Literal["table", "figure"]
    title: str
    where: str
    hardware: str
    keep: str = ""
    rows: Mapping[str, Row] | None = None
    datasets: tuple[str, ...] = PAPER_SETS
    settings: tuple[str, ...] = tuple(SETTINGS)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    command: str = ""
    file: str = ""  # of results/, that the command writes
    beside: str = ""

    def plan(self, choice: Choice | None = None) -> list[Planned]:
        """List the runs, the first seeds of everything first."""
        choice = choice or Choice()
        rows = self.rows or {}
        own = {*self.seeds, *(seed for row in rows.values() for seed in row.seeds or ())}
        seeds = choice.seeds or tuple(sorted(own))
        every = itertools.product(
            seeds, self.chosen(choice.datasets, "datasets"), self.chosen(choice.settings, "settings"), rows
        )
        planned = []
        for seed, dataset, setting, name in every:
            row = rows[name]
            if row.settings is not None and setting not in row.settings:
                continue
            if row.datasets is not None and dataset not in (*row.datasets, "digits"):
                continue
            if not choice.seeds and seed not in (row.seeds if row.seeds is not None else self.seeds):
                continue
            if choice.methods and name not in choice.methods and row.method not in choice.methods:
                continue
            words = (f"data.heterogeneity={setting}", *row.overrides, *choice.changes)
            planned.append(Planned(dataset, setting, name, seed, words, row.training))
        return planned

    def altered(self, choice: Choice) -> bool:
        """Tell whether the choice's changes make any run another than the paper's."""
        own = self.plan(replace(choice, changes=()))
        return any(run.hash != was.hash for run, was in zip(self.plan(choice), own, strict=True))

    @property
    def row_names(self) -> set[str]:
        """Names by which rows can be chosen: their own, and those of methods."""
        return {*(self.rows or ()), *(row.method for row in (self.rows or {}).values())}

    def chosen(self, wanted: Sequence[str], what: Literal["datasets", "settings"]) -> tuple[str, ...]:
        """Give the sets or settings that are wanted, in this table's order; digits is always possible."""
        own: tuple[str, ...] = getattr(self, what)
        if not wanted:
            return own
        return tuple(name for name in (*own, "digits") if name in wanted)
