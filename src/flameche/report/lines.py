"""Stored runs as runs: a line of results/*.jsonl has a summary's numbers and its curves, but no clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flameche.errors import StoreError
from flameche.experiments.paper import ENTRIES, Choice, Planned
from flameche.experiments.paper.sets import SETTINGS
from flameche.experiments.protection import protection
from flameche.experiments.stored import OF_LEDGER, Line, Stored, made_by, trained
from flameche.report.runs import Broken, Round, Run, find_runs, parse_summary

MAIN = tuple(SETTINGS)  # the tables that compare methods; runs of others vary one of them


def folder_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the run folders below several places, each run once."""
    found: dict[str, Run] = {}
    for run in (run for folder in folders for run in find_runs(folder)):
        found.setdefault(run.place, run)
    return list(found.values())


def stored_runs(stored: Stored, folders: Iterable[Run]) -> list[Run]:
    """Give every run of the paper's tables that is stored, once; where a folder has it, that one in full."""
    whole = {run.folder.parts[-2:]: run for run in folders if run.summary}
    found: dict[tuple[Any, ...], Run] = {}
    methods: dict[str, str] = {}  # a clustering by a main table's config is named as there
    for entry in sorted(ENTRIES.values(), key=lambda entry: entry.name not in MAIN):
        for planned in entry.plan(Choice()):
            key = planned.hash, str(planned.seed), planned.training
            title = (entry.rows or {})[planned.row].title
            if entry.name in MAIN:
                methods[planned.hash] = _bare(title)
            elif planned.hash in methods:
                title = f"{methods[planned.hash]}{'' if planned.training else ', clustering alone'}"
            if key in found or (line := stored.find(planned)) is None:
                continue
            own = whole.get(key[:2]) if planned.training else None
            run = _run(planned, line, title) if own is None else own
            found[key] = _named(run, entry.name, title, _command(planned))
    return list(found.values())


def _named(run: Run, table: str, title: str, command: str) -> Run:
    """Call a run as its row of the table."""
    summary = None if run.summary is None else replace(run.summary, label=_bare(title))
    return replace(run, summary=summary, table=table, command=command)


def _bare(title: str) -> str:
    """Without "(m)" and the like, which are for the paper's tables."""
    return title.removesuffix("(s)").removesuffix("(c)").removesuffix("(m)").strip()


def _run(planned: Planned, line: Line, title: str) -> Run:
    about: dict[str, Any] = {
        **line,
        "method": planned.method,
        "label": title,
        "dataset": planned.dataset,
        "setting": planned.setting,
        "scheme": line.get("scheme") or protection(planned.experiment),
        "rounds": line.get("rounds") or planned.experiment.rounds,
        "k": line.get("k") or getattr(planned.experiment.method, "clusters", None),
        "seconds": line["seconds"] if isinstance(line.get("seconds"), dict) else {},
        "ledger": {key: line.get(key) for key in OF_LEDGER if line.get(key) is not None},
    }
    name = f"stored run {planned.label}"
    try:
        summary = parse_summary(about, name)
        rounds = tuple(_rounds(line))
    except (Broken, TypeError, ValueError) as problem:
        raise StoreError(f"{name} cannot be read: {problem}") from problem
    return Run(
        Path(planned.dataset, planned.hash, str(planned.seed)),
        "finished",
        environment=made_by(line),
        rounds=rounds,
        summary=summary,
        note="" if trained(line) else "a clustering alone, without training",
    )


def _rounds(line: Line) -> Iterable[Round]:
    accuracy, ari = line.get("accuracy_per_round") or [], line.get("ari_per_round") or []
    for at in range(max(len(accuracy), len(ari))):
        yield Round(at + 1, _at(accuracy, at), _at(ari, at), (), (), False)


def _at(values: Sequence[float | None], place: int) -> float:
    value = values[place] if place < len(values) else None
    return float("nan") if value is None else float(value)


def _command(planned: Planned) -> str:
    """Say what plays it again but for the seed, with the overrides of the line; nothing, if it is gone."""
    if planned.gone:
        return ""
    words = " ".join(f"--set {word}" for word in planned.overrides)
    do = "run" if planned.training else "cluster"
    return f"flameche {do} experiments/{planned.dataset}.toml {words}"
