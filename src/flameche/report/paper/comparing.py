"""Ours beside the paper's: which cells agree (`agreement.py` has the rule), and why others do not.

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
from flameche.report.agreement import FEWEST, RULE, Verdict, counted, judge
from flameche.report.paper.cells import MEASURES, Sheet, mean, seeds

KEYS = ("table", "dataset", "setting", "method", "measure")


@dataclass(frozen=True)
class Compared:
    """A cell that the paper has too, and how it stands to the paper's."""

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
        """Say it in short, and where ours are too few seeds to tell."""
        where = SETS[self.dataset].title + ("" if self.setting == "all" else f" {self.setting}")
        ours = round(self.ours, 2) + 0.0  # no minus before a zero
        few = f", {self.seeds} seed{'s' * (self.seeds != 1)}" if self.seeds < FEWEST else ""
        return f"{self.title}, {where}, {MEASURES[self.measure][0]}: {ours:.2f} against {self.paper}{few}"


@dataclass(frozen=True)
class Remark:
    """A sentence about cells; a guess does not explain them, nor does a part of the cause."""

    keys: dict[str, tuple[str, ...]]
    text: str
    guess: bool = False
    partly: bool = False

    def fits(self, difference: Compared) -> bool:
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


def compare(sheet: Sheet, measures: Sequence[str], *, pooled: bool = False) -> list[Compared]:
    """List the cells that both have; pooled: over all settings at once, those that lack one left out."""
    name, found = sheet.entry.name, []
    for measure in measures:
        for row in sheet.rows:
            for dataset in sheet.datasets:
                for setting in ("all",) if pooled else sheet.settings:
                    theirs = printed(name, dataset, setting, row, measure)
                    lines, pick = sheet.get(dataset, row, None if pooled else setting), MEASURES[measure][1]
                    ours, count = mean(lines, pick), seeds(lines, pick)
                    if theirs is None or ours is None or (pooled and sheet.lacking(dataset, row)):
                        continue
                    verdict, title = judge(ours, count, theirs.mean, theirs.sd), sheet.title(row)
                    found.append(
                        Compared(
                            name, dataset, setting, row, measure, ours, theirs.text(), title, count, verdict
                        )
                    )
    return found


def remarks_on(compared: Iterable[Compared], remarks: Sequence[Remark]) -> list[str]:
    """Write below a table how many cells agree, what is known of the others, and what is guessed.

    Cells of too few seeds that lie beyond the paper's spread are among the others; their text says so.
    """
    compared = list(compared)
    if not compared:
        return []
    parts = ["## Beside the paper", f"{counted(cell.verdict for cell in compared)}. {RULE}"]
    found = [cell for cell in compared if cell.verdict.beyond]
    if not found:
        return parts
    order = {remark.text: n for n, remark in enumerate(remarks)}  # a text may be of several remarks
    told: dict[tuple[bool, str], list[Compared]] = {}
    open_: dict[bool, list[Compared]] = {True: [], False: []}  # in part, or not at all
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
