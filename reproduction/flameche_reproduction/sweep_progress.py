"""The progress of a sweep: a bar with a time estimate on a terminal, else a line for each finished run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from flameche.cli.output import log, number
from flameche.cli.progress import progress_bar
from flameche.report.formats import human_seconds
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.run_worker import RunEvent
from flameche_reproduction.runtime_estimate import RuntimeEstimator


class SweepProgress:
    """A progress bar over all runs, weighted by their estimated times."""

    def __init__(
        self, todo: Sequence[PlannedRun], stored: ResultsIndex, device: str, wanted: int, begun: int
    ) -> None:
        clock = RuntimeEstimator(stored.lines(), device)
        self._work = {(run.hash, run.seed): clock.estimate(run).seconds for run in todo}
        self._part: dict[tuple[str, int], float] = {}
        self._ended, self._of, self._start = 0, len(todo), time.monotonic()
        self._bar = progress_bar()
        self._bar.start()
        self._tasks: dict[tuple[str, int], Any] = {}
        self._all = self._bar.add_task("", total=sum(self._work.values()))
        there, going_on = wanted - len(todo), f", of which {begun} from a checkpoint" if begun else ""
        log.print(f"{wanted} run{'s' * (wanted != 1)} wanted, {there} there, {len(todo)} to run{going_on}.")

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def on_event(self, run: PlannedRun, event: RunEvent) -> None:
        """Update the bar with an event of a run."""
        key, rounds = (run.hash, run.seed), run.experiment.rounds
        if event.kind == "begin":
            self._tasks[key] = self._bar.add_task(f"  {run.label}", total=rounds)
            return
        if event.kind == "round":
            self._part[key] = self._work[key] * event.round / rounds
            self._bar.update(self._tasks[key], completed=event.round)
        else:
            self._part[key] = self._work[key]
            self._ended += 1
            if (task := self._tasks.pop(key, None)) is not None:
                self._bar.remove_task(task)
            log.print(
                f"{self._ended}/{self._of} {run.label}: {_describe(event)}{self.remaining()}", soft_wrap=True
            )
        done = sum(self._part.values())
        self._bar.update(self._all, completed=done, description=f"{self._ended} of {self._of} runs")

    def remaining(self) -> str:
        """Estimate the remaining time from the finished share of the work."""
        share = sum(self._part.values()) / max(sum(self._work.values()), 1e-9)
        if not 0 < share < 1:
            return ""
        return f" · about {human_seconds((time.monotonic() - self._start) * (1 - share) / share)} left"


def _describe(event: RunEvent) -> str:
    if event.line is None:
        return f"{event.kind}: {event.why}"
    line = event.line
    accuracy = "" if line.get("accuracy") is None else f", {100 * line['accuracy']:.2f}%"
    if line.get("diverged"):
        accuracy = ", training diverged"
    return f"ARI {number(line.get('ari'))}{accuracy} · {number(line.get('wall_s'), '.0f')} s"
