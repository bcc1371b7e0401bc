"""Replies of a round's nodes: whether they belong to it, and whether they say the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping

from flameche.network.job import Round
from flameche.network.parcel import Lost, Parcel

PARTS = ("lack", "need", "unreadable", "paused", "done")
OWN = ("notes", "dbi", "ch")  # may differ in their last digits from machine to machine


def checked(now: Round, reply: Parcel | Lost, models: Collection[str]) -> Parcel | Lost:
    """Refuse what is not an answer to this stage of this round."""
    if isinstance(reply, Lost):
        return reply
    head = reply.head
    if [head.get(key) for key in ("round", "attempt", "stage")] != [now.number, now.attempt, len(now.log)]:
        return Lost("answers another round or attempt: an old message")
    if head["what"] not in PARTS:
        return Lost("answers with something else than its part of the round")
    if head["what"] == "need" and not set(head["names"]) <= set(models):
        return Lost("asks for models that there are not")
    return reply


def others_than_most(replies: Mapping[int, Parcel]) -> list[int]:
    """List the nodes that say something else than most; the lower numbers decide a tie."""

    def words(number: int) -> str:
        head = replies[number].head
        said = {key: value for key, value in head["said"].items() if key not in OWN}
        return json.dumps([head["what"], head["gives"], said], sort_keys=True)

    said = {number: words(number) for number in sorted(replies)}
    usual = Counter(said.values()).most_common(1)
    return [number for number in said if said[number] != usual[0][0]]
