"""What a node's answers look like; whatever looks otherwise is refused before anybody works with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flameche.network.parcel import Parcel

Check = Callable[[Any], bool]
LONG = 2000  # characters of a note


def _is(*kinds: type) -> Check:
    return lambda value: isinstance(value, kinds) and not (bool not in kinds and isinstance(value, bool))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and len(one) < LONG for one in value)


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int) for one in value)


def _tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "kind" in one for one in value)


def _some(check: Check) -> Check:
    return lambda value: bool(value) and check(value)


NUMBER: Check = lambda value: value is None or _is(int, float)(value)  # noqa: E731
FORMS: dict[str, dict[str, Check]] = {
    "hello": {
        "run": _is(str), "fingerprint": _is(str), "version": _is(str), "blocks": _some(_whole),
        "size": lambda value: _is(int)(value) and 0 < value < 2**40,
    },
    "lack": {},
    "unreadable": {},
    "need": {"names": _some(_texts)},
    "step": {},
    "score": {"accuracy": NUMBER, "loss": NUMBER},
    "paused": {"gives": _tables, "said": lambda value: _tables([value])},
    "done": {"gives": _tables, "said": _is(dict)},
}  # fmt: skip
SAID: dict[str, Check] = {  # at the end of a round
    "names": _some(_texts), "assignment": _some(_whole), "notes": _texts, "clusters": _is(int),
}  # fmt: skip
ARRAYS = {"step": ("message",), "done": ("ask/state",)}


def misfit(reply: Parcel, clients: int) -> str | None:
    """Tell what is wrong with an answer; None if nothing is."""
    head = reply.head
    what = head.get("what")
    if what not in FORMS:
        return "answers in a way that is not known here"
    wrong = [key for key, good in FORMS[what].items() if not good(head.get(key))]
    if what == "done" and not wrong:
        wrong = [key for key, good in SAID.items() if not good(head["said"].get(key))]
        if not wrong and len(head["said"]["assignment"]) != clients:
            wrong = ["assignment"]
    wrong += [name for name in ARRAYS.get(what, ()) if name not in reply.arrays]
    if not _texts(head.get("wants", [])):
        wrong.append("wants")
    for name in reply.arrays:
        if not _named(name, what, len(head.get("gives", []))):
            wrong.append("an array of no known name")
            break
    return f"answers '{what}' with {', '.join(sorted(wrong))} that cannot be used" if wrong else None


def _named(name: str, what: str, gives: int) -> bool:
    first, _, rest = name.partition("/")
    if what == "step":
        return name == "message"
    number = rest.partition("/")[0]
    if first == "give":
        return what in ("paused", "done") and number.isdigit() and int(number) < gives
    return first == "ask" and what in ("paused", "done")
