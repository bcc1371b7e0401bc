"""Ours beside the paper's: which cells agree, by one rule wherever they are shown, and why others differ.

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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flameche.errors import StoreError
from flameche_reproduction.image_sets import SETS
from flameche_reproduction.published import published_value
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.tables.cells import MEASURES, Sheet, mean, seeds

State = Literal["within", "outside", "untold"]
ROUNDING = 0.005  # half a unit of the second digit, to which the paper prints
FEWEST = 3  # seeds of a mean that is compared

RULE = (
    "A cell is within the paper's spread if the mean of our seeds is no further from the paper's mean than "
    f"the standard deviation that the paper prints, {ROUNDING} granted for rounding to two digits; else it "
    f"is outside. Where we ran fewer than {FEWEST} seeds, or the paper prints no standard deviation, there "
    "are too few runs to tell."
)


@dataclass(frozen=True)
class Verdict:
    """How a cell compares with the paper's; beyond: outside the paper's spread, however few the seeds."""

    state: State
    difference: float
    beyond: bool


def judge(ours: float, seeds: int, paper: float, sd: float | None) -> Verdict:
    """Compare a mean of ours with what the paper printed.

    This describes and tests nothing: the paper's five seeds, and ours, are too few for a test to find any but
    large differences, so that "no significant difference" would pass for agreement where spreads are wide. A
    single seed is one draw, of which a third would lie outside even if nothing differed; of two, the spread
    is as good as unknown. Three are the fewest that the paper itself averages (its reclustering table). Where
    settings are pooled, seeds are those of the setting that has the fewest.

    Args:
        ours: the mean of our runs.
        seeds: how many seeds it is the mean of.
        paper: the mean that the paper printed.
        sd: the standard deviation that it printed, None if it did not.

    Returns:
        "within" or "outside" the paper's spread, or "untold" where there are too few runs to tell.
    """
    difference = ours - paper
    beyond = abs(difference) > (sd or 0.0) + ROUNDING
    if seeds < FEWEST or sd is None:
        return Verdict("untold", difference, beyond)
    return Verdict("outside" if beyond else "within", difference, beyond)


def count_verdicts(verdicts: Iterable[Verdict]) -> str:
    """Write how many cells are in each state."""
    states = Counter(verdict.state for verdict in verdicts)
    within = f"{states['within']} of {states.total()} cells within the paper's spread"
    return f"{within}, {states['outside']} outside, {states['untold']} with too few runs to tell"


KEYS = ("table", "dataset", "setting", "method", "measure")


@dataclass(frozen=True)
class ComparedCell:
    """A cell that the paper has too, and its verdict."""

    table: str
    dataset: str
    setting: str
    method: str
    measure: str
    ours: float
    paper: str
    title: str
    seeds: int
    verdict: Verdict

    def text(self) -> str:
        """Write the cell in short, with its number of seeds if they are too few."""
        where = SETS[self.dataset].title + ("" if self.setting == "all" else f" {self.setting}")
        ours = round(self.ours, 2) + 0.0  # no minus before a zero
        few = f", {self.seeds} seed{'s' * (self.seeds != 1)}" if self.seeds < FEWEST else ""
        return f"{self.title}, {where}, {MEASURES[self.measure][0]}: {ours:.2f} against {self.paper}{few}"


@dataclass(frozen=True)
class Remark:
    """An explanation of some cells' differences; guess: unproven, partly: it explains a part of them."""

    keys: dict[str, tuple[str, ...]]
    text: str
    guess: bool = False
    partly: bool = False

    def fits(self, difference: ComparedCell) -> bool:
        """Whether the remark is about this cell."""
        return all(getattr(difference, key) in wanted for key, wanted in self.keys.items())


def read_remarks(stored: ResultsIndex) -> list[Remark]:
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


def compare(sheet: Sheet, measures: Sequence[str], *, pooled: bool = False) -> list[ComparedCell]:
    """List the cells that both have; pooled: over all settings, without the rows that lack one."""
    name, found = sheet.entry.name, []
    for measure in measures:
        for row in sheet.rows:
            for dataset in sheet.datasets:
                for setting in ("all",) if pooled else sheet.settings:
                    theirs = published_value(name, dataset, setting, row, measure)
                    lines, pick = sheet.get(dataset, row, None if pooled else setting), MEASURES[measure][1]
                    ours, count = mean(lines, pick), seeds(lines, pick)
                    if theirs is None or ours is None or (pooled and sheet.lacking(dataset, row)):
                        continue
                    verdict, title = judge(ours, count, theirs.mean, theirs.sd), sheet.title(row)
                    found.append(
                        ComparedCell(
                            name, dataset, setting, row, measure, ours, theirs.text(), title, count, verdict
                        )
                    )
    return found


def explain_differences(compared: Iterable[ComparedCell], remarks: Sequence[Remark]) -> list[str]:
    """Write the remarks below a table: how many cells agree, and what explains the others.

    Cells beyond the paper's spread are listed even with too few seeds; their text says so.
    """
    compared = list(compared)
    if not compared:
        return []
    parts = ["## Beside the paper", f"{count_verdicts(cell.verdict for cell in compared)}. {RULE}"]
    found = [cell for cell in compared if cell.verdict.beyond]
    if not found:
        return parts
    order = {remark.text: n for n, remark in enumerate(remarks)}  # a text may be of several remarks
    told: dict[tuple[bool, str], list[ComparedCell]] = {}
    open_: dict[bool, list[ComparedCell]] = {True: [], False: []}  # in part, or not at all
    for difference in found:
        fitting = [n for n, remark in enumerate(remarks) if remark.fits(difference)]
        shown = [n for n in fitting if not remarks[n].guess]
        for n in shown or fitting:  # what is shown needs no guess
            told.setdefault((remarks[n].guess, remarks[n].text), []).append(difference)
        if all(remarks[n].partly for n in shown):
            open_[bool(shown)].append(difference)
    parts.append("Of the cells beyond the paper's spread:")
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
