"""The server of secure aggregation: it passes messages on, adds masked words, and opens only their sum.

Each step takes what clients sent, by their index; who is missing has dropped out. A damaged message raises
SealError and changes nothing: leave its sender out and call again. Too few clients raise Abort, for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
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
from flameche.errors import SealError


class SecAggServer:
    """The server of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._next = "roster"
        self._keys: dict[int, bytes] = {}  # who advertised, with both public keys
        self._commitments: dict[int, bytes] = {}  # who shared
        self._survivors: dict[int, None] = {}  # who sent a masked vector
        self._sum: masks.Words = np.zeros(0, self.session.dtype)

    def __repr__(self) -> str:
        return f"<SecAggServer {self.session.clients} clients, next {self._next}>"

    @property
    def survivors(self) -> list[int]:
        """List the clients whose vectors are in the sum; empty before `request`."""
        return list(self._survivors)

    def roster(self, adverts: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send each client the public keys of its neighbours."""
        self._begin("roster", adverts, range(self.session.clients))
        keys: dict[int, bytes] = {}
        seen: dict[bytes, int] = {}
        probe = X25519PrivateKey.generate()
        for i in sorted(adverts):
            with _blaming(i):
                keys[i] = both = unpack(self.session, Kind.ADVERT, i, adverts[i], 2 * KEY)
                for key in (both[:KEY], both[KEY:]):
                    if not masks.usable(key, probe):
                        raise SealError(f"{title(Kind.ADVERT, i)} holds a public key that protects nothing")
                    if key in seen:
                        raise SealError(f"{title(Kind.ADVERT, i)} repeats a public key of client {seen[key]}")
                    seen[key] = i
        self._expect(keys, keys)
        self._keys, self._next = keys, "route"
        rosters = {i: {j: keys[j] for j in self._around(i, keys)} for i in keys}
        return {i: pack(self.session, Kind.ROSTER, i, pack_table(rows)) for i, rows in rosters.items()}

    def route(self, shares: Mapping[int, bytes]) -> dict[int, bytes]:
        """Pass sealed shares on to their holders."""
        self._begin("route", shares, self._keys)
        inboxes: dict[int, dict[int, bytes]] = {i: {} for i in shares}
        commitments = {}
        for i in sorted(shares):
            with _blaming(i):
                body, name = unpack(self.session, Kind.SHARES, i, shares[i]), title(Kind.SHARES, i)
                rows = unpack_table(self.session, body[KEY:], SEALED, name)
                if list(rows) != self._around(i, self._keys):
                    raise SealError(f"{name} are not for exactly its neighbours in the roster")
            commitments[i] = body[:KEY]
            for j in rows.keys() & inboxes.keys():
                inboxes[j][i] = rows[j]
        self._expect(commitments, commitments)
        self._commitments, self._next = commitments, "request"
        return {i: pack(self.session, Kind.INBOX, i, pack_table(rows)) for i, rows in inboxes.items()}

    def request(self, masked: Mapping[int, bytes]) -> dict[int, bytes]:
        """Add the masked vectors, and ask for what removes the masks: one secret for each that shared."""
        self._begin("request", masked, self._commitments)
        total = np.zeros(self.session.words, self.session.dtype)
        for i in sorted(masked):
            with _blaming(i):
                body = unpack(self.session, Kind.MASKED, i, masked[i], total.nbytes)
            total += np.frombuffer(body, self.session.dtype)
        self._expect((i for i in self._commitments if self._needed(i, masked)), masked)
        self._sum, self._survivors, self._next = total, dict.fromkeys(sorted(masked)), "total"
        return {i: pack(self.session, Kind.REQUEST, i, pack_table(self._asked(i))) for i in self._survivors}

    def total(self, reveals: Mapping[int, bytes]) -> NDArray[np.int64]:
        """Remove the masks: the exact sum [length] over `survivors`, or no sum at all."""
        self._begin("total", reveals, self._survivors)
        rows = {}
        for i in sorted(reveals):
            with _blaming(i):
                body, name = unpack(self.session, Kind.REVEAL, i, reveals[i]), title(Kind.REVEAL, i)
                rows[i] = unpack_table(self.session, body, shamir.SHARE, name)
                if rows[i].keys() != self._asked(i).keys():
                    raise SealError(f"{name} does not hold exactly what was asked")
        self._expect((i for i in self._commitments if self._needed(i, self._survivors)), rows)
        self._next = "closed"
        total, self._sum = self._sum, np.zeros(0, self.session.dtype)
        plus: list[bytes] = []
        minus: list[bytes] = []
        for i, secret in self._secrets(rows):
            if i in self._survivors:
                minus.append(masks.self_key(self.session, i, secret))
            else:
                for j, key in self._pairs(i, secret):
                    (minus if j < i else plus).append(key)  # the opposite of what j did
        masks.apply(total, plus, minus)
        signed = total.view(f"<i{total.itemsize}").astype(np.int64)
        if signed[-1] != len(self._survivors):
            self._stop(
                f"it counts {signed[-1]} terms, not {len(self._survivors)}: some client masked wrongly"
            )
        self._keys, self._commitments = {}, {}
        return signed[:-1]

    def _begin(self, step: str, sent: Mapping[int, bytes], known: Collection[int]) -> None:
        if self._next != step:
            raise Abort(f"the server was asked for {step}, but its next step is {self._next}")
        if strangers := sorted(set(sent) - set(known)):
            raise SealError(
                f"client {strangers[0]} sent a message for {step}, but is not or no longer taking part"
            )

    def _expect(self, owners: Iterable[int], there: Collection[int]) -> None:
        """Abort unless enough of the holders of every owner's shares are there."""
        need, present = self.session.threshold, set(there)
        for owner in owners:
            left = len(present.intersection(self.session.holders[owner]))
            if left < need:
                self._stop(
                    f"{left} holders of the shares of client {owner} are left, the threshold is {need}"
                )
        if len(present) < need:  # nobody may be left to ask about
            self._stop(f"{len(present)} clients are left, the threshold is {need}")

    def _stop(self, why: str) -> NoReturn:
        self._next = "closed"
        self._keys, self._commitments, self._sum = {}, {}, self._sum[:0]
        raise Abort(f"the sum '{self.session.label}' cannot be opened: {why}")

    def _around(self, client: int, among: Collection[int]) -> list[int]:
        return [j for j in self.session.holders[client] if j != client and j in among]

    def _needed(self, owner: int, survivors: Collection[int]) -> bool:
        """Tell if a client that shared left a mask in the sum: its own, or one in a neighbour's vector."""
        return owner in survivors or any(j in survivors for j in self.session.holders[owner])

    def _asked(self, client: int) -> dict[int, bytes]:
        peers = (j for j in self.session.holders[client] if j in self._commitments)
        return {j: SURVIVED if j in self._survivors else DROPPED for j in peers}

    def _secrets(self, rows: Mapping[int, Mapping[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Put together the seeds of survivors and the mask keys of the dropped, each checked."""
        weights: dict[tuple[int, ...], list[int]] = {}  # in the full graph one set of holders serves all
        for owner in self._commitments:
            if not self._needed(owner, self._survivors):
                continue
            by = tuple(j for j in self.session.holders[owner] if j in rows)[: self.session.threshold]
            if by not in weights:
                weights[by] = shamir.weights([j + 1 for j in by])
            try:
                secret = shamir.combine(weights[by], [rows[j][owner] for j in by])
            except SealError as error:
                self._stop(f"client {owner}: {error}")
            if not self._fits(owner, secret):
                self._stop(f"the shares of client {owner} give a secret that is not the one it committed to")
            yield owner, secret

    def _fits(self, owner: int, secret: bytes) -> bool:
        if owner in self._survivors:
            return masks.commitment(self.session, owner, secret) == self._commitments[owner]
        public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        return public == self._keys[owner][KEY:]

    def _pairs(self, dropped: int, secret: bytes) -> Iterator[tuple[int, bytes]]:
        """Derive the keys of a dropped client with the survivors around it."""
        key, mine = X25519PrivateKey.from_private_bytes(secret), (dropped, self._keys[dropped][KEY:])
        for j in self._around(dropped, self._survivors):
            yield j, masks.agree(self.session, masks.PAIR, key, mine, (j, self._keys[j][KEY:]))


@contextmanager
def _blaming(client: int) -> Iterator[None]:
    """Say in the error whose message was damaged."""
    try:
        yield
    except SealError as problem:
        problem.client = client
        raise
