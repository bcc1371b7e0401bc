"""Counts what passes the server's door, by what it is: the ledger of a real federation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from flameche.network.parcel import Parcel
from flameche.protocol.ledger import Ledger

GIVEN = {"store": "metadata", "average": "model"}
ASKED = {"tell": "assignment", "once": "exchange", "masked": "secagg"}
ANSWERED = {"tell": "assignment", "totals": "centroids", "once": "exchange", "masked": "exchange"}


def weigh_down(ledger: Ledger, number: int, parcel: Parcel) -> None:
    """Count a message to a node."""
    _add(ledger.received, number, parcel, lambda name: _down(name, parcel.head))


def weigh_up(ledger: Ledger, number: int, parcel: Parcel) -> None:
    """Count a node's answer."""
    _add(ledger.sent, number, parcel, lambda name: _up(name, parcel.head))


def _add(count: Any, number: int, parcel: Parcel, kind: Any) -> None:
    who = np.array([number])
    count("words", who, len(json.dumps(parcel.head)))
    for name, array in parcel.arrays.items():
        count(kind(name), who, array.nbytes)


def _down(name: str, head: Mapping[str, Any]) -> str:
    first, _, rest = name.partition("/")
    if first == "answer":
        number = int(rest.partition("/")[0]) - int(head["from"])
        return ANSWERED.get(head["answers"][number]["kind"], "exchange")
    return {"model": "model", "message": "secagg"}.get(first, "state")


def _up(name: str, head: Mapping[str, Any]) -> str:
    first, _, rest = name.partition("/")
    if first == "give":
        return GIVEN.get(head["gives"][int(rest.partition("/")[0])]["kind"], "exchange")
    if first == "ask":
        return "state" if head["what"] == "done" else ASKED.get(head["said"]["kind"], "exchange")
    return "secagg"
