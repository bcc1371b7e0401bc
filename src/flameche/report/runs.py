"""Reads run folders and checks their values, so that the rest of the report can rely on them.

A run lies in `<runs>/<name>/<hash>/<seed>/`. `summary.json` is written last; a run without it is unfinished.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from flameche.errors import StoreError

CLIENT_COLUMNS = (
    "client", "group", "assignment", "samples", "accuracy", "bytes_up", "bytes_down", "rounds",
    "map_x", "map_y",
)  # fmt: skip
NAN = math.nan


@dataclass(frozen=True)
class Round:
    """One line of `rounds.jsonl`; a missing accuracy or ARI is NaN, a client never seen is in cluster -1."""

    round: int
    accuracy: float
    ari: float
    sizes: tuple[int, ...]
    assignment: tuple[int, ...]
    reclustered: bool
    lost: Mapping[str, str] = field(default_factory=dict)  # nodes of a network that dropped out, and why


@dataclass(frozen=True)
class Ledger:
    """What a run cost: bytes by kind, seconds by part, tuning runs, and knowledge from an oracle."""

    up: dict[str, float]
    down: dict[str, float]
    server_seconds: dict[str, float]
    client_seconds: dict[str, float]
    tuning_runs: int = 0
    oracle_knowledge: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """The values of `summary.json`; a number that the method does not have is NaN."""

    method: str
    label: str
    dataset: str
    setting: str
    scheme: str
    seed: int
    rounds: int
    accuracy: float
    accuracy_per_round: tuple[float, ...]
    diverged: bool  # then the accuracy is NaN, since that of models with NaN weights means nothing
    ari: float
    ari_final: float
    dbi: float
    ch: float
    k: str
    bytes_up: float
    bytes_down: float
    seconds: dict[str, float]
    wall_s: float
    device: str
    ledger: Ledger
    notes: tuple[str, ...]
    noise: str = ""  # the differential privacy that noise gives, as text; "" without noise
    leakage: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # for each party what it could learn


@dataclass(frozen=True)
class Run:
    """One run, from a folder or a stored line; `summary` is None unless `status` is "finished"."""

    folder: Path
    status: Literal["finished", "unfinished", "broken"]
    config_text: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    clients: pd.DataFrame | None = None
    summary: Summary | None = None
    note: str = ""
    table: str = ""  # the paper's table to which a stored run belongs
    command: str = ""  # the command that runs it again, if --seed is added

    @property
    def place(self) -> str:
        """Return `name/hash/seed`, which is the same on every machine."""
        return "/".join(self.folder.parts[-3:])

    @property
    def experiment(self) -> str:
        """Return `name/hash`, which runs share that differ only in their seed."""
        return "/".join(self.folder.parts[-3:-1])


def find_runs(folder: Path) -> list[Run]:
    """Read every run below a folder of runs, an experiment's folder, or one run's; sorted by place.

    Raises:
        StoreError: if there is no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; give a runs folder as `flameche run` writes it")
    places = _run_folders(folder.resolve(), depth=3)
    if not places:
        raise StoreError(
            f"no runs under {folder}; expected <name>/<hash>/<seed>/summary.json, see `flameche run`"
        )
    return [read_run(place) for place in places]


def read_run(folder: Path) -> Run:
    """Read one run folder; one that cannot be read is returned with the status "broken" and the reason."""
    try:
        return _read(folder)
    except OSError as problem:
        return Run(folder, "broken", note=f"cannot be read: {problem.strerror or problem}")
    except UnreadableRun as problem:
        return Run(folder, "broken", note=str(problem))


class UnreadableRun(Exception):
    """A file of a run folder, or a stored line, is damaged."""


def _run_folders(folder: Path, depth: int) -> list[Path]:
    if any((folder / name).is_file() for name in ("summary.json", "rounds.jsonl")):
        return [folder]
    if depth:
        below = [
            run for child in sorted(_folders(folder), key=_natural) for run in _run_folders(child, depth - 1)
        ]
        if below:
            return below
    return [folder] if (folder / "config.toml").is_file() else []


def _folders(folder: Path) -> Iterable[Path]:
    try:
        return [child for child in folder.iterdir() if child.is_dir()]
    except OSError as problem:
        raise StoreError(f"cannot list {folder}: {problem.strerror}; check its permissions") from problem


def _natural(path: Path) -> tuple[int, str]:
    """Sort key for folders: seed 10 comes after seed 9."""
    return (int(path.name) if path.name.isdecimal() else -1, path.name)


def _read(folder: Path) -> Run:
    missing = []
    config_text = ""
    config: dict[str, Any] = {}
    if (folder / "config.toml").is_file():
        config_text = _text(folder / "config.toml")
        try:
            config = tomllib.loads(config_text)
        except tomllib.TOMLDecodeError as problem:
            raise UnreadableRun(f"config.toml is not valid TOML: {problem}") from problem
    else:
        missing.append("config.toml")
    finished = (folder / "summary.json").is_file()
    rounds: tuple[Round, ...] = ()
    if (folder / "rounds.jsonl").is_file():
        rounds = _rounds(_text(folder / "rounds.jsonl"), finished)
    else:
        missing.append("rounds.jsonl")
    if not finished:
        planned = config.get("rounds")
        note = f"unfinished ({len(rounds)} of {planned if isinstance(planned, int) else '?'} rounds)"
        return Run(folder, "unfinished", config_text, config, rounds=rounds, note=note)
    summary = parse_summary(_json(_text(folder / "summary.json"), "summary.json"))
    environment: dict[str, Any] = {}
    if (folder / "environment.json").is_file():
        environment = _table(
            _json(_text(folder / "environment.json"), "environment.json"), "environment.json"
        )
    else:
        missing.append("environment.json")
    clients = None
    if (folder / "clients.parquet").is_file():
        clients = _clients(folder / "clients.parquet")
        if clients["group"].nunique() < 2 and not config.get(
            "events"
        ):  # earlier versions stored an ARI all the same
            summary = replace(summary, ari=NAN, ari_final=NAN)
            rounds = tuple(replace(each, ari=NAN) for each in rounds)
    else:
        missing.append("clients.parquet")
    note = f"without {', '.join(missing)}" if missing else ""
    return Run(folder, "finished", config_text, config, environment, rounds, clients, summary, note)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise UnreadableRun(f"{path.name} is not UTF-8 text") from problem


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise UnreadableRun(f"{name} is not valid JSON: {problem}") from problem


