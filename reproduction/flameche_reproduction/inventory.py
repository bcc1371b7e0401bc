"""`flameche reproduce --list`: stored and missing runs of each table and figure, and estimated times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flameche.cli.output import log, out_console, print_json, print_rows

DURATIONS = (("month", 30 * 86_400), ("week", 7 * 86_400), ("day", 86_400), ("hour", 3600), ("minute", 60))
WIDE, WORDS = 130, ("title", "paper", "wants")  # columns a terminal needs for these
MIN_UNITS = 1.5  # of a span, from which on it is counted in


def inventory(
    entries: Sequence[Any], choice: Any, stored: Any, device: str, jobs: int
) -> list[dict[str, Any]]:
    """Count the stored and missing runs of each table or figure, and estimate the time of the missing ones.

    The time is given for `device` and for one GPU.
    """
    from flameche.data import available
    from flameche_reproduction.runtime_estimate import RuntimeEstimator
    from flameche_reproduction.sweep import default_jobs, missing_runs, unique_runs

    absent = {info.name for info in available() if not info.found}
    clocks = {where: RuntimeEstimator(stored.lines(), where) for where in (device, "cuda")}
    rows = []
    for entry in entries:
        planned = unique_runs(
            run for run in entry.plan(choice) if not run.retired or stored.find(run) is not None
        )
        todo = missing_runs(planned, stored)
        without = sum(run.dataset in absent for run in todo)
        todo = [run for run in todo if run.dataset not in absent]
        times = {}
        for where, clock in clocks.items():
            guesses = [clock.estimate(run) for run in todo]
            at_once = max(1, min((where == device and jobs) or default_jobs(todo, where), len(todo)))
            seconds = round(sum(guess.seconds for guess in guesses) / at_once) if todo else None
            times[where] = seconds, sum(not guess.measured for guess in guesses)
        of_bench = int(bool(entry.command))
        measured = int(of_bench and stored.document(entry.file) is not None)
        rows.append(
            {
                "name": entry.name,
                "kind": entry.kind,
                "title": entry.title,
                "paper": entry.where,
                "wants": entry.hardware,
                "command": entry.command,
                "runs": len(planned) + of_bench,
                "there": len(planned) - len(todo) - without + measured,
                "missing": len(todo) + of_bench - measured,
                "no_data": without,
                "seconds": times[device][0],
                "guessed": times[device][1],
                "gpu_seconds": times["cuda"][0],
                "gpu_guessed": times["cuda"][1],
                "gpu": ", ".join(sorted(clocks["cuda"].machines)),
            }
        )
    return rows


def print_inventory(rows: list[dict[str, Any]], device: str, as_json: bool) -> None:
    """Print the inventory as a table or as JSON."""
    if as_json:
        print_json(rows)
        return
    clocks = {"time, GPU": "gpu_"} if device == "cuda" else {f"time, {device}": "", "time, GPU": "gpu_"}
    shown = []
    for row in rows:
        what = {"name": row["name"], "title": row["title"], "paper": row["paper"]}
        counts = {key.replace("_", " "): row[key] for key in ("runs", "there", "missing", "no_data")}
        times = {
            title: "–"
            if (took := row[f"{key}seconds"]) is None
            else approximate_duration(took, row[f"{key}guessed"] > 0)
            for title, key in clocks.items()
        }
        shown.append({**what, **counts, **times, "wants": row["wants"]})
    if narrow := out_console.width < WIDE:
        shown = [{key: value for key, value in row.items() if key not in WORDS} for row in shown]
    print_rows(shown, as_json=False)
    gpu = f" (GPU: {rows[0]['gpu']})" if rows and rows[0]["gpu"] else ""
    told = f"Times are those of stored runs of the same kind{gpu}; about: a guess, as there are none."
    log.print(told + (" A wider terminal shows titles too." if narrow else ""), soft_wrap=True)


def approximate_duration(seconds: float, guessed: bool) -> str:
    """Format a duration; a guess is rounded to one significant digit, in the largest fitting unit."""
    from flameche.report.formats import human_seconds

    if not guessed:
        return f"{seconds / 86_400:,.0f} days" if seconds > 2 * 86_400 else human_seconds(seconds)
    name, size = next((pair for pair in DURATIONS if seconds >= MIN_UNITS * pair[1]), DURATIONS[-1])
    count = max(1, round(seconds / size))
    count = round(count, 1 - len(str(count)))
    return f"about {count} {name}{'s' * (count != 1)}"
