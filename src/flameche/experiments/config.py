"""Experiments to and from TOML: reading, overriding, refusing in one line, hashing.

Wrong input becomes a `ConfigError` of one line that names the key, the value and what was expected;
pydantic's own reports never reach the user. `parse_experiment` is the border; inside, an `Experiment` is
trusted.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flameche.errors import ConfigError
from flameche.experiments.error_messages import first_of, toml_literal, wrong_value
from flameche.experiments.events import EventConfig
from flameche.experiments.overrides import overlay
from flameche.experiments.schema import Experiment, SchemeOptions
from flameche.registry import METADATA, METHODS, PARTITIONS, SCHEMES, Registry
from flameche.tables import Table

__all__ = ["Experiment", "config_hash", "load_experiment", "parse_experiment", "to_toml"]

HASH_FORMAT = 1
# Sections whose keys depend on their kind.
REGISTRIES: dict[str, Registry[Any]] = {
    "metadata": METADATA,
    "method": METHODS,
    "partition": PARTITIONS,
    "scheme": SCHEMES,
}


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file; its name is the file's stem unless it says otherwise."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected an experiment in TOML") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not TOML: byte {error.start} is not UTF-8") from None
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # tomllib names no line when the text ends too early.
        where = f"at line {len(text.splitlines())}, the end of the file"
        raise ConfigError(f"{path}: not TOML: {str(error).replace('at end of document', where)}") from None
    return parse_experiment({"name": path.stem, **data}, overrides, source=str(path))


def parse_experiment(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "config"
) -> Experiment:
    """Validate `data` under `overrides` (`"training.lr=1e-3"`); `source` opens every error's line."""
    merged = overlay(data, overrides, _kinds())
    try:
        if unknown := list(_unknown_keys(merged)):
            raise ConfigError(first_of(unknown))
        return Experiment.model_validate(merged)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValidationError as error:
        wrong = [wrong_value(detail, merged) for detail in error.errors(include_url=False)]
        raise ConfigError(f"{source}: {first_of(wrong)}") from None


def to_toml(experiment: Experiment) -> str:
    """Write `experiment` with every default spelled out; `parse_experiment` gives back its equal."""
    dump = experiment.model_dump(exclude_none=True)
    tables = {key: value for key, value in dump.items() if isinstance(value, dict)}
    lines = [f"{key} = {toml_literal(value)}" for key, value in dump.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {toml_literal(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def config_hash(experiment: Experiment, mode: str | None = None) -> str:
    """12 hex digits over all that determines one run's result: not the name, the seeds, threads or memory.

    mode: which the experiment had, where that is one that is gone.

    Defaults are left out, so that a key added later changes no hash; a default that is changed needs
    another HASH_FORMAT.
    """
    dump = experiment.model_dump(mode="json", exclude={"name", "seeds", "callbacks"}, exclude_defaults=True)
    for key in ("threads", "memory"):
        dump.get("training", {}).pop(key, None)
    if (mode := mode or getattr(experiment.method, "mode", None)) is not None:  # once "paper" by default
        dump["method"] = {k: v for k, v in dump.get("method", {}).items() if k != "mode"}
        dump["method"] |= {} if mode == "paper" else {"mode": mode}
    for section in ("metadata", "method", "model", "scheme"):
        dump[section] = {**dump.get(section, {}), "kind": getattr(experiment, section).kind}
    if (dealt := experiment.partition.kind) != "equal":
        dump["partition"] = {**dump.get("partition", {}), "kind": dealt}
    told = {key: value for key, value in dump.items() if value != {}}
    canonical = json.dumps({"format": HASH_FORMAT, **told}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _table(section: str, table: object) -> type[Table] | None:
    """Give the class that reads a section: of those with kinds, the kind's options; None for other values."""
    if (registry := REGISTRIES.get(section)) is not None:
        kind = table.get("kind", next(iter(registry))) if isinstance(table, dict) else None
        if not isinstance(kind, str) or registry.problem(kind):
            return None  # which pydantic reports
        return _options(registry[kind])
    annotation: Any = Experiment.model_fields[section].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Table) else None


def _options(thing: Any) -> type[Table]:
    """Give the class of a kind's options; schemes without own options share theirs."""
    options: type[Table] = getattr(thing, "Options", SchemeOptions)
    return options


def _kinds() -> dict[str, dict[str, frozenset[str]]]:
    """Give the keys that each kind knows, for every section whose keys depend on the kind."""
    return {
        section: {kind: frozenset(_options(thing).model_fields) for kind, thing in registry.loaded().items()}
        for section, registry in REGISTRIES.items()
    }


def _unknown_keys(data: Mapping[str, Any]) -> Iterator[str]:
    sections = Experiment.model_fields
    tables = {name: table for name in sections if (table := _table(name, data.get(name) or {}))}
    every = {name: list(table.model_fields) for name, table in tables.items()}
    for section, kinds in _kinds().items():
        every[section] = sorted({key for keys in kinds.values() for key in keys} | {*every.get(section, [])})
    paths = [*sections, *(f"{section}.{key}" for section, keys in every.items() for key in keys)]
    for key in data:
        if key not in sections:
            yield _unknown("", key, list(sections), paths)
    rows = data.get("events")
    for n, row in enumerate(rows if isinstance(rows, list) else []):
        for key in row if isinstance(row, dict) else []:
            if key not in EventConfig.model_fields:
                yield _unknown(f"events[{n}].", key, list(EventConfig.model_fields), [])
    for section, chosen in tables.items():
        table = data.get(section)
        if not isinstance(table, dict):
            continue
        keys = list(chosen.model_fields)
        for key in table:
            if key in keys:
                continue
            if others := [k for k, theirs in _kinds().get(section, {}).items() if key in theirs]:
                kind = table.get("kind", getattr(Experiment.model_fields[section].default, "kind", None))
                where = (
                    f"for {section}.kind = {toml_literal(kind)}; it belongs to kind {' and '.join(others)}"
                )
                yield f"unknown key '{section}.{key}' {where}"
            else:
                yield _unknown(f"{section}.", key, keys, paths)


def _unknown(prefix: str, key: object, keys: Sequence[str], paths: Sequence[str]) -> str:
    name = str(key)
    near = [prefix + match for match in difflib.get_close_matches(name, keys, n=1, cutoff=0.65)]
    elsewhere = sorted({path for path in paths if path.rpartition(".")[2] == name})
    if not near and len(elsewhere) == 1:  # the right key in the wrong table
        near = elsewhere
    remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(prefix + k for k in keys)}"
    return f"unknown key {prefix + name!r}; {remedy}"
