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
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from flameche.errors import ConfigError
from flameche.experiments.error_messages import first_of, toml_literal, wrong_value
from flameche.experiments.events import EventConfig
from flameche.experiments.overrides import overlay
from flameche.experiments.schema import Experiment
from flameche.experiments.tables import Table

__all__ = ["Experiment", "config_hash", "load_experiment", "parse_experiment", "to_toml"]

HASH_FORMAT = 1


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
    if unknown := list(_unknown_keys(merged)):
        raise ConfigError(f"{source}: {first_of(unknown)}")
    try:
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
    dump = experiment.model_dump(mode="json", exclude={"name", "seeds"}, exclude_defaults=True)
    for key in ("threads", "memory"):
        dump.get("training", {}).pop(key, None)
    if (mode := mode or getattr(experiment.method, "mode", None)) is not None:  # once "paper" by default
        dump["method"] = {k: v for k, v in dump.get("method", {}).items() if k != "mode"}
        dump["method"] |= {} if mode == "paper" else {"mode": mode}
    for section in ("metadata", "method", "model", "scheme"):
        dump[section] = {**dump.get(section, {}), "kind": getattr(experiment, section).kind}
    told = {key: value for key, value in dump.items() if value != {}}
    canonical = json.dumps({"format": HASH_FORMAT, **told}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _variants(section: str) -> tuple[type[Table], ...]:
    """The models that may stand under `section`: several for a union, none for a value or a list."""
    annotation: Any = Experiment.model_fields[section].annotation
    if get_origin(annotation) is tuple:
        return ()
    candidates = get_args(annotation) or (annotation,)
    return tuple(c for c in candidates if isinstance(c, type) and issubclass(c, Table))


def _kinds() -> dict[str, dict[str, frozenset[str]]]:
    """The keys each kind knows, for every section whose `kind` is a choice."""
    return {
        section: kinds
        for section in Experiment.model_fields
        if (
            kinds := {
                kind: frozenset(variant.model_fields)
                for variant in _variants(section)
                if "kind" in variant.model_fields
                for kind in get_args(variant.model_fields["kind"].annotation)
            }
        )
    }


def _unknown_keys(data: Mapping[str, Any]) -> Iterator[str]:
    known = {section: _variants(section) for section in Experiment.model_fields}
    paths = [
        *known,
        *(f"{s}.{key}" for s, variants in known.items() for v in variants for key in v.model_fields),
    ]
    for key in data:
        if key not in known:
            yield _unknown("", key, list(known), paths)
    rows = data.get("events")
    for n, row in enumerate(rows if isinstance(rows, list) else []):
        for key in row if isinstance(row, dict) else []:
            if key not in EventConfig.model_fields:
                yield _unknown(f"events[{n}].", key, list(EventConfig.model_fields), [])
    for section, variants in known.items():
        table = data.get(section)
        if not variants or not isinstance(table, dict):
            continue
        kind = table.get("kind", getattr(Experiment.model_fields[section].default, "kind", None))
        chosen = [
            v for v in variants if len(variants) == 1 or kind in get_args(v.model_fields["kind"].annotation)
        ]
        if not chosen:
            continue  # the kind itself is wrong, which pydantic reports
        keys = list(chosen[0].model_fields)
        for key in table:
            if key in keys:
                continue
            if others := [k for k, theirs in _kinds().get(section, {}).items() if key in theirs]:
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
