"""Scores: every node tries its cluster's model on its own test samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flameche.network.parcel import Arrays, Lost, Parcel
from flameche.network.roster import Roster
from flameche.network.standing import Standing


def score(
    roster: Roster,
    standing: Standing,
    models: Callable[[list[str]], Arrays],
    run: str,
    r: int,
    say: Callable[[str], None],
) -> None:
    """Let every node that is there score its model, and note the accuracies."""
    waiting, wants = roster.meet(), dict[int, list[str]]()
    standing.accuracy = np.full(len(standing.accuracy), np.nan)
    head = {"what": "evaluate", "run": run, "round": r, "since": standing.since}
    while waiting:
        parcels = {}
        for i in waiting:
            row = standing.assignment[i]
            names = wants.get(i) or ([standing.names[row]] if row >= 0 else [])
            parcels[i] = Parcel(head, {**standing.state, **models(names)})
        waiting, unreadable = [], list[int]()
        for i, reply in roster.exchange(parcels).items():
            what = "" if isinstance(reply, Lost) else reply.head["what"]
            if isinstance(reply, Lost):
                say(f"round {r}: node {i} has not scored its model: {reply.why}")
            elif what == "need" and i not in wants:  # it had to find its cluster first
                wants[i], waiting = reply.head["names"], [*waiting, i]
            elif what == "unreadable":
                unreadable.append(i)
            elif what == "score" and (accuracy := reply.head["accuracy"]) is not None:
                standing.accuracy[i] = accuracy if 0 <= accuracy <= 1 else np.nan
        if 2 * len(unreadable) > len(parcels) and len(standing.copies) > 1:
            standing.next_copy()
            waiting += unreadable
        elif unreadable:
            say(f"round {r}: nodes {unreadable} cannot read the clients' state, and have not scored")
