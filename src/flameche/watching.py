"""Shows how a sweep goes: a bar with an estimate on a terminal, else a line for each run that ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from flameche.display import log, number, progress_bar
from flameche.experiments.guess import Clock
from flameche.experiments.paper.plan import Planned
from flameche.experiments.play import News
from flameche.experiments.stored import Stored
from flameche.report.formats import human_seconds


class SweepBar:
    """A bar over the work of all runs, weighed by how long each should take."""

    def __init__(self, todo: Sequence[Planned], stored: Stored, device: str, wanted: int, begun: int) -> None:
        clock = Clock(stored.lines(), device)
        self._work = {(run.hash, run.seed): clock.tell(run).seconds for run in todo}
        self._part: dict[tuple[str, int], float] = {}
        self._ended, self._of, self._start = 0, len(todo), time.monotonic()
        self._bar = progress_bar()
        self._bar.start()
        self._tasks: dict[tuple[str, int], Any] = {}
        self._all = self._bar.add_task("", total=sum(self._work.values()))
        there, going_on = wanted - len(todo), f", of which {begun} from a checkpoint" if begun else ""
        log.print(f"{wanted} run{'s' * (wanted != 1)} wanted, {there} there, {len(todo)} to run{going_on}.")

    def __enter__(self) -> SweepBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def watch(self, run: Planned, news: News) -> None:
        """Take in what became of a run."""
        key, rounds = (run.hash, run.seed), run.experiment.rounds
        if news.kind == "begin":
            self._tasks[key] = self._bar.add_task(f"  {run.label}", total=rounds)
            return
        if news.kind == "round":
            self._part[key] = self._work[key] * news.round / rounds
            self._bar.update(self._tasks[key], completed=news.round)
        else:
            self._part[key] = self._work[key]
            self._ended += 1
            if (task := self._tasks.pop(key, None)) is not None:
                self._bar.remove_task(task)
            log.print(f"{self._ended}/{self._of} {run.label}: {_told(news)}{self.left()}", soft_wrap=True)
        done = sum(self._part.values())
        self._bar.update(self._all, completed=done, description=f"{self._ended} of {self._of} runs")

    def left(self) -> str:
        """Estimate the time that is left, from the share of the work that is done."""
        share = sum(self._part.values()) / max(sum(self._work.values()), 1e-9)
        if not 0 < share < 1:
            return ""
        return f" · about {human_seconds((time.monotonic() - self._start) * (1 - share) / share)} left"


def _told(news: News) -> str:
    if news.line is None:
        return f"{news.kind}: {news.why}"
    line = news.line
    accuracy = "" if line.get("accuracy") is None else f", {100 * line['accuracy']:.2f}%"
    if line.get("diverged"):
        accuracy = ", training diverged"
    return f"ARI {number(line.get('ari'))}{accuracy} · {number(line.get('wall_s'), '.0f')} s"
