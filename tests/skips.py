"""Fails a run in which more tests are skipped than `skips.toml` allows for the reason they give."""

import os
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

LIMITS = tomllib.loads(Path(__file__).with_name("skips.toml").read_text(encoding="utf-8"))
ALLOWED: dict[str, int] = LIMITS["allowed"]
THERE: dict[str, list[str]] = LIMITS["there"]
HAVE = os.environ.get("FLAMECHE_TESTS_HAVE", "").split()  # tests themselves do not see it


def too_many(reasons: list[str], have: Iterable[str] = ()) -> list[str]:
    """Say for which reasons more tests were skipped than are allowed where these things are there."""
    allowed = ALLOWED | {reason: 0 for thing in have for reason in THERE[thing]}
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    return [
        f"{count} skipped, {allowed.get(reason, 0)} allowed: {reason}"
        for reason, count in sorted(counts.items())
        if count > allowed.get(reason, 0)
    ]


def _problems(config: pytest.Config) -> list[str]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):  # only the process that collects all reports
        return []
    return too_many([report.longrepr[2] for report in terminal.stats.get("skipped", ())], HAVE)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let the run fail."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and _problems(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why."""
    if problems := _problems(config):
        terminalreporter.section("too many skipped tests", red=True)
        for line in problems:
            terminalreporter.line(line)
        terminalreporter.line("Let them run, or raise the number in tests/skips.toml and say why there.")
