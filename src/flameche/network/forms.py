"""What a node's answers look like; whatever looks otherwise is refused before anybody works with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flameche.network.parcel import Parcel

Check = Callable[[Any], bool]
LONG = 2000  # characters of a note
MANY = 100_000  # sums, numbers that a client tells, models
NAME = re.compile(r"[\w.\-]{1,60}", re.ASCII)  # of a model; it becomes part of a file's name


def is_name(value: Any) -> bool:
    """Tell if something may be a model's name."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < LONG and value.isprintable()  # one line, no tricks


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(_text(one) for one in value)


def _names(value: Any) -> bool:
    return isinstance(value, list) and len(value) < MANY and all(is_name(one) for one in value)


def _whole(least: int, below: int) -> Check:
    return lambda value: type(value) is int and least <= value < below


def _wholes(least: int, below: int) -> Check:
    one = _whole(least, below)
    return lambda value: isinstance(value, list) and all(one(number) for number in value)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _some(check: Check) -> Check:
    return lambda value: bool(value) and check(value)


COUNT = _whole(1, MANY)
FORMS: dict[str, dict[str, Check]] = {
    "hello": {
        "run": _text, "fingerprint": _text, "version": _text, "size": _whole(1, 2**40),
        "blocks": lambda value: _wholes(1, 2**31)(value) and len(value) == 2,
    },
    "lack": {},
    "unreadable": {},
    "need": {"names": _some(_names)},
    "step": {},
    "score": {"accuracy": _number, "loss": _number},
    "paused": {},
    "done": {},
}  # fmt: skip
OPENING: dict[str, Check] = {
    "round": _whole(0, 2**31), "what": _text, "kind": _text, "clients": _some(_wholes(0, 2**31)),
    "numbers": _whole(1, 2**31), "changed": lambda value: isinstance(value, list),
    "share": lambda value: isinstance(value, list) and all(_number(one) and 0 < one <= 1 for one in value),
}  # fmt: skip
GIVES = {
    "average": ("clients", "rows", "previous", "names"),
    "store": ("clients", "sums"),
    "drop": ("clients", "sums"),
}
ASKS = {
    "averaged": (),
    "tell": ("clients", "width", "below"),
    "totals": ("clients", "rows", "sums"),
    "once": ("clients", "rows", "sums"),
    "exchange": ("clients",),
    "masked": ("clients", "label", "length"),
}
ARRAYS = {"step": ("message",), "done": ("ask/state",)}


def misfit(reply: Parcel, clients: int) -> str | None:
    """Tell what is wrong with an answer; None if nothing is."""
    head = reply.head
    what = head.get("what")
    if not isinstance(what, str) or what not in FORMS:
        return "answers in a way that is not known here"
    wrong = [key for key, good in FORMS[what].items() if key not in head or not good(head[key])]
    gives: Any = []
    if what in ("paused", "done"):
        gives = head.get("gives")
        if not isinstance(gives, list) or not all(_fits(one, GIVES, clients) for one in gives):
            gives, wrong = [], [*wrong, "gives"]
        said = head.get("said")
        if not (_fits(said, ASKS, clients) if what == "paused" else _ends(said, clients)):
            wrong.append("said")
    wrong += [name for name in ARRAYS.get(what, ()) if name not in reply.arrays]
    if not _names(head.get("wants", [])):
        wrong.append("wants")
    if not all(_named(name, what, len(gives)) for name in reply.arrays):
        wrong.append("an array of no known name")
    return f"answers '{what}' with {', '.join(sorted(wrong))} that cannot be used" if wrong else None


def _fits(about: Any, kinds: dict[str, tuple[str, ...]], clients: int) -> bool:
    """Tell if a question, or something given, has all that the server will look at."""
    if not isinstance(about, dict) or not isinstance(about.get("kind"), str) or about["kind"] not in kinds:
        return False
    sums = about.get("sums")
    names = about.get("names")
    rows = sums if isinstance(sums, int) else len(names) if isinstance(names, list) else 0
    checks: dict[str, Check] = {
        "clients": _wholes(0, clients), "rows": _wholes(0, rows), "sums": COUNT, "width": COUNT,
        "previous": _names, "names": _names, "label": _text, "length": _whole(0, 2**31),
        "below": lambda value: value is None or COUNT(value),
    }  # fmt: skip
    keys = kinds[about["kind"]]
    return all(key in about and checks[key](about[key]) for key in keys) and all(
        len(about[one]) == len(about[other])
        for one, other in (("clients", "rows"), ("previous", "names"))
        if {one, other} <= set(keys)
    )


def _ends(said: Any, clients: int) -> bool:
    """Tell if this is what a node says at the end of a round."""
    if not isinstance(said, dict) or not COUNT(said.get("clusters")):
        return False
    where = _wholes(-1, said["clusters"])
    everybody: Check = lambda value: where(value) and len(value) == clients  # noqa: E731
    final = said.get("final")
    return (
        _names(said.get("names"))
        and len(said["names"]) >= said["clusters"]
        and everybody(said.get("assignment"))
        and _texts(said.get("notes"))
        and (final is None or everybody(final))
        and isinstance(said.get("opened"), list)
        and all(_opening(one, clients) for one in said["opened"])
        and _number(said.get("dbi"))
        and _number(said.get("ch"))
    )


def _opening(told: Any, clients: int) -> bool:
    """Tell if this is what a node says of a sum that it saw."""
    if not isinstance(told, dict) or told.keys() != OPENING.keys():
        return False
    who, versions = _wholes(0, clients), _wholes(0, MANY)
    return (
        all(good(told[key]) for key, good in OPENING.items())
        and who(told["clients"])
        and len(told["share"]) in (0, len(told["clients"]))
        and all(isinstance(one, list) and len(one) == 2 and versions(one) for one in told["changed"])
    )


def _named(name: str, what: str, gives: int) -> bool:
    first, _, rest = name.partition("/")
    if what == "step":
        return name == "message"
    number = rest.partition("/")[0]
    if first == "give":
        known = number.isascii() and number.isdigit() and len(number) < 9
        return what in ("paused", "done") and known and int(number) < gives
    return first == "ask" and what in ("paused", "done")
