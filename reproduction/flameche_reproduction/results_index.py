"""The index of stored runs: run folders, and files of results with one JSON line a run.

A line has what tables and figures need of a run's summary, and the overrides, config hash and seed by which
the run is found. It may also be of a clustering without training.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flameche.errors import StoreError
from flameche.experiments.provenance import NOT_RECORDED, short_device
from flameche.experiments.run_folder import read_json, without_nan
from flameche_reproduction.planned_runs import PlannedRun

ResultLine = dict[str, Any]
KEPT = (
    *("dataset", "setting", "method", "scheme", "seed", "rounds", "k", "ari", "ari_final", "dbi", "ch"),
    *("accuracy", "bytes_up", "bytes_down", "seconds", "wall_s", "config_hash", "notes"),
    *("versions", "commit", "device"),  # what made it; lines of earlier versions have the device alone
)
OF_LEDGER = ("up", "down", "server_seconds", "client_seconds", "tuning_runs", "oracle_knowledge")
CURVES = ("accuracy_per_round", "ari_per_round")
DIGITS = 4  # of curves
ROW = "label"  # under which key a line says which row of its table it is


def result_line(planned: PlannedRun, summary: Mapping[str, Any]) -> ResultLine:
    """Convert a run's summary into its line."""
    line: ResultLine = {ROW: planned.row, "overrides": list(planned.overrides), "training": planned.training}
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


class ResultsFile:
    """A file of lines that several processes may append to."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> list[ResultLine]:
        """Read all lines; a last line that was cut off is skipped."""
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

    def add(self, line: ResultLine) -> None:
        """Append a line in a single write."""
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

    def merge(self, lines: Iterable[ResultLine]) -> int:
        """Append the lines whose hash, seed and training are new; return how many."""
        there = {_identity(line) for line in self.read()}
        new = [line for line in lines if _identity(line) not in there]
        for line in new:
            self.add(line)
        return len(new)


class ResultsIndex:
    """Finds stored runs: first in run folders below `runs`, then in lines of `folders`, the last one first.

    Lines in folders `aside` do not count as stored; they are used for time estimates and remarks.
    """

    def __init__(
        self, runs: Sequence[Path] = (), folders: Sequence[Path] = (), aside: Sequence[Path] = ()
    ) -> None:
        self.runs, self.folders, self.aside = list(runs), list(folders), list(aside)
        self._lines: dict[tuple[str, int], list[ResultLine]] = {}
        for file in (file for folder in folders for file in sorted(folder.glob("*.jsonl"))):
            for line in ResultsFile(file).read():
                if "config_hash" in line and "seed" in line:
                    self._lines.setdefault((line["config_hash"], line["seed"]), []).insert(0, line)

    def find(self, planned: PlannedRun) -> ResultLine | None:
        """Return a planned run's line, or None if it is not stored."""
        if (line := self._in_folder(planned)) is not None:
            return line
        found = [line for line in self._lines.get((planned.hash, planned.seed), []) if _serves(planned, line)]
        return found[0] if found else None

    def in_folders(self, planned: Iterable[PlannedRun]) -> list[ResultLine]:
        """Return the lines of the runs that have a finished run folder."""
        return [line for run in planned if (line := self._in_folder(run)) is not None]

    def _in_folder(self, planned: PlannedRun) -> ResultLine | None:
        for runs in self.runs:
            if (file := planned.folder(runs) / "summary.json").exists():
                return result_line(planned, read_json(file))
        return None

    def document(self, name: str) -> dict[str, Any] | None:
        """Return a benchmark's JSON from the last folder that has it, or None."""
        for folder in reversed(self.folders):
            if (file := folder / name).exists():
                return read_json(file)
        return None

    def lines(self) -> Iterable[ResultLine]:
        """Iterate over all lines, including those aside."""
        yield from (line for lines in self._lines.values() for line in lines)
        for folder in self.aside:
            yield from ResultsIndex([], [folder]).lines()


def recorded_provenance(line: ResultLine) -> dict[str, Any]:
    """Return a line's versions, commit and device, with "not recorded" for what it lacks."""
    known = line.get("versions") or {"versions": NOT_RECORDED}
    return {**known, **{key: line.get(key) or NOT_RECORDED for key in ("commit", "device")}}


def device_of(line: ResultLine) -> str:
    """Return the name of a line's device without the number of threads."""
    return short_device(line.get("device"))


def of_one_device(lines: Iterable[ResultLine]) -> tuple[str, list[ResultLine]]:
    """Return the most frequent device and its lines, since seconds of several devices are never averaged."""
    by_device: dict[str, list[ResultLine]] = {}
    for line in lines:
        by_device.setdefault(str(line.get("device") or NOT_RECORDED), []).append(line)
    return max(by_device.items(), key=lambda pair: len(pair[1]), default=(NOT_RECORDED, []))


def describe_provenance(lines: Iterable[ResultLine]) -> str:
    """Write how many runs were made on each device and with recorded versions; empty without lines."""
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


def is_trained(line: ResultLine) -> bool:
    """Whether a line is of a run with training."""
    return line.get("accuracy") is not None


def _serves(planned: PlannedRun, line: ResultLine) -> bool:
    """Whether a line has the scores that a planned run is for: of models, or of a clustering."""
    return (
        is_trained(line) if planned.training else line.get("dbi") is not None or line.get("training") is False
    )


def _identity(line: ResultLine) -> tuple[Any, ...]:
    return line.get("config_hash"), line.get("seed"), is_trained(line)
