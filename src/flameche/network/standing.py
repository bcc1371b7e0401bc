"""Where a federation stands between two rounds, as its server knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.network.job import Round
from flameche.network.parcel import Arrays, Parcel, Refused, npz_arrays, prefixed
from flameche.protocol.ledger import Ledger

KEPT = {"theta", "mass", "label", "spread", "shape", "classes"}
COPIES = 3  # of the clients' state; one that nobody can open must not end a run


@dataclass
class Standing:
    """Models by name, who is where, and the clients' state, sealed where they alone may read it."""

    assignment: NDArray[np.int64]  # [C], -1 where unknown
    accuracy: NDArray[np.float64]  # [C], of those that were scored last
    names: list[str] = field(default_factory=list)  # of the models, cluster by cluster
    clusters: int = 1
    notes: list[str] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)  # after all rounds
    copies: list[NDArray[np.uint8]] = field(
        default_factory=list, repr=False
    )  # of the state, by several nodes
    since: int = 0  # the round after which that was
    keep: Arrays = field(default_factory=dict, repr=False)  # after all rounds: what newcomers need

    @classmethod
    def empty(cls, clients: int) -> Standing:
        """Begin."""
        return cls(np.full(clients, -1), np.full(clients, np.nan))

    @property
    def state(self) -> Arrays:
        """Give the clients' state, as a message has it."""
        return {"state": self.copies[0]} if self.copies else {}

    def likely(self, number: int, preload: str) -> list[str]:
        """Guess which models a node will ask for."""
        if preload == "all":
            return self.names
        known = preload == "own" and self.names and self.assignment[number] >= 0
        return [self.names[self.assignment[number]]] if known else []

    def next_copy(self) -> None:
        """Take another node's copy of the state."""
        self.copies = self.copies[1:]

    def take(self, now: Round, replies: Sequence[Parcel]) -> bool:
        """Take over what nodes say at the end of a round; tell if clients were redistributed."""
        said = replies[0].head["said"]
        self.names, self.clusters = said["names"], said["clusters"]
        self.assignment = np.array(said["assignment"], np.int64)
        self.notes = list(dict.fromkeys([*self.notes, *said["notes"]]))
        if now.finish:
            self.outcome = {key: said.get(key) for key in ("final", "dbi", "ch")}
            self.keep = _kept(replies)
            return False
        self.copies = [reply.arrays["ask/state"] for reply in replies[:COPIES]]
        self.since = now.number
        return bool(said.get("reclustered"))

    def record(self, now: Round, reclustered: bool, ledger: Ledger) -> dict[str, Any]:
        """Describe a round as the simulator does, and who was lost in it."""
        known = self.assignment[self.assignment >= 0]
        scored = self.accuracy[~np.isnan(self.accuracy)]
        return {
            "round": now.number,
            "accuracy": float(scored.mean()) if len(scored) else float("nan"),
            "ari": float("nan"),  # nobody knows the truth
            "sizes": np.bincount(known, minlength=self.clusters).tolist(),
            "participants": now.drawn,
            "assignment": self.assignment.tolist(),
            "reclustered": reclustered,
            "bytes_up": int(ledger.per_client("up").sum()),
            "bytes_down": int(ledger.per_client("down").sum()),
            "seconds": ledger.seconds_by_part(),
            "lost": {str(i): why for i, why in now.lost.items()},
            "exchanges": len(now.log) + 1,
        }

    def words(self) -> dict[str, Any]:
        """Give what is text, for a checkpoint."""
        return {key: getattr(self, key) for key in ("names", "clusters", "notes", "outcome", "since")}

    def arrays(self) -> Arrays:
        """Give what is numbers, for a checkpoint."""
        own = {"assignment": self.assignment, "accuracy": self.accuracy}
        own |= prefixed("keep", self.keep)
        return {**own, **{f"copy/{at}": copy for at, copy in enumerate(self.copies)}}

    @classmethod
    def restored(cls, words: dict[str, Any], arrays: Arrays) -> Standing:
        """Read back what `words` and `arrays` gave."""
        return cls(
            arrays["assignment"].astype(np.int64),
            arrays["accuracy"].astype(np.float64),
            **{key: words[key] for key in ("names", "clusters", "notes", "outcome", "since")},
            copies=[arrays[f"copy/{at}"] for at in range(COPIES) if f"copy/{at}" in arrays],
            keep=Parcel({}, arrays).part("keep"),
        )


def _kept(replies: Sequence[Parcel]) -> Arrays:
    """Read what most nodes keep for newcomers; nothing where they do not give it to the server."""
    given = Counter(reply.arrays["ask/keep"].tobytes() for reply in replies if "ask/keep" in reply.arrays)
    for data, _ in given.most_common():
        try:
            arrays = npz_arrays(data)
        except Refused:
            continue
        if arrays.keys() >= KEPT and all(array.dtype.kind in "fiu" for array in arrays.values()):
            return arrays
    return {}
