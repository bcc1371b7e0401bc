"""Runs the experiments of a plan in order of priority, within a given time, and never one twice.

python reproduction/run_queue.py list      what is there, what is left, and how long it should take
python reproduction/run_queue.py run --seconds 560 --out DIR [--runs DIR] [--commit HASH]
python reproduction/run_queue.py collect DIR [DIR ...]      adds finished runs to results/*.jsonl

The plan (plan.toml) says which rows of which tables, on which sets, under which settings and seeds. A run
that `results` or DIR has is not run again; one that was interrupted goes on from its checkpoint in --runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from flameche.data import available  # noqa: E402
from flameche.errors import BadInput, FlamecheError  # noqa: E402
from flameche.experiments.provenance import COMMIT  # noqa: E402
from flameche.experiments.run_folder import has_checkpoint  # noqa: E402
from flameche.training.device import choose_device, device_name  # noqa: E402
from flameche_reproduction.catalogue import find_entry  # noqa: E402
from flameche_reproduction.planned_runs import CatalogueEntry, PlannedRun, Selection  # noqa: E402
from flameche_reproduction.results_index import ResultLine, ResultsFile, ResultsIndex, is_trained  # noqa: E402
from flameche_reproduction.run_worker import RunEvent  # noqa: E402
from flameche_reproduction.runtime_estimate import RuntimeEstimator  # noqa: E402
from flameche_reproduction.sweep import default_jobs, missing_runs, sweep, unique_runs  # noqa: E402

LINES = "runs.jsonl"
SETTING = "data.heterogeneity="
LISTS = {"rows": str, "datasets": str, "settings": str, "seeds": int, "set": str}


@dataclass(frozen=True)
class Item:
    """A part of the plan: some rows of a table, with overrides that are laid over all of them."""

    title: str
    entry: CatalogueEntry
    rows: tuple[str, ...]
    choice: Selection
    seconds: float | None  # of one run that has the device to itself, until one has been measured

    def runs(self) -> list[PlannedRun]:
        """List the runs, the first seeds of all rows first."""
        return [run for run in self.entry.plan(self.choice) if run.row in self.rows]


class OutOfTime(Exception):
    """The given time is over."""


def read_plan(file: Path) -> list[Item]:
    """Read a plan; refuse names that no table, row, set or setting has."""
    try:
        document = tomllib.loads(file.read_text())
    except OSError as problem:
        raise BadInput(f"{file} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"{file}: not TOML: {problem}") from None
    tables = document.get("runs")
    if set(document) != {"runs"} or not isinstance(tables, list) or not tables:
        raise BadInput(f"{file}: expected [[runs]] tables and nothing else")
    return [_item(f"{file}, [[runs]] number {number}", table) for number, table in enumerate(tables, 1)]


def _item(where: str, table: Mapping[str, Any]) -> Item:
    needed = {"title", "table", "rows", "datasets", "settings", "seeds"}
    if lacking := needed - set(table):
        raise BadInput(f"{where}: {', '.join(sorted(lacking))} missing")
    if unknown := set(table) - needed - {"set", "seconds"}:
        raise BadInput(f"{where}: unknown key {', '.join(sorted(unknown))}")
    lists = {key: table.get(key, []) for key in LISTS}
    for key, values in lists.items():
        if not isinstance(values, list) or any(type(value) is not LISTS[key] for value in values):
            raise BadInput(f"{where}: {key} must be a list of {LISTS[key].__name__}")
        if not values and key != "set":
            raise BadInput(f"{where}: {key} is empty")
    seconds = table.get("seconds")
    if seconds is not None and not (type(seconds) in (int, float) and seconds > 0):
        raise BadInput(f"{where}: seconds must be a positive number")
    entry = find_entry(str(table["table"]))
    choice = Selection(*(tuple(lists[key]) for key in ("datasets", "settings", "rows", "seeds", "set")))
    try:
        choice.check(entry.rows or ())
    except BadInput as problem:
        raise BadInput(f"{where}: {str(problem).removeprefix('--').replace('methods', 'rows', 1)}") from None
    item = Item(str(table["title"]), entry, choice.methods, choice, seconds)
    if not item.runs():
        raise BadInput(f"{where}: {entry.name} has no such runs")
    return item


class Estimates:
    """How long runs take on this device: by runs of the same kind, else by the plan, else by a guess.

    A run's wall time is divided by the number of processes that shared the device, which its line tells.
    """

    def __init__(self, items: Iterable[Item], stored: ResultsIndex, device: str, jobs: int) -> None:
        self.jobs, self._machine = jobs, _machine(device_name(device))
        self._clock = RuntimeEstimator(stored.lines(), device)
        self._planned = {(run.hash, run.seed): item.seconds for item in items for run in item.runs()}
        self._shares: dict[Any, list[float]] = {}
        for line in stored.lines():
            self.add(line)

    def add(self, line: ResultLine) -> None:
        """Take in a finished run that was measured on this device beside a known number of others."""
        here = line.get("device") and _machine(line["device"]) == self._machine
        if here and is_trained(line) and line.get("jobs") and line.get("wall_s"):
            key = self._kind(line["dataset"], line["overrides"])
            self._shares.setdefault(key, []).append(line["wall_s"] / line["jobs"])

    @staticmethod
    def _kind(dataset: str, overrides: Iterable[str]) -> Any:
        return dataset, frozenset(word for word in overrides if not word.startswith(SETTING))

    def estimate(self, run: PlannedRun) -> tuple[float, str]:
        """Give seconds, and where they are from."""
        if shares := self._shares.get(self._kind(run.dataset, run.overrides)):
            return statistics.median(shares) * self.jobs, "measured"
        if seconds := self._planned.get((run.hash, run.seed)):
            return seconds * self.jobs, "plan"
        guess = self._clock.estimate(run)
        return guess.seconds, "similar runs" if guess.measured else "guess"


def _machine(device: str) -> str:
    """Name a device without its count of threads."""
    return device.partition(",")[0]


def show(
    items: Sequence[Item], stored: ResultsIndex, estimates: Estimates, runs: Path | None, seconds: float
) -> None:
    """Print what is left of every part of the plan, and mark what a call of so many seconds would take."""
    free, seen, total, of = [0.0] * estimates.jobs, set[tuple[str, int]](), 0.0, 0
    for item in items:
        wanted = [run for run in unique_runs(item.runs()) if (run.hash, run.seed) not in seen]
        seen |= {(run.hash, run.seed) for run in wanted}
        todo = missing_runs(wanted, stored)
        print(f"{item.title}: {len(wanted)} runs, {len(wanted) - len(todo)} there, {len(todo)} left")
        for run in todo:
            took, source = estimates.estimate(run)
            total, of = total + took, of + 1
            first = min(range(len(free)), key=lambda i: free[i])
            mark = "  "
            if free[first] + took <= seconds:
                free[first] += took
                mark = "* "
            begun = ", from its checkpoint" if runs and has_checkpoint(run.folder(runs)) else ""
            print(f"  {mark}{run.label}: {took:.0f} s ({source}{begun})")
    print(
        f"{of} runs left, about {total / estimates.jobs / 3600:.1f} hours with {estimates.jobs} at a time; "
        f"* would be begun within {seconds:.0f} s"
    )


def work(
    items: Sequence[Item],
    results: Path,
    out: Path,
    runs: Path,
    device: str,
    jobs: int,
    seconds: float,
    begin_all: bool,
) -> int:
    """Run what is left, by priority, as far as the time goes; give how many runs failed."""
    start = time.monotonic()
    stored = ResultsIndex([runs], [results, out])
    planned = unique_runs(run for item in items for run in item.runs())
    todo = missing_runs(planned, stored)
    absent = {info.name for info in available() if not info.found} & {run.dataset for run in todo}
    estimates = Estimates(items, stored, device, jobs)
    extra = {"jobs": min(jobs, max(1, len(todo)))}
    ResultsFile(out / LINES).merge({**line, **extra} for line in stored.in_folders(planned))

    def passed() -> float:
        return time.monotonic() - start

    def should_start(run: PlannedRun) -> bool:
        return passed() < seconds and (begin_all or passed() + estimates.estimate(run)[0] <= seconds)

    def on_event(run: PlannedRun, event: RunEvent) -> None:
        if event.kind == "done" and event.line:
            estimates.add({**event.line, **extra})
        if event.kind != "round":
            print(f"{passed():5.0f} s  {run.label}: {_describe(event, estimates, run)}", flush=True)

    def stop(*_: object) -> None:
        raise OutOfTime

    print(f"{len(planned)} runs wanted, {len(planned) - len(todo)} there; {jobs} at a time on {device}")
    if absent:
        print(f"left out, since these sets are not here: {', '.join(sorted(absent))}")
        todo = [run for run in todo if run.dataset not in absent]
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds - passed(), 1e-3))
    try:
        swept = sweep(
            todo,
            runs,
            out / LINES,
            device=device,
            jobs=jobs,
            on_event=on_event,
            should_start=should_start,
            extra=extra,
        )
    except OutOfTime:
        print(f"{passed():5.0f} s  time is over; what was begun goes on from its checkpoint in {runs}")
        return 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"{passed():5.0f} s  {len(swept.done)} runs done, {len(swept.failed)} failed")
    for run, why in swept.failed:
        print(f"failed: {run.label}: {why}; {run.folder(runs)}/error.txt")
    return len(swept.failed)


def _describe(event: RunEvent, estimates: Estimates, run: PlannedRun) -> str:
    if event.kind == "begin":
        return "begins, about {:.0f} s ({})".format(*estimates.estimate(run))
    if event.line is None:
        return f"{event.kind}: {event.why}"
    line = event.line
    accuracy = "" if line.get("accuracy") is None else f"{100 * line['accuracy']:.2f}%, "
    ari = "" if line.get("ari") is None else f"ARI {line['ari']:.2f}, "
    return f"done, {accuracy}{ari}{line['wall_s']:.0f} s"


def collect(items: Sequence[Item], folders: Sequence[Path], results: Path) -> None:
    """Add the runs of the plan that ended in these folders to the files of results that keep them."""
    for folder in folders:
        if not any(folder.glob("*.jsonl")):
            raise BadInput(f"{folder}: no finished runs (*.jsonl) there")
    found, kept = ResultsIndex([], folders), 0
    for keep in dict.fromkeys(item.entry.keep for item in items):
        own = unique_runs(run for item in items if item.entry.keep == keep for run in item.runs())
        lines = [line for run in own if (line := found.find(run)) is not None]
        kept += len(lines)
        added = ResultsFile(results / f"{keep}.jsonl").merge(lines)
        print(f"{results / keep}.jsonl: {added} lines added, {len(lines) - added} there already")
    if other := sum(1 for _ in found.lines()) - kept:
        print(f"{other} lines are not of the plan, or double; they stay where they are")


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plan", type=Path, default=HERE / "plan.toml")
    parser.add_argument("--results", type=Path, default=HERE.parent / "results", help="lines of stored runs")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, told in (("list", "show what is left"), ("run", "run it")):
        command = commands.add_parser(name, help=told)
        command.add_argument("--seconds", type=float, default=560.0, help="how long this call may take")
        command.add_argument("--out", type=Path, default=Path("reproduced"), help="where lines of runs go")
        command.add_argument("--runs", type=Path, help="where run folders go; else OUT/runs")
        command.add_argument("--device", default="auto", help="auto, cuda or cpu")
        command.add_argument("--jobs", type=int, default=0, help="processes side by side; 0: by the device")
    command.add_argument("--commit", default="", help="the commit of the code, where git cannot tell")
    command.add_argument(
        "--begin-all",
        action="store_true",
        help="also begin runs that a later call must finish from a checkpoint",
    )
    gather = commands.add_parser("collect", help="add finished runs to the stored ones")
    gather.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args(words)
    try:
        items = read_plan(given.plan)
        if given.command == "collect":
            collect(items, given.folders, given.results)
            return 0
        if not given.seconds > 0:
            raise BadInput(f"--seconds {given.seconds:g}: expected a number above 0")
        device, runs = choose_device(given.device), given.runs or given.out / "runs"
        left = [run for item in items for run in item.runs()]
        jobs = given.jobs or default_jobs(left, device)
        if given.command == "list":
            stored = ResultsIndex([runs], [given.results, given.out])
            show(items, stored, Estimates(items, stored, device, jobs), runs, given.seconds)
            return 0
        if given.commit:
            os.environ[COMMIT] = given.commit  # for the processes that play the runs
        failed = work(items, given.results, given.out, runs, device, jobs, given.seconds, given.begin_all)
        return int(failed > 0)
    except FlamecheError as problem:
        print(f"run_queue: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
