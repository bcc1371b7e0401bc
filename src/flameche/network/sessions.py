"""A node's part in secure aggregation, over several messages; between them its secrets lie on its disk.

Each step's state is read once and removed, so that no message, sent twice or altered, makes a client take a
step twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flameche.crypto.secagg.client import SecAggClient
from flameche.crypto.secagg.session import Session
from flameche.network.parcel import Arrays, Parcel, Refused, from_bytes, npz_arrays, npz_bytes
from flameche.network.site import Site


def session_of(question: dict[str, Any], nonce: str) -> Session:
    """Open the session that a question needs; server and clients come to the same one."""
    base = Session.open(len(question["clients"]), question["length"], label=question["label"])
    return Session(
        base.clients, base.length, base.neighbours, base.threshold, base.word_bits, base.label,
        bytes.fromhex(nonce),
    )  # fmt: skip


def begin_session(site: Site, nonce: str, question: dict[str, Any], part: Arrays, number: int) -> Arrays:
    """Take the first step, and keep the vector for the third; nothing for who is not in it."""
    if "vector" not in part:
        return {}
    client = SecAggClient(session_of(question, nonce), question["clients"].index(number))
    advert = client.advertise()
    _keep(site, nonce, client, part["vector"])
    return {"message": from_bytes(advert)}


def take_step(site: Site, parcel: Parcel) -> Arrays:
    """Take the next step of a session."""
    nonce, step = parcel.head["session"], parcel.head["step"]
    kept = site.take(f"session.{nonce}")
    if kept is None:
        raise Refused(f"no session {nonce[:8]}… waits for its step '{step}' here: it is over or was repeated")
    arrays = npz_arrays(kept)
    client, vector = SecAggClient.from_secret_bytes(arrays["client"].tobytes()), arrays["vector"]
    message = parcel.arrays["message"].tobytes()
    if step == "share":
        answer = client.share(message)
    elif step == "mask":
        answer = client.mask(message, vector)
    elif step == "unmask":
        answer = client.unmask(message, whole=True)
    else:
        raise Refused(f"secure aggregation has no step '{step}'")
    if step != "unmask":
        _keep(site, nonce, client, vector if step == "share" else np.zeros(0, np.int64))
    return {"message": from_bytes(answer)}


def _keep(site: Site, nonce: str, client: SecAggClient, vector: Any) -> None:
    kept = {"client": from_bytes(client.secret_bytes()), "vector": vector.astype(np.int64)}
    site.write(f"session.{nonce}", npz_bytes(kept))
