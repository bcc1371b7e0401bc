"""Secure aggregation over the network: the server's side and a node's, in four steps.

A sum is opened over exactly the clients that were agreed on, or not at all: the clients' guard has approved
that set, and a sum over fewer of them could reveal one. So a client that is lost before its masked vector
arrived ends the session; a client that is lost afterwards is in the sum.

A node's secrets lie on its disk between two steps. Each step's file is read once and deleted, so that a
message that is repeated or altered cannot make a client take a step twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.secagg.client import SecAggClient
from flameche.crypto.secagg.server import SecAggServer
from flameche.crypto.secagg.session import Abort, Session
from flameche.errors import SealError
from flameche.network.message import (
    Arrays,
    Message,
    NoReply,
    RejectedMessage,
    bytes_array,
    npz_arrays,
    npz_bytes,
)
from flameche.network.node_storage import NodeStorage

SendAndReceive = Callable[[Mapping[int, Message]], dict[int, Message | NoReply]]
INCOMPLETE = "a sum over fewer clients than agreed on is not opened"
ServerStep = Callable[[Mapping[int, bytes]], Any]


class MaskedSum(NamedTuple):
    """The result of a session: the sum if it was opened, else the reason; and the clients that were lost."""

    total: NDArray[np.int64] | None
    lost: dict[int, str]
    reason: str = ""


def session_for(question: dict[str, Any], nonce: str) -> Session:
    """Derive a session's parameters from the question; server and clients derive the same."""
    base = Session.open(len(question["clients"]), question["length"], label=question["label"])
    return Session(
        base.clients, base.length, base.neighbours, base.threshold, base.word_bits, base.label,
        bytes.fromhex(nonce),
    )  # fmt: skip


def run_session(
    question: dict[str, Any],
    nonce: str,
    adverts: Mapping[int, bytes],
    exchange: SendAndReceive,
    head: dict[str, Any],
) -> MaskedSum:
    """Run the server's side; `adverts` are the clients' first messages, which came with the question."""
    clients = list(question["clients"])
    lost = {n: "sent no keys for secure aggregation" for n in clients if n not in adverts}
    received = {clients.index(n): data for n, data in adverts.items() if n in clients}
    server = SecAggServer(session_for(question, nonce))
    steps = (("share", server.roster), ("mask", server.route), ("unmask", server.request))
    try:
        for step, serve in steps:
            outgoing = _without_damaged(serve, received, clients, lost)
            if lost:  # from here on, a lost client would be missing in the sum
                return MaskedSum(None, lost, f"the session ends: {INCOMPLETE}")
            messages = {
                clients[i]: Message(
                    {**head, "what": "step", "session": nonce, "step": step}, {"message": bytes_array(data)}
                )
                for i, data in outgoing.items()
            }
            received = {}
            for n, reply in exchange(messages).items():
                if isinstance(reply, NoReply):
                    lost[n] = reply.reason
                elif reply.head["what"] != "step":
                    lost[n] = f"sends something else than its step '{step}' of secure aggregation"
                else:
                    received[clients.index(n)] = reply.arrays["message"].tobytes()
        return MaskedSum(_without_damaged(server.total, received, clients, lost), lost)
    except (Abort, SealError) as problem:
        return MaskedSum(None, lost, str(problem))


def _without_damaged(
    serve: ServerStep, received: dict[int, bytes], clients: list[int], lost: dict[int, str]
) -> Any:
    """Take the server's step; leave out clients whose messages are damaged, and note them as lost."""
    while True:
        try:
            return serve(received)
        except SealError as problem:
            if problem.client is None or problem.client not in received:
                raise
            lost[clients[problem.client]] = str(problem)
            received = {i: data for i, data in received.items() if i != problem.client}


def begin_session(
    storage: NodeStorage, nonce: str, question: dict[str, Any], arrays: Arrays, number: int
) -> Arrays:
    """Take a node's first step, and store its vector for the third; nothing if it has no vector."""
    if "vector" not in arrays:
        return {}
    client = SecAggClient(session_for(question, nonce), question["clients"].index(number))
    advert = client.advertise()
    _store_client(storage, nonce, client, arrays["vector"])
    return {"message": bytes_array(advert)}


def take_step(storage: NodeStorage, message: Message) -> Arrays:
    """Take a node's next step in a session."""
    nonce, step = message.head["session"], message.head["step"]
    stored = storage.read_once(f"session.{nonce}")
    if stored is None:
        raise RejectedMessage(
            f"no session {nonce[:8]}… waits for its step '{step}' here: it is over or was repeated"
        )
    arrays = npz_arrays(stored)
    client, vector = SecAggClient.from_secret_bytes(arrays["client"].tobytes()), arrays["vector"]
    received = message.arrays["message"].tobytes()
    if step == "share":
        answer = client.share(received)
    elif step == "mask":
        answer = client.mask(received, vector)
    elif step == "unmask":
        answer = client.unmask(received, whole=True)
    else:
        raise RejectedMessage(f"secure aggregation has no step '{step}'")
    if step != "unmask":
        _store_client(storage, nonce, client, vector if step == "share" else np.zeros(0, np.int64))
    return {"message": bytes_array(answer)}


def _store_client(storage: NodeStorage, nonce: str, client: SecAggClient, vector: Any) -> None:
    stored = {"client": bytes_array(client.secret_bytes()), "vector": vector.astype(np.int64)}
    storage.write(f"session.{nonce}", npz_bytes(stored))
