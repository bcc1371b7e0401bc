"""Ours beside the paper's: cells that lie further off than its spread, and what is known of why.

Remarks are sentences in `remarks.toml`, each for the cells that its keys name:

    [[remark]]
    table = "fds"                # or a list; a key that is left out stands for all
    dataset = ["mnist"]
    method = ["fesem"]
    measure = "ari"
    text = "..."
    guess = true                 # not shown by an experiment
    partly = true                # shown, but it is not all of the difference
    of = [{ dataset = "mnist", partly = true }, { dataset = "cifar10" }]    # keys of several lots of cells
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flameche.errors import StoreError
from flameche.experiments.paper.published import printed
from flameche.experiments.paper.sets import SETS
from flameche.experiments.stored import Stored
from flameche.report.paper.cells import MEASURES, Sheet, mean

KEYS = ("table", "dataset", "setting", "method", "measure")


@dataclass(frozen=True)
class Difference:
    """A cell whose mean is further from the paper's than the paper's spread."""

    table: str
    dataset: str
    setting: str
    method: str
    measure: str
    ours: float
    paper: str
    title: str

    def text(self) -> str:
        """Say it in short."""
        where = SETS[self.dataset].title + ("" if self.setting == "all" else f" {self.setting}")
        ours = round(self.ours, 2) + 0.0  # no minus before a zero
        return f"{self.title}, {where}, {MEASURES[self.measure][0]}: {ours:.2f} against {self.paper}"


@dataclass(frozen=True)
class Remark:
    """A sentence about cells; a guess does not explain them, nor does a part of the cause."""

    keys: dict[str, tuple[str, ...]]
    text: str
    guess: bool = False
    partly: bool = False

    def fits(self, difference: Difference) -> bool:
        """Tell whether a cell is among those it is about."""
        return all(getattr(difference, key) in wanted for key, wanted in self.keys.items())


def read_remarks(stored: Stored) -> list[Remark]:
    """Read the remarks beside stored runs."""
    files = [folder / "remarks.toml" for folder in (*stored.folders, *stored.aside)]
    return [remark for file in files if file.exists() for remark in _read(file)]


def _read(file: Path) -> list[Remark]:
    try:
        tables = tomllib.loads(file.read_text())["remark"]
        remarks = []
        lots = [
            (number, {**table, **lot})
            for number, table in enumerate(tables, 1)
            for lot in table.pop("of", [{}])
        ]
        for number, table in lots:
            if unknown := set(table) - {*KEYS, "text", "guess", "partly"}:
                raise StoreError(f"{file}: remark {number} has unknown keys {', '.join(sorted(unknown))}")
            if table.get("guess") and table.get("partly"):
                raise StoreError(f"{file}: remark {number} is a guess and shown in part; take one")
            keys = {key: _names(table[key]) for key in KEYS if key in table}
            known = (bool(table.get(key, False)) for key in ("guess", "partly"))
            remarks.append(Remark(keys, str(table["text"]), *known))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise StoreError(f"{file}: expected [[remark]] tables with text: {problem}") from problem
    return remarks


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def differences(
    sheet: Sheet, measures: Sequence[str], *, pooled: bool = False, table: str = ""
) -> list[Difference]:
    """List the cells that differ; pooled: over all settings at once."""
    name, found = table or sheet.entry.name, []
    for measure in measures:
        for row in sheet.rows:
            for dataset in sheet.datasets:
                for setting in ("all",) if pooled else sheet.settings:
                    theirs = printed(name, dataset, setting, row, measure)
                    ours = mean(sheet.get(dataset, row, None if pooled else setting), MEASURES[measure][1])
                    if theirs and ours is not None and theirs.differs(ours):
                        found.append(
                            Difference(
                                name, dataset, setting, row, measure, ours, theirs.text(), sheet.title(row)
                            )
                        )
    return found


def remarks_on(found: Iterable[Difference], remarks: Sequence[Remark]) -> list[str]:
    """Write below a table what is known of its differences, in full or in part, and what is guessed."""
    found = list(found)
    if not found:
        return []
    order = {remark.text: n for n, remark in enumerate(remarks)}  # a text may be of several remarks
    told: dict[tuple[bool, str], list[Difference]] = {}
    open_: dict[bool, list[Difference]] = {True: [], False: []}  # in part, or not at all
    for difference in found:
        fitting = [n for n, remark in enumerate(remarks) if remark.fits(difference)]
        shown = [n for n in fitting if not remarks[n].guess]
        for n in shown or fitting:  # what is shown needs no guess
            told.setdefault((remarks[n].guess, remarks[n].text), []).append(difference)
        if all(remarks[n].partly for n in shown):
            open_[bool(shown)].append(difference)
    parts = ["## Where it differs from the paper by more than the paper's spread"]
    for heading, guess in (("", False), ("Guesses, not shown by an experiment:", True)):
        lines = [
            f"- {text} ({'; '.join(d.text() for d in cells)})"
            for (guessed, text), cells in sorted(told.items(), key=lambda item: order[item[0][1]])
            if guessed == guess
        ]
        if lines:
            parts += ([heading] if heading else []) + ["\n".join(lines)]
    for heading, cells in (("Explained in part", open_[True]), ("Unexplained", open_[False])):
        if cells:
            parts += [f"{heading} ({len(cells)}):", "\n".join(f"- {d.text()}" for d in cells)]
    return parts
