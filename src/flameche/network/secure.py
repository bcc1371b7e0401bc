"""The server's part in secure aggregation over a network: four steps, each an exchange with who is left.

A sum is opened over exactly the clients that were agreed on, or not at all: clients weighed by the guard who
would be in it, and a sum over fewer of them might show one. So a client that is lost before its masked vector
came ends the session; one that is lost afterwards is in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.secagg.server import SecAggServer
from flameche.crypto.secagg.session import Abort
from flameche.errors import SealError
from flameche.network.parcel import Lost, Parcel, from_bytes
from flameche.network.sessions import session_of

Exchange = Callable[[Mapping[int, Parcel]], dict[int, Parcel | Lost]]
CLOSED = "a sum of fewer clients than agreed on stays closed"
Serve = Callable[[Mapping[int, bytes]], Any]


class Summed(NamedTuple):
    """What came of a session: the sum, if it could be opened, who was lost, and why there is none."""

    total: NDArray[np.int64] | None
    lost: dict[int, str]
    why: str = ""


def masked_total(
    question: dict[str, Any],
    nonce: str,
    adverts: Mapping[int, bytes],
    exchange: Exchange,
    head: dict[str, Any],
) -> Summed:
    """Hold a session among the question's clients, whose first messages came with the question."""
    clients = list(question["clients"])
    lost = {n: "sent no keys for secure aggregation" for n in clients if n not in adverts}
    sent = {clients.index(n): data for n, data in adverts.items() if n in clients}
    server = SecAggServer(session_of(question, nonce))
    steps = (("share", server.roster), ("mask", server.route), ("unmask", server.request))
    try:
        for step, serve in steps:
            messages = _served(serve, sent, clients, lost)
            if lost:  # whoever is not in it by now would be missing in the sum
                return Summed(None, lost, f"the session ends: {CLOSED}")
            parcels = {
                clients[i]: Parcel(
                    {**head, "what": "step", "session": nonce, "step": step}, {"message": from_bytes(data)}
                )
                for i, data in messages.items()
            }
            sent = {}
            for n, reply in exchange(parcels).items():
                if isinstance(reply, Lost):
                    lost[n] = reply.why
                elif reply.head["what"] != "step":
                    lost[n] = f"sends something else than its step '{step}' of secure aggregation"
                else:
                    sent[clients.index(n)] = reply.arrays["message"].tobytes()
        return Summed(_served(server.total, sent, clients, lost), lost)
    except (Abort, SealError) as problem:
        return Summed(None, lost, str(problem))


def _served(serve: Serve, sent: dict[int, bytes], clients: list[int], lost: dict[int, str]) -> Any:
    """Take a step on the server, without those whose messages are damaged."""
    while True:
        try:
            return serve(sent)
        except SealError as problem:
            if problem.client is None or problem.client not in sent:
                raise
            lost[clients[problem.client]] = str(problem)
            sent = {i: data for i, data in sent.items() if i != problem.client}
