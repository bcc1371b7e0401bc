"""A whole session in one process: real state machines, real bytes, and clients that drop out when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.secagg.client import SecAggClient
from flameche.crypto.secagg.server import SecAggServer
from flameche.crypto.secagg.session import Session
from flameche.errors import BadInput

STEPS = ("advertise", "share", "mask", "unmask")
T = TypeVar("T")


@dataclass(frozen=True)
class Costs:
    """What a session cost: bytes up and down for each client [n], CPU seconds of clients and server."""

    up: NDArray[np.int64]
    down: NDArray[np.int64]
    client_seconds: float
    server_seconds: float


class _Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, call: Callable[..., T], *given: Any) -> T:
        start = time.thread_time()  # one thread does it all, whoever else is on the machine
        try:
            return call(*given)
        finally:
            self.seconds += time.thread_time() - start


def aggregate(
    vectors: NDArray[np.int64],
    *,
    threshold: int | None = None,
    neighbours: int | None = None,
    dropouts: Mapping[str, Collection[int]] | None = None,
    label: str = "",
    word_bits: int = 64,
) -> tuple[NDArray[np.int64], list[int], Costs]:
    """Sum vectors [n S] securely: the sum [S], the clients in it, and what it cost.

    `dropouts` names the clients that vanish before they send at "advertise", "share", "mask" or "unmask"; one
    that vanishes at the last step is still in the sum. Raises Abort if too few are left.
    """
    gone = {step: set(who) for step, who in (dropouts or {}).items()}
    if unknown := set(gone) - set(STEPS):
        raise BadInput(f"clients cannot drop out at {sorted(unknown)}; the steps are {', '.join(STEPS)}")
    n, length = vectors.shape
    session = Session.open(
        n, length, neighbours=neighbours, threshold=threshold, word_bits=word_bits, label=label
    )
    clients, serve = _Clock(), _Clock()
    up, down = np.zeros(n, np.int64), np.zeros(n, np.int64)

    def sent(step: str, alive: Iterable[int], call: Callable[[int], bytes]) -> dict[int, bytes]:
        out = {}
        for i in alive:
            if i not in gone.get(step, ()):
                out[i] = clients(call, i)
                up[i] += len(out[i])
        return out

    def received(messages: dict[int, bytes]) -> dict[int, bytes]:
        for i, message in messages.items():
            down[i] += len(message)
        return messages

    invitation = session.to_bytes()
    received(dict.fromkeys(range(n), invitation))
    parties = [clients(lambda i: SecAggClient(Session.from_bytes(invitation), i), i) for i in range(n)]
    server = SecAggServer(session)
    adverts = sent("advertise", range(n), lambda i: parties[i].advertise())
    rosters = received(serve(server.roster, adverts))
    shares = sent("share", rosters, lambda i: parties[i].share(rosters[i]))
    inboxes = received(serve(server.route, shares))
    masked = sent("mask", inboxes, lambda i: parties[i].mask(inboxes[i], vectors[i]))
    requests = received(serve(server.request, masked))
    reveals = sent("unmask", requests, lambda i: parties[i].unmask(requests[i]))
    total = serve(server.total, reveals)
    return total, server.survivors, Costs(up, down, clients.seconds, serve.seconds)
