"""Validation of nodes' replies: their format, whether they belong to the round, whether nodes agree.

A reply that fails is refused before any of it is used; its node is excluded from the round.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from flameche.network.message import Message, NoReply
from flameche.network.server_state import RoundState

Check = Callable[[Any], bool]
MAX_TEXT = 2000  # characters of a note
MAX_COUNT = 100_000  # sums, numbers that a client reports, models
MODEL_NAME = re.compile(r"[\w.\-]{1,60}", re.ASCII)  # a node uses it in the name of a file
ROUND_REPLIES = ("lack", "need", "unreadable", "paused", "done")
MAY_DIFFER = ("notes", "dbi", "ch")  # floating-point results differ in their last digits between machines


def is_model_name(value: Any) -> bool:
    """Check whether a value can be a model's name."""
    return isinstance(value, str) and MODEL_NAME.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < MAX_TEXT and value.isprintable()  # so it is one line


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(one) for one in value)


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) < MAX_COUNT and all(is_model_name(one) for one in value)


def _integer(least: int, below: int) -> Check:
    return lambda value: type(value) is int and least <= value < below


def _integers(least: int, below: int) -> Check:
    one = _integer(least, below)
    return lambda value: isinstance(value, list) and all(one(number) for number in value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _not_empty(check: Check) -> Check:
    return lambda value: bool(value) and check(value)


IS_COUNT = _integer(1, MAX_COUNT)
REPLY_FIELDS: dict[str, dict[str, Check]] = {
    "hello": {
        "run": _is_text, "fingerprint": _is_text, "version": _is_text, "size": _integer(1, 2**40),
        "blocks": lambda value: _integers(1, 2**31)(value) and len(value) == 2,
    },
    "lack": {},
    "unreadable": {},
    "need": {"names": _not_empty(_is_name_list)},
    "step": {},
    "score": {"accuracy": _is_number, "loss": _is_number},
    "paused": {},
    "done": {},
}  # fmt: skip
OPENED_SUM_FIELDS: dict[str, Check] = {
    "round": _integer(0, 2**31), "what": _is_text, "kind": _is_text,
    "clients": _not_empty(_integers(0, 2**31)), "numbers": _integer(1, 2**31),
    "changed": lambda value: isinstance(value, list),
    "share": lambda value: isinstance(value, list) and all(_is_number(one) and 0 < one <= 1 for one in value),
}  # fmt: skip
UPLOAD_FIELDS = {
    "average": ("clients", "rows", "previous", "names"),
    "store": ("clients", "sums"),
    "drop": ("clients", "sums"),
}
QUESTION_FIELDS = {
    "averaged": (),
    "tell": ("clients", "width", "below"),
    "totals": ("clients", "rows", "sums"),
    "once": ("clients", "rows", "sums"),
    "exchange": ("clients",),
    "masked": ("clients", "label", "length"),
}
REQUIRED_ARRAYS = {"step": ("message",), "done": ("ask/state",)}


def format_problem(reply: Message, clients: int) -> str | None:
    """Describe what is wrong with a reply's format; None if it is valid."""
    head = reply.head
    what = head.get("what")
    if not isinstance(what, str) or what not in REPLY_FIELDS:
        return "sends a reply of an unknown kind"
    wrong = [key for key, valid in REPLY_FIELDS[what].items() if key not in head or not valid(head[key])]
    uploads: Any = []
    if what in ("paused", "done"):
        uploads = head.get("gives")
        if not isinstance(uploads, list) or not all(_has_fields(u, UPLOAD_FIELDS, clients) for u in uploads):
            uploads, wrong = [], [*wrong, "gives"]
        said = head.get("said")
        if not (
            _has_fields(said, QUESTION_FIELDS, clients) if what == "paused" else _is_result(said, clients)
        ):
            wrong.append("said")
    wrong += [name for name in REQUIRED_ARRAYS.get(what, ()) if name not in reply.arrays]
    if not _is_name_list(head.get("wants", [])):
        wrong.append("wants")
    if not all(_is_array_name(name, what, len(uploads)) for name in reply.arrays):
        wrong.append("an array of an unknown name")
    return f"sends a reply '{what}' with unusable {', '.join(sorted(wrong))}" if wrong else None


def _has_fields(value: Any, kinds: dict[str, tuple[str, ...]], clients: int) -> bool:
    """Check that a question or an upload has all fields that the server will read."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or value["kind"] not in kinds:
        return False
    sums = value.get("sums")
    names = value.get("names")
    rows = sums if isinstance(sums, int) else len(names) if isinstance(names, list) else 0
    checks: dict[str, Check] = {
        "clients": _integers(0, clients), "rows": _integers(0, rows), "sums": IS_COUNT, "width": IS_COUNT,
        "previous": _is_name_list, "names": _is_name_list, "label": _is_text, "length": _integer(0, 2**31),
        "below": lambda limit: limit is None or IS_COUNT(limit),
    }  # fmt: skip
    keys = kinds[value["kind"]]
    return all(key in value and checks[key](value[key]) for key in keys) and all(
        len(value[one]) == len(value[other])
        for one, other in (("clients", "rows"), ("previous", "names"))
        if {one, other} <= set(keys)
    )


def _is_result(said: Any, clients: int) -> bool:
    """Check what a node reports at the end of a round."""
    if not isinstance(said, dict) or not IS_COUNT(said.get("clusters")):
        return False
    is_cluster_list = _integers(-1, said["clusters"])
    is_assignment: Check = lambda value: is_cluster_list(value) and len(value) == clients  # noqa: E731
    final = said.get("final")
    return (
        _is_name_list(said.get("names"))
        and len(said["names"]) >= said["clusters"]
        and is_assignment(said.get("assignment"))
        and _is_text_list(said.get("notes"))
        and (final is None or is_assignment(final))
        and isinstance(said.get("opened"), list)
        and all(_is_opened_sum(one, clients) for one in said["opened"])
        and _is_number(said.get("dbi"))
        and _is_number(said.get("ch"))
    )


def _is_opened_sum(record: Any, clients: int) -> bool:
    """Check a node's record of a sum that was opened."""
    if not isinstance(record, dict) or record.keys() != OPENED_SUM_FIELDS.keys():
        return False
    are_clients, are_versions = _integers(0, clients), _integers(0, MAX_COUNT)
    return (
        all(valid(record[key]) for key, valid in OPENED_SUM_FIELDS.items())
        and are_clients(record["clients"])
        and len(record["share"]) in (0, len(record["clients"]))
        and all(isinstance(one, list) and len(one) == 2 and are_versions(one) for one in record["changed"])
    )


def _is_array_name(name: str, what: str, uploads: int) -> bool:
    first, _, rest = name.partition("/")
    if what == "step":
        return name == "message"
    number = rest.partition("/")[0]
    if first == "give":
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        return what in ("paused", "done") and is_number and int(number) < uploads
    return first == "ask" and what in ("paused", "done")


def check_round_reply(
    current: RoundState, reply: Message | NoReply, models: Collection[str]
) -> Message | NoReply:
    """Turn a reply that does not belong to this stage of this round into a NoReply."""
    if isinstance(reply, NoReply):
        return reply
    head, expected = reply.head, [current.number, current.attempt, len(current.log)]
    if [head.get(key) for key in ("round", "attempt", "stage")] != expected:
        return NoReply("replies to an earlier message: another round or attempt")
    if head["what"] not in ROUND_REPLIES:
        return NoReply(f"sends a reply '{head['what']}' to a round")
    if head["what"] == "need" and not set(head["names"]) <= set(models):
        return NoReply("requests models that do not exist")
    return reply


def disagreeing_nodes(replies: Mapping[int, Message]) -> list[int]:
    """List the nodes whose reply differs from the majority's; in a tie, the lowest number's counts."""

    def fingerprint(number: int) -> str:
        head = replies[number].head
        said = {key: value for key, value in head["said"].items() if key not in MAY_DIFFER}
        return json.dumps([head["what"], head["gives"], said], sort_keys=True)

    found = {number: fingerprint(number) for number in sorted(replies)}
    majority = Counter(found.values()).most_common(1)
    return [number for number in found if found[number] != majority[0][0]]
