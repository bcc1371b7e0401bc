"""Overrides from the command line (`training.lr=1e-3`), laid over the tables of an experiment file."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from flameche.errors import ConfigError

KeyPath = tuple[str, ...]
Kinds = Mapping[str, Mapping[str, frozenset[str]]]  # section -> kind -> the keys that this kind knows

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
# Of [data] only one of the two may be given, and an override cannot unset: naming one drops the file's other.
_RIVALS: Mapping[KeyPath, str] = {("data", "dataset"): "path", ("data", "path"): "dataset"}


def parse_override(text: str) -> list[tuple[KeyPath, Any]]:
    """Read `a.b=value` as (path, value) pairs: one pair, or one for each leaf of an inline table."""
    key, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not raw or not _KEY.fullmatch(key):
        raise ConfigError(
            f"override {text!r}: expected key=value, as in training.lr=1e-3 or method.kind=fedavg"
        )
    return _leaves(tuple(key.split(".")), _value(raw))


def parse_range(text: str, option: str) -> tuple[int, int]:
    """Read `2..8` as (2, 8), and `8` as (1, 8)."""
    found = re.fullmatch(r"(?:(\d+)\.\.)?(\d+)", text.strip())
    least, most = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not 1 <= least <= most or not 2 <= most <= 64:
        raise ConfigError(f"{option} {text}: expected a range such as 2..8, from at least 1 to 64 at most")
    return least, most


def overlay(data: Mapping[str, Any], overrides: Sequence[str], kinds: Kinds) -> dict[str, Any]:
    """Return a copy of `data` with `overrides` set, the last one winning; `data` stays as it is.

    A changed `kind` takes away the file's keys that belong to other kinds only, so that `method.kind=oracle`
    works on any experiment. What overrides give is set afterwards, hence never taken away; a key that no kind
    knows stays, to be reported.
    """
    given = dict(pair for text in overrides for pair in parse_override(text))
    merged = copy.deepcopy(dict(data))
    for section, known in kinds.items():
        table, kind = merged.get(section), given.get((section, "kind"))
        if isinstance(table, dict) and isinstance(kind, str) and kind in known and kind != table.get("kind"):
            foreign = frozenset[str]().union(*known.values()) - known[kind]
            merged[section] = {key: value for key, value in table.items() if key not in foreign}
    for path in given:
        if path in _RIVALS and isinstance(table := merged.get(path[0]), dict):
            table.pop(_RIVALS[path], None)
    for path, value in given.items():
        _put(merged, path, value)
    return merged


def _value(raw: str) -> Any:
    """A TOML value, or else the bare text, so that names need no quotes inside the shell's own."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        return raw
    return parsed["value"] if len(parsed) == 1 else raw  # more keys: the text held line breaks


def _leaves(path: KeyPath, value: Any) -> list[tuple[KeyPath, Any]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, inner in value.items() for leaf in _leaves((*path, key), inner)]


def _put(table: dict[str, Any], path: KeyPath, value: Any) -> None:
    *sections, key = path
    for section in sections:
        if not isinstance(table.get(section), dict):
            table[section] = {}
        table = table[section]
    table[key] = value
