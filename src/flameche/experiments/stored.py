"""Stored runs: one JSON line a run in small files; a planned run is found in folders first, then in lines.

A line has what tables and figures need of a summary, the overrides that made the run, its config's hash and
its seed. Hash and seed find it again; a line may also be of a clustering without training.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flameche.errors import StoreError
from flameche.experiments.paper.plan import Planned
from flameche.experiments.store import read_json, without_nan

Line = dict[str, Any]
KEPT = (
    *("dataset", "setting", "method", "scheme", "seed", "rounds", "k", "ari", "ari_final", "dbi", "ch"),
    *("accuracy", "bytes_up", "bytes_down", "seconds", "wall_s", "config_hash", "notes"),
    *("versions", "commit", "device"),  # what made it; lines of earlier versions have the device alone
)
OF_LEDGER = ("up", "down", "server_seconds", "client_seconds", "tuning_runs", "oracle_knowledge")
CURVES = ("accuracy_per_round", "ari_per_round")
DIGITS = 4  # of curves
NOT_RECORDED = "not recorded"
ROW = "label"  # under which key a line says which row of its table it is


def compact(planned: Planned, summary: Mapping[str, Any]) -> Line:
    """Make a run's line of its summary."""
    line: Line = {ROW: planned.row, "overrides": list(planned.overrides), "training": planned.training}
    line |= {key: summary.get(key) for key in KEPT}
    line |= {key: summary.get("ledger", {}).get(key) for key in OF_LEDGER}
    for key in ("seconds", "server_seconds", "client_seconds"):
        line[key] = {part: round(value, 3) for part, value in (line[key] or {}).items()}
    if summary.get("diverged"):
        line["diverged"] = True
    line["wall_s"] = None if line["wall_s"] is None else round(line["wall_s"], 1)
    for key in CURVES if planned.training else ():
        line[key] = [None if value is None else round(value, DIGITS) for value in summary.get(key) or []]
    return line


class Lines:
    """A file of lines; it is read whole and grows by whole lines, also under several processes."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> list[Line]:
        """Read what is there; a line that a kill cut short is left out."""
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as problem:
            raise StoreError(f"{self.file} cannot be read: {problem}") from problem
        lines = []
        for number, row in enumerate(rows := text.splitlines(), 1):
            try:
                lines.append(dict(json.loads(row)))
            except (ValueError, TypeError) as problem:
                if number == len(rows) and not text.endswith("\n"):
                    break
                raise StoreError(
                    f"{self.file}, line {number}: not a JSON object; remove the line"
                ) from problem
        return lines

    def add(self, line: Line) -> None:
        """Append a line, by one write, so that several processes may do so."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab+", buffering=0) as file:
                file.seek(-min(1, file.seek(0, os.SEEK_END)), os.SEEK_END)
                cut = file.read(1) not in (b"", b"\n")  # a disk was full
                file.write(
                    (
                        ("\n" if cut else "") + json.dumps(without_nan(line), separators=(",", ":")) + "\n"
                    ).encode()
                )
        except OSError as problem:
            raise StoreError(f"{self.file} cannot be written: {problem.strerror}") from problem

    def merge(self, lines: Iterable[Line]) -> int:
        """Add the lines that are not there yet, by hash, seed and training; count them."""
        there = {_identity(line) for line in self.read()}
        new = [line for line in lines if _identity(line) not in there]
        for line in new:
            self.add(line)
        return len(new)


class Stored:
    """Where runs are looked for: run folders below `runs`, then lines in folders, those of the last first.

    Lines in folders `aside` are no runs that are there: they tell how long runs take, remarks what is known.
    """

    def __init__(
        self, runs: Sequence[Path] = (), folders: Sequence[Path] = (), aside: Sequence[Path] = ()
    ) -> None:
        self.runs, self.folders, self.aside = list(runs), list(folders), list(aside)
        self._lines: dict[tuple[str, int], list[Line]] = {}
        for file in (file for folder in folders for file in sorted(folder.glob("*.jsonl"))):
            for line in Lines(file).read():
                if "config_hash" in line and "seed" in line:
                    self._lines.setdefault((line["config_hash"], line["seed"]), []).insert(0, line)

    def find(self, planned: Planned) -> Line | None:
        """Give a planned run's line; None if it was not run."""
        if (line := self._in_folder(planned)) is not None:
            return line
        found = [line for line in self._lines.get((planned.hash, planned.seed), []) if _serves(planned, line)]
        return found[0] if found else None

    def in_folders(self, planned: Iterable[Planned]) -> list[Line]:
        """Give the lines of those runs that have a finished folder."""
        return [line for run in planned if (line := self._in_folder(run)) is not None]

    def _in_folder(self, planned: Planned) -> Line | None:
        for runs in self.runs:
            if (file := planned.folder(runs) / "summary.json").exists():
                return compact(planned, read_json(file))
        return None

    def document(self, name: str) -> dict[str, Any] | None:
        """Read a benchmark's JSON, from the last folder that has it."""
        for folder in reversed(self.folders):
            if (file := folder / name).exists():
                return read_json(file)
        return None

    def lines(self) -> Iterable[Line]:
        """Go through all lines, those aside too."""
        yield from (line for lines in self._lines.values() for line in lines)
        for folder in self.aside:
            yield from Stored([], [folder]).lines()


def made_by(line: Line) -> dict[str, Any]:
    """Say what made a line: versions, commit and device, "not recorded" where it does not tell."""
    known = line.get("versions") or {"versions": NOT_RECORDED}
    return {**known, **{key: line.get(key) or NOT_RECORDED for key in ("commit", "device")}}


def device_of(line: Line) -> str:
    """Name a line's device without its count of threads."""
    name = str(line.get("device") or NOT_RECORDED).partition(",")[0]
    return "CPU" if name == "cpu" else name


def of_one_device(lines: Iterable[Line]) -> tuple[str, list[Line]]:
    """Give the device of most lines and its lines: seconds of several devices are never averaged."""
    by_device: dict[str, list[Line]] = {}
    for line in lines:
        by_device.setdefault(str(line.get("device") or NOT_RECORDED), []).append(line)
    return max(by_device.items(), key=lambda pair: len(pair[1]), default=(NOT_RECORDED, []))


def made(lines: Iterable[Line]) -> str:
    """Count lines by device, and those that tell their versions and commit; empty where there are none."""
    lines = list(lines)
    if not lines:
        return ""
    counts = Counter(device_of(line) for line in lines).most_common()
    known = sum(bool(line.get("versions") and line.get("commit")) for line in lines)
    runs = f"of the {len(lines)} run{'s' * (len(lines) != 1)}"
    told = f"Device {runs}: {counts[0][0]}"
    if len(counts) > 1:
        told = f"Devices {runs}: {', '.join(f'{name} {count}' for name, count in counts)}"
    return f"{told}; versions and commit: {f'of {known}' if known else 'not recorded'}" + (
        f", of the others {NOT_RECORDED}." if 0 < known < len(lines) else "."
    )


def trained(line: Line) -> bool:
    """Tell whether a line is of a run with training."""
    return line.get("accuracy") is not None


def _serves(planned: Planned, line: Line) -> bool:
    """Tell whether a line has what a planned run is for: scores of models, or of a clustering."""
    return trained(line) if planned.training else line.get("dbi") is not None or line.get("training") is False


def _identity(line: Line) -> tuple[Any, ...]:
    return line.get("config_hash"), line.get("seed"), trained(line)
