"""The server's part in secure aggregation over a network: four steps, each an exchange with who is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.secagg.messages import Kind, unpack
from flameche.crypto.secagg.server import SecAggServer
from flameche.crypto.secagg.session import Abort, Session
from flameche.errors import SealError
from flameche.network.parcel import Lost, Parcel, from_bytes
from flameche.network.sessions import session_of

Exchange = Callable[[Mapping[int, Parcel]], dict[int, Parcel | Lost]]


class Summed(NamedTuple):
    """What came of a session: the sum, if it could be opened, who is not in it, and who was lost."""

    total: NDArray[np.int64] | None
    away: list[int]
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
    session, clients = session_of(question, nonce), list(question["clients"])
    server, lost = SecAggServer(session), dict[int, str]()
    steps = (
        ("share", Kind.SHARES, server.roster),
        ("mask", Kind.MASKED, server.route),
        ("unmask", Kind.REVEAL, server.request),
    )
    sent = _usable(
        session, Kind.ADVERT, {clients.index(n): data for n, data in adverts.items()}, clients, lost
    )
    try:
        for step, kind, serve in steps:
            messages = serve(sent)
            parcels = {
                clients[i]: Parcel(
                    {**head, "what": "step", "session": nonce, "step": step}, {"message": from_bytes(data)}
                )
                for i, data in messages.items()
            }
            replies: dict[int, bytes] = {}
            for n, reply in exchange(parcels).items():
                if isinstance(reply, Lost):
                    lost[n] = reply.why
                elif reply.head.get("what") != "step" or "message" not in reply.arrays:
                    lost[n] = f"sends something else than its step '{step}' of secure aggregation"
                else:
                    replies[clients.index(n)] = reply.arrays["message"].tobytes()
            sent = _usable(session, kind, replies, clients, lost)
        total = server.total(sent)
    except (Abort, SealError) as problem:
        return Summed(None, clients, lost, str(problem))
    survivors = {clients[i] for i in server.survivors}
    return Summed(total, [n for n in clients if n not in survivors], lost)


def _usable(
    session: Session, kind: Kind, messages: dict[int, bytes], clients: list[int], lost: dict[int, str]
) -> dict[int, bytes]:
    """Leave out damaged messages and replays, and note whose they were."""
    good = {}
    for i, data in messages.items():
        try:
            unpack(session, kind, i, data)
            good[i] = data
        except SealError as problem:
            lost[clients[i]] = str(problem)
    return good
