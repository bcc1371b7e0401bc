"""Refuse an unknown name, and say which known one was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flameche.errors import DataError


def one_of(value: str, known: Iterable[str], what: str) -> str:
    """Return `value` if it is among `known`; else a DataError that names the nearest."""
    names = list(known)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DataError(f"{what} {value!r} is not known, expected one of: {', '.join(names)}{hint}")
