"""A client of secure aggregation: four steps, each once, in order; whatever fails ends the session for it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, SupportsIndex

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from flameche.crypto.secagg import masks, shamir
from flameche.crypto.secagg.messages import (
    DROPPED,
    KEY,
    SEALED,
    SURVIVED,
    Kind,
    pack,
    pack_table,
    title,
    unpack,
    unpack_table,
)
from flameche.crypto.secagg.session import Abort, Session
from flameche.errors import BadInput, OverflowBudget, SealError

NEXT = {"advertise": "share", "share": "mask", "mask": "unmask", "unmask": "closed"}


class SecAggClient:
    """Client `index` of a session; it makes its own keys and lets none of them out."""

    def __init__(self, session: Session, index: int) -> None:
        if not 0 <= index < session.clients:
            raise BadInput(f"client {index} of a session with {session.clients} clients")
        self.session, self.index = session, index
        self._next = "advertise"
        self._seal_key = X25519PrivateKey.generate()  # c_i: seals shares to their holders
        self._mask_key = X25519PrivateKey.generate()  # s_i: pairwise masks
        self._seal_public = self._seal_key.public_key().public_bytes_raw()
        self._mask_public = self._mask_key.public_key().public_bytes_raw()
        self._seed = secrets.token_bytes(shamir.SECRET)  # b_i: the mask of its own
        self._boxes: dict[int, bytes] = {}  # the keys that seal shares between two
        self._publics: dict[int, bytes] = {}  # the neighbours' public mask keys
        self._held: dict[int, tuple[bytes, bytes]] = {}  # shares of (b_j, s_j)

    def __repr__(self) -> str:
        return f"<SecAggClient {self.index} …>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{self!r} holds secrets and is neither pickled nor copied")

    def secret_bytes(self) -> bytes:
        """Write the client as it stands between two steps, for a file of mode 0600 that is read once.

        Whoever reads one state twice may take a step twice, and tell more than a client should.
        """
        keys = {name: getattr(self, f"_{name}_key", None) for name in ("seal", "mask")}
        both = {str(client): [b.hex(), s.hex()] for client, (b, s) in getattr(self, "_held", {}).items()}
        state = {
            "next": self._next,
            "seed": getattr(self, "_seed", b"").hex(),
            **{name: "" if key is None else key.private_bytes_raw().hex() for name, key in keys.items()},
            "boxes": {str(client): key.hex() for client, key in getattr(self, "_boxes", {}).items()},
            "publics": {str(client): key.hex() for client, key in getattr(self, "_publics", {}).items()},
            "held": both,
        }
        invitation = self.session.to_bytes()
        head = len(invitation).to_bytes(4, "little") + self.index.to_bytes(4, "little")
        return head + invitation + json.dumps(state).encode()

    @classmethod
    def from_secret_bytes(cls, data: bytes) -> SecAggClient:
        """Read what `secret_bytes` wrote; SealError if it is damaged."""
        try:
            size, index = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4))
            client = cls(Session.from_bytes(data[8 : 8 + size]), index)
            state = json.loads(data[8 + size :])
            client._next, client._seed = state["next"], bytes.fromhex(state["seed"])
            for name in ("boxes", "publics"):
                keys = {int(peer): bytes.fromhex(key) for peer, key in state[name].items()}
                setattr(client, f"_{name}", keys)
            client._held = {
                int(peer): (bytes.fromhex(b), bytes.fromhex(s)) for peer, (b, s) in state["held"].items()
            }
            for name in ("seal", "mask"):
                client._wipe(f"_{name}_key")
                if state[name]:
                    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(state[name]))
                    setattr(client, f"_{name}_key", key)
                    setattr(client, f"_{name}_public", key.public_key().public_bytes_raw())
        except (ValueError, KeyError, TypeError) as problem:
            raise SealError("the kept state of a secure aggregation is damaged") from problem
        return client

    def advertise(self) -> bytes:
        """Send the two public keys."""
        with self._step("advertise"):
            return pack(self.session, Kind.ADVERT, self.index, self._seal_public + self._mask_public)

    def share(self, roster: bytes) -> bytes:
        """Share seed and mask key, each share sealed to its holder, and commit to the seed."""
        with self._step("share"):
            keys = self._table(Kind.ROSTER, roster, 2 * KEY)
            self._expect_peers("roster", set(keys) <= set(self.session.holders[self.index]), len(keys) + 1)
            publics = [half for both in keys.values() for half in (both[:KEY], both[KEY:])]
            if len({*publics, self._seal_public, self._mask_public}) != len(publics) + 2:
                raise Abort(f"client {self.index} refuses a roster in which two public keys are the same")
            order = sorted([*keys, self.index])
            points = [client + 1 for client in order]
            seeds = shamir.split(self._seed, self.session.threshold, points)
            secret = shamir.split(self._mask_key.private_bytes_raw(), self.session.threshold, points)
            rows = {}
            for client, b, s in zip(order, seeds, secret, strict=True):
                if client == self.index:
                    self._held[client] = (b, b"")  # its own key is never asked of it while it is there
                    continue
                mine, theirs = (self.index, self._seal_public), (client, keys[client][:KEY])
                box = masks.agree(self.session, masks.SEAL, self._seal_key, mine, theirs)
                rows[client] = AESGCM(box).encrypt(
                    self._nonce(self.index, client), b + s, self._bound(self.index, client)
                )
                self._boxes[client], self._publics[client] = box, keys[client][KEY:]
            commitment = masks.commitment(self.session, self.index, self._seed)
            return pack(self.session, Kind.SHARES, self.index, commitment + pack_table(rows))

    def mask(self, inbox: bytes, vector: NDArray[np.int64]) -> bytes:
        """Take the shares of the others, and send vector [length] under the masks with those that shared."""
        words = self._words(vector)
        with self._step("mask"):
            sealed = self._table(Kind.INBOX, inbox, SEALED)
            self._expect_peers("inbox", set(sealed) <= set(self._boxes), len(sealed) + 1)
            plus: list[bytes] = [masks.self_key(self.session, self.index, self._seed)]
            minus: list[bytes] = []
            for client, box in sealed.items():
                self._held[client] = self._unseal(client, box)
                mine, theirs = (self.index, self._mask_public), (client, self._publics[client])
                key = masks.agree(self.session, masks.PAIR, self._mask_key, mine, theirs)
                (plus if self.index < client else minus).append(key)
            masks.apply(words, plus, minus)
            self._wipe("_seed", "_mask_key", "_seal_key", "_boxes", "_publics")
            return pack(self.session, Kind.MASKED, self.index, words.tobytes())

    def unmask(self, request: bytes, *, whole: bool = False) -> bytes:
        """Reveal for each peer one share: of its seed if it survived, of its mask key if not; never both.

        whole: refuse where anybody is missing, at whichever step; the sum must be over all agreed on.
        """
        with self._step("unmask"):
            asked = self._table(Kind.REQUEST, request, 1, own=True)
            survived = {client for client, flag in asked.items() if flag == SURVIVED}
            if any(flag not in (DROPPED, SURVIVED) for flag in asked.values()):
                raise SealError(f"{title(Kind.REQUEST, self.index)} has an unknown flag")
            if set(asked) != set(self._held):
                raise Abort(
                    f"client {self.index} refuses a request that does not name exactly those who shared"
                )
            if whole and survived != set(self.session.holders[self.index]):
                raise Abort(f"client {self.index} refuses to open a sum of fewer clients than agreed on")
            self._expect_peers("request", self.index in survived, len(survived))
            rows = {client: self._held[client][0 if client in survived else 1] for client in asked}
            reveal = pack(self.session, Kind.REVEAL, self.index, pack_table(rows))
            self._wipe("_held")
            return reveal

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Refuse a step out of order; forget every secret if it fails."""
        if self._next != name:
            raise Abort(f"client {self.index} refuses to {name}: its next step is {self._next}")
        self._next = "closed"
        try:
            yield
        except BaseException:
            self._wipe("_seed", "_mask_key", "_seal_key", "_boxes", "_publics", "_held")
            raise
        self._next = NEXT[name]

    def _table(self, kind: Kind, data: bytes, width: int, own: bool = False) -> dict[int, bytes]:
        name = title(kind, self.index)
        rows = unpack_table(self.session, unpack(self.session, kind, self.index, data), width, name)
        if self.index in rows and not own:
            raise SealError(f"{name} names itself")
        return rows

    def _expect_peers(self, what: str, known: bool, there: int) -> None:
        if not known:
            raise Abort(f"client {self.index} refuses the {what}: it does not fit those of the step before")
        if there < self.session.threshold:
            raise Abort(
                f"client {self.index} refuses the {what}: {there} of its {self.session.holding} "
                f"holders are left, the threshold is {self.session.threshold}"
            )

    def _words(self, vector: NDArray[np.int64]) -> masks.Words:
        if vector.dtype != np.int64 or vector.shape != (self.session.length,):
            raise SealError(
                f"client {self.index} has a vector {vector.dtype}{list(vector.shape)}, "
                f"expected int64[{self.session.length}]"
            )
        bound = self.session.largest
        if vector.size and (vector.max() > bound or vector.min() < -bound):
            raise OverflowBudget(
                f"a value of client {self.index} exceeds {bound}, so a sum of {self.session.clients} might "
                f"not fit into {self.session.word_bits} bits; lower codec.fraction_bits or take wider words"
            )
        return np.append(vector, 1).astype(self.session.dtype)

    def _unseal(self, sender: int, sealed: bytes) -> tuple[bytes, bytes]:
        nonce, bound = self._nonce(sender, self.index), self._bound(sender, self.index)
        try:
            both = AESGCM(self._boxes[sender]).decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise SealError(
                f"the shares that client {sender} sealed to client {self.index} were altered"
            ) from None
        return both[: shamir.SHARE], both[shamir.SHARE :]

    def _bound(self, sender: int, receiver: int) -> bytes:
        return self.session.context + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")

    @staticmethod
    def _nonce(sender: int, receiver: int) -> bytes:
        # A key of two fresh key pairs seals one message each way, so the direction is nonce enough.
        return bytes(11) + (b"\0" if sender < receiver else b"\1")

    def _wipe(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)
