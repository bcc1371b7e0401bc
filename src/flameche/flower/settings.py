"""The settings of an app (`[tool.flwr.app.config]`) and of a node (`--node-config`)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flameche.errors import ConfigError
from flameche.experiments.config import Experiment, load_experiment

UserConfig = Mapping[str, Any]


@dataclass(frozen=True)
class RunSettings:
    """The app's settings that server and nodes read; they must be the same for all."""

    experiment: Experiment
    seed: int
    own_data: bool  # else every node takes its client's share of the experiment's dataset
    load: str  # "module:function" of the app, or ""
    classes: str
    device: str

    @classmethod
    def read(cls, run: UserConfig) -> RunSettings:
        """Read the settings of a run, and the experiment, which is a file of the app."""
        name, changes = _text(run, "experiment", "experiment.toml"), _text(run, "set").split()
        for change in changes:
            if ":" in change:  # an app's own files are known by its hash, what the operator sets is not
                raise ConfigError(f"set = {change!r}: code can be named in the app's experiment file alone")
        return cls(
            experiment=load_experiment(app_file(name), changes),
            seed=_whole(run, "seed"),
            own_data=has_own_data(run),
            load=_text(run, "load"),
            classes=_text(run, "classes"),
            device=_text(run, "device", "cpu"),
        )


@dataclass(frozen=True)
class ServerSettings:
    """The app's settings that only the server reads."""

    out: Path
    key: Path | None
    timeout: float
    patience: float
    least_nodes: int
    removed: tuple[int, ...]
    tensorboard: bool

    @classmethod
    def read(cls, run: UserConfig) -> ServerSettings:
        """Read the settings of a run."""
        key = _text(run, "key")
        removed = _text(run, "removed").replace(",", " ").split()
        if not all(map(str.isdecimal, removed)):
            raise ConfigError(f'removed = "{run["removed"]}" in the app\'s config; expected numbers of nodes')
        return cls(
            out=Path(_text(run, "out", "runs")).expanduser(),
            key=Path(key).expanduser() if key else None,
            timeout=_seconds(run, "timeout", 600.0),
            patience=_seconds(run, "patience", 120.0),
            least_nodes=max(1, _whole(run, "least-nodes", 2)),
            removed=tuple(map(int, removed)),
            tensorboard=bool(run.get("tensorboard", False)),
        )


@dataclass(frozen=True)
class NodeSettings:
    """A node's own settings: its number, its folder, and where its key and data are."""

    number: int
    folder: Path
    key: Path | None
    data: Path | None
    device: str
    run: str  # the only run that it takes part in; "" for any

    @classmethod
    def read(cls, node: UserConfig) -> NodeSettings:
        """Read a node's settings."""
        number = node.get("partition-id")
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(
                "the node's settings lack partition-id, its number: --node-config 'partition-id=0'"
            )
        folder = _text(node, "folder")
        if not folder:
            raise ConfigError(f"node {number}: its settings lack folder, where it keeps its state")
        key, data = _text(node, "key"), _text(node, "data")
        return cls(
            number,
            Path(folder).expanduser(),
            Path(key).expanduser() if key else None,
            Path(data).expanduser() if data else None,
            _text(node, "device"),
            _text(node, "run"),
        )


def has_own_data(run: UserConfig) -> bool:
    """Return whether sites have data of their own; the app's config must then give the classes."""
    data = _text(run, "data", "own")
    if data not in ("own", "simulated"):
        raise ConfigError(f'data = "{data}" in the app\'s config; expected "own" or "simulated"')
    if data == "own":
        class_count(_text(run, "classes"))
    return data == "own"


def class_count(classes: str) -> int:
    """Return the number of classes in an app's config, which gives the number or the names.

    A site's own labels do not show it: without samples of the last class, its model would be smaller.
    """
    names = class_names(classes)
    number = classes.strip()
    count = len(names) if names else int(number) if number.isdecimal() else 0
    if count < 2 or len(set(names)) < len(names):
        raise ConfigError(
            f'classes = "{classes}" in the app\'s config (pyproject.toml); expected the number of classes at '
            'all sites together ("3"), or their names ("healthy, ill"), because a site may lack some'
        )
    return count


def class_names(classes: str) -> list[str]:
    """List the names of the classes; an empty list if the app's config gives only their number."""
    names = [name.strip() for name in classes.split(",") if name.strip()]
    return [] if len(names) == 1 and names[0].isdecimal() else names


def app_file(name: str) -> Path:
    """Find a file in the app's folder, which Flower puts on Python's path."""
    if not Path(name).is_absolute() and ".." not in Path(name).parts:
        for folder in sys.path:
            if folder and (Path(folder) / "pyproject.toml").is_file() and (Path(folder) / name).is_file():
                return Path(folder) / name
    raise ConfigError(f"the app has no file {name}; `experiment` in its config names one")


def app_function(reference: str) -> Callable[..., Any]:
    """Import a function by "module:function", from the app's folder only."""
    module, _, name = reference.partition(":")
    app_file(f"{module.replace('.', '/')}.py")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(
            f'load = "{reference}" in the app\'s config cannot be imported: {type(problem).__name__}; the '
            "node's log says more"
        ) from problem
    if not callable(found):
        raise ConfigError(f'load = "{reference}" in the app\'s config is not a function')
    return found  # type: ignore[no-any-return]


def _text(table: UserConfig, key: str, default: str = "") -> str:
    value = table.get(key, default)
    return value if isinstance(value, str) else str(value)


def _whole(table: UserConfig, key: str, default: int = 0) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{key} = {value!r} in the app's config; expected a whole number")
    return value


def _seconds(table: UserConfig, key: str, default: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7:
        raise ConfigError(f"{key} = {value!r} in the app's config; expected seconds")
    return float(value)