def _rounds(text: str, finished: bool) -> tuple[Round, ...]:
    lines = [line for line in text.split("\n") if line.strip()]
    if lines and not finished and not text.endswith("\n"):
        lines.pop()  # the last line of a run that was killed may be incomplete
    rounds = []
    for number, line in enumerate(lines, 1):
        name = f"rounds.jsonl line {number}"
        values = _table(_json(line, name), name)
        rounds.append(
            Round(
                round=_whole(values, "round", name),
                accuracy=_number(values, "accuracy", name),
                ari=_number(values, "ari", name),
                sizes=_wholes(values, "sizes", name),
                assignment=_wholes(values, "assignment", name),
                reclustered=bool(values.get("reclustered")),
                lost={str(node): str(why) for node, why in _table(values.get("lost") or {}, name).items()},
            )
        )
    return tuple(rounds)


def _clients(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except Exception as problem:  # pyarrow raises many kinds; all mean that the file is damaged
        raise UnreadableRun("clients.parquet is not a readable Parquet file") from problem
    lacking = [name for name in CLIENT_COLUMNS if name not in frame.columns]
    if lacking:
        raise UnreadableRun(f"clients.parquet lacks the columns {', '.join(lacking)}")
    return frame


def parse_summary(content: Any, name: str = "summary.json") -> Summary:
    """Check the content of `summary.json`, or of a stored line with the same keys.

    Raises:
        UnreadableRun: if a value is missing or has the wrong type; the message begins with `name`.
    """
    values = _table(content, name)
    lacking = [key for key in ("method", "dataset", "setting", "seed") if values.get(key) is None]
    if lacking:
        raise UnreadableRun(f"{name} lacks {', '.join(lacking)}")
    ledger = _table(values.get("ledger") or {}, f"{name} ledger")
    leakage = _table(values.get("leakage") or {}, f"{name} leakage")
    per_round = values.get("accuracy_per_round") or []
    return Summary(
        method=str(values["method"]),
        label=str(values.get("label") or values["method"]),
        dataset=str(values["dataset"]),
        setting=str(values["setting"]),
        scheme=str(values.get("scheme") or "plain"),
        seed=_whole(values, "seed", name),
        rounds=_whole(values, "rounds", name),
        accuracy=NAN if values.get("diverged") else _number(values, "accuracy", name),
        diverged=bool(values.get("diverged")),
        accuracy_per_round=tuple(
            _number({"accuracy_per_round": x}, "accuracy_per_round", name) for x in per_round
        ),
        ari=_number(values, "ari", name),
        ari_final=_number(values, "ari_final", name),
        dbi=_number(values, "dbi", name),
        ch=_number(values, "ch", name),
        k="" if values.get("k") is None else str(values["k"]),
        bytes_up=_number(values, "bytes_up", name),
        bytes_down=_number(values, "bytes_down", name),
        seconds=_numbers(values, "seconds"),
        wall_s=_number(values, "wall_s", name),
        device=str(values.get("device") or ""),
        ledger=Ledger(
            up=_numbers(ledger, "up"),
            down=_numbers(ledger, "down"),
            server_seconds=_numbers(ledger, "server_seconds"),
            client_seconds=_numbers(ledger, "client_seconds"),
            tuning_runs=_whole(ledger, "tuning_runs", name),
            oracle_knowledge=tuple(str(item) for item in ledger.get("oracle_knowledge") or ()),
        ),
        notes=tuple(str(item) for item in values.get("notes") or ()),
        leakage={party: _numbers(leakage, party) for party in leakage},
        noise=_noise(_table(values.get("privacy") or {}, f"{name} privacy"), f"{name}: privacy"),
    )


def _noise(privacy: Mapping[str, Any], name: str) -> str:
    """Describe the differential privacy that a run had; "" without any."""
    if not privacy:
        return ""
    epsilon, delta = (_number(privacy, key, name) for key in ("epsilon_spent", "delta"))
    return f"ε = {epsilon:.3g}, δ = {delta:g}, a record" + (
        ", seeded" if privacy.get("noise") == "seeded" else ""
    )


def _table(content: Any, name: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise UnreadableRun(f"{name} holds a {type(content).__name__}, expected an object")
    return content


def _number(values: Mapping[str, Any], key: str, name: str) -> float:
    value = values.get(key)
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableRun(f"{name}: {key} is {value!r}, expected a number")
    return float(value)


def _whole(values: Mapping[str, Any], key: str, name: str) -> int:
    value = values.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnreadableRun(f"{name}: {key} is {value!r}, expected a whole number")
    return value


def _wholes(values: Mapping[str, Any], key: str, name: str) -> tuple[int, ...]:
    value = values.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise UnreadableRun(f"{name}: {key} is not a list of whole numbers")
    return tuple(value)


def _numbers(values: Mapping[str, Any], key: str) -> dict[str, float]:
    table = _table(values.get(key) or {}, f"summary.json {key}")
    return {str(part): _number(table, part, f"summary.json {key}") for part in table}
