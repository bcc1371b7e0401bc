"""Error messages for experiment files: pydantic's errors as one line each, values as TOML."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

_EXPECTED = {
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "model_attributes_type": "must be a table",
    "model_type": "must be a table",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
}


def wrong_value(detail: ErrorDetails, data: Mapping[str, Any]) -> str:
    """Write one of pydantic's errors as `training.lr = -1: must be greater than 0`."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return f"{'.'.join(map(str, detail['loc']))} is missing"
    path = _path(detail["loc"], data)
    if kind == "union_tag_invalid":
        path, value = f"{path}.kind", value["kind"]
    if choices := re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", ""))):
        expected = f"must be {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
        return f"{path} = {toml_literal(value, 80)}: {expected}{did_you_mean(value, choices)}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{path} = {toml_literal(value, 80)}: {_EXPECTED.get(kind, message)}"


def _path(loc: Sequence[str | int], data: Any) -> str:
    """Write `loc` as a path in the file, without the names of union members that pydantic adds."""
    path = ""
    for part in loc:
        if isinstance(data, dict) and part in data:
            path, data = f"{path}.{part}" if path else str(part), data[part]
        elif isinstance(data, list | tuple) and isinstance(part, int):
            path, data = f"{path}[{part}]", data[part]
    return path


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """Write a question with the most similar choice; empty if none is similar."""
    near = difflib.get_close_matches(value.lower(), choices, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def first_of(messages: Sequence[str]) -> str:
    """Return the first message, and how many more there are."""
    return messages[0] + (f" (and {len(messages) - 1} more)" if len(messages) > 1 else "")


def toml_literal(value: object, limit: int | None = None) -> str:
    """Write `value` as TOML on one line, cut at `limit` characters if one is given."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        # JSON escapes as TOML does, except for DEL and the line breaks of Unicode.
        quoted = json.dumps(value, ensure_ascii=False)
        text = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(toml_literal(item) for item in value)}]"
    elif isinstance(value, dict):
        bare = {key: key if re.fullmatch(r"[\w-]+", str(key)) else toml_literal(key) for key in value}
        text = f"{{{', '.join(f'{bare[key]} = {toml_literal(item)}' for key, item in value.items())}}}"
    else:
        text = str(value)  # int, float: Python's shortest exact form is TOML's too; dates only in messages
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
