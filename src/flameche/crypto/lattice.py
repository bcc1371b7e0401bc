"""What BFV and CKKS share on TenSEAL: contexts without multiplication, chunks, check slots, key bytes.

A server that only adds needs no multiplicative depth and no relinearisation or rotation keys, so the
smallest ring that holds a sum will do. All clients hold one secret key (the paper's setting), so sealing is
symmetric: it is faster than under a public key, and its noise is smaller.

Every chunk (one ciphertext) begins with a check slot: a one per term. A sum whose check slot does not open
to its number of terms was altered, or sealed under another key.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import tenseal as ts

from flameche.crypto.api import KeyInfo, Sealed
from flameche.crypto.envelope import Envelope, fingerprint, pack, unpack
from flameche.errors import Cancelled, OverflowBudget, SealError

# Largest total modulus in bits for 128-bit classical security with ternary secrets:
# Albrecht et al., "Homomorphic Encryption Standard", 2018, table 1.
MODULUS_BITS_128 = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
COUNT = struct.Struct("<H")
SIZE = struct.Struct("<I")


@dataclass(frozen=True)
class Ring:
    """The public parameters of a context; `plain` is BFV's plaintext modulus, `scale` CKKS's, in bits."""

    degree: int
    moduli: tuple[int, ...]
    plain: int = 0
    scale: int = 0
    symmetric: bool = True

    def __post_init__(self) -> None:
        allowed = MODULUS_BITS_128.get(self.degree, 0)
        if sum(self.moduli) > allowed:
            raise SealError(
                f"a modulus of {sum(self.moduli)} bits in a ring of degree {self.degree} is below 128-bit "
                f"security; at most {allowed} bits are allowed"
            )

    def context(self) -> Any:
        """Make a fresh secret context."""
        kind = ts.ENCRYPTION_TYPE.SYMMETRIC if self.symmetric else ts.ENCRYPTION_TYPE.ASYMMETRIC
        if self.plain:
            return ts.context(
                ts.SCHEME_TYPE.BFV,
                poly_modulus_degree=self.degree,
                plain_modulus=self.plain,
                coeff_mod_bit_sizes=list(self.moduli),
                encryption_type=kind,
            )
        made = ts.context(
            ts.SCHEME_TYPE.CKKS,
            poly_modulus_degree=self.degree,
            coeff_mod_bit_sizes=list(self.moduli),
            encryption_type=kind,
        )
        made.global_scale = 2.0**self.scale
        return made

    @property
    def slots(self) -> int:
        """Count the numbers that one ciphertext holds."""
        return self.degree if self.plain else self.degree // 2

    def load_vector(self, context: Any, data: bytes) -> Any:
        """Read a ciphertext under a context."""
        read = ts.bfv_vector_from if self.plain else ts.ckks_vector_from
        try:
            return read(context, data)
        except (ValueError, RuntimeError, MemoryError) as problem:
            raise SealError("a sealed vector is damaged: its ciphertext cannot be read") from problem


@dataclass(frozen=True)
class LatticeVector:
    """A sum of sealed vectors as the server holds it: ciphertexts under a context without a secret."""

    scheme: str
    mark: bytes
    terms: int
    numbers: int
    chunks: tuple[Any, ...]

    def to_bytes(self) -> bytes:
        """Write it as it crosses the wire."""
        body = write_chunks([chunk.serialize() for chunk in self.chunks])
        return pack(self.scheme, self.mark, Envelope(self.terms, self.numbers, body))


class LatticeAdder:
    """The server's half: a context made public, which has nothing to open with."""

    def __init__(self, scheme: str, ring: Ring, mark: bytes, public: bytes, max_terms: int) -> None:
        self._scheme, self._ring, self._mark = scheme, ring, mark
        self._max_terms = max_terms
        self._public = public
        self._context = ts.context_from(public)
        if self._context.has_secret_key():
            raise SealError("an adder must not be made from a context that holds a secret key")

    def __reduce__(self) -> tuple[Any, ...]:
        return LatticeAdder, (self._scheme, self._ring, self._mark, self._public, self._max_terms)

    def load(self, data: bytes) -> LatticeVector:
        """Take in what a client sealed."""
        envelope = unpack(data, self._scheme, self._mark)
        chunks = read_chunks(envelope.body, chunks_for(envelope.numbers, self._ring.slots))
        loaded = tuple(self._ring.load_vector(self._context, chunk) for chunk in chunks)
        for at, chunk in enumerate(loaded):  # whatever could not be added to others is refused here
            numbers = (envelope.numbers + len(loaded) - 1 - at) // len(loaded)
            scale = 0 if self._ring.plain else chunk.ciphertext()[0].scale
            if chunk.size() != numbers + 1 or scale != (0 if self._ring.plain else 2.0**self._ring.scale):
                raise SealError("a sealed vector is damaged: its ciphertexts have another length or scale")
        return LatticeVector(self._scheme, self._mark, envelope.terms, envelope.numbers, loaded)

    def add(self, parts: Iterable[Sealed]) -> LatticeVector:
        """Add vectors of one length; at least one. Cancelled if their ciphertexts cancel each other."""
        vectors = [cast(LatticeVector, part) for part in parts]
        if not vectors:
            raise SealError("nothing to add: a sum needs at least one sealed vector")
        total = vectors[0].chunks
        for i, vector in enumerate(vectors[1:]):
            self._fits(vectors[0], vector)
            pairs = zip(total, vector.chunks, strict=True)
            with _still_sealed():
                # The first addition makes new ciphertexts, the others add into those.
                total = tuple(a + b if i == 0 else a.add_(b) for a, b in pairs)
        return self._made(vectors[0], total, sum(vector.terms for vector in vectors))

    def subtract(self, total: Sealed, parts: Iterable[Sealed]) -> LatticeVector:
        """Take vectors out of a total again; at least one term stays; Cancelled if these cancel each other.

        A ciphertext that was added takes its noise with it, so a sum carries the noise of its terms only,
        however often terms came and went.
        """
        whole, out = cast(LatticeVector, total), [cast(LatticeVector, part) for part in parts]
        terms = whole.terms - sum(vector.terms for vector in out)
        if terms < 1:
            raise SealError(f"{whole.terms - terms} terms cannot be taken out of a sum of {whole.terms}")
        left = whole.chunks
        for i, vector in enumerate(out):
            self._fits(whole, vector)
            pairs = zip(left, vector.chunks, strict=True)
            with _still_sealed():
                left = tuple(a - b if i == 0 else a.sub_(b) for a, b in pairs)
        return self._made(whole, left, terms)

    def _fits(self, a: LatticeVector, b: LatticeVector) -> None:
        if a.numbers != b.numbers:
            raise SealError(f"vectors of different lengths cannot be added: {sorted((a.numbers, b.numbers))}")
        if not a.mark == b.mark == self._mark:
            raise SealError("vectors sealed under different keys cannot be added")

    def _made(self, like: LatticeVector, chunks: Sequence[Any], terms: int) -> LatticeVector:
        if terms > self._max_terms:
            raise OverflowBudget(
                f"a sum of {terms} terms, but the scheme was made for {self._max_terms}; "
                "make it for as many clients as there are"
            )
        return LatticeVector(like.scheme, like.mark, terms, like.numbers, tuple(chunks))


@dataclass(frozen=True)
class LatticeSecret:
    """The clients' key: a secret context, its public half, and a public name. Never printed or pickled."""

    scheme: str
    ring: Ring
    settings: dict[str, Any]
    name: str
    context: Any
    public: bytes

    @classmethod
    def fresh(cls, scheme: str, ring: Ring, settings: dict[str, Any]) -> LatticeSecret:
        """Draw a key."""
        context = ring.context()
        return cls(scheme, ring, settings, secrets.token_hex(8), context, _serialise(context, False))

    @property
    def mark(self) -> bytes:
        """Name key, ring and codec in eight bytes."""
        ring = [self.ring.degree, *self.ring.moduli, self.ring.plain, self.ring.scale]
        return fingerprint(self.scheme, ring=ring, key=self.name, **self.settings)

    @property
    def info(self) -> KeyInfo:
        """Tell what anybody may know."""
        secret = self.context is not None and self.context.has_secret_key()
        clients, bound = self.settings["max_terms"], self.settings["bound"]
        moduli = "+".join(map(str, self.ring.moduli))
        ring = f"ring of degree {self.ring.degree}, modulus of {moduli} bits"
        return KeyInfo(self.scheme, secret, clients, bound, ring, self.mark.hex())

    def to_bytes(self) -> bytes:
        """Write the secret, for a file that only its owner may read."""
        return _pack_key(self, _serialise(self.context, True))

    def public_bytes(self) -> bytes:
        """Write what the server may have."""
        return _pack_key(self, self.public)

    def __repr__(self) -> str:
        return f"<{self.scheme} key {self.name[:4]}…>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled; write it with to_bytes to a file of mode 0600")


def key_info(data: bytes, scheme: str) -> KeyInfo:
    """Tell what anybody may know of either part of a key."""
    ring, settings, name, context, public = read_key(data, scheme)
    return LatticeSecret(scheme, ring, settings, name, context, public).info


def read_key(
    data: bytes, scheme: str, *, secret: bool | None = None
) -> tuple[Ring, dict[str, Any], str, Any, bytes]:
    """Read key bytes of the wanted part, or of either: ring, settings, name, context, public bytes."""
    try:
        digest, text = data[:32], data[32:]
        if hashlib.sha256(text).digest() != digest:
            raise ValueError("its checksum does not match")
        fields = json.loads(text)
        ring = Ring(**{**fields["ring"], "moduli": tuple(fields["ring"]["moduli"])})
        raw = base64.b64decode(fields["context"])
        theirs, settings, name = fields["scheme"], fields["settings"], fields["name"]
        context = ts.context_from(raw)
    except (ValueError, KeyError, TypeError, RuntimeError, MemoryError) as problem:
        raise SealError(f"a key for '{scheme}' is damaged or not a key: {problem}") from problem
    if theirs != scheme:
        raise SealError(f"a key for scheme '{theirs}' was given to scheme '{scheme}'")
    if secret is not None and secret != context.has_secret_key():
        given, needed = (
            ("server's", "a client needs the secret one") if secret else ("clients'", "it is secret")
        )
        raise SealError(f"this is the {given} part of a key for '{scheme}'; {needed}")
    public = _serialise(context, False) if context.has_secret_key() else raw
    return ring, settings, name, context, public


@contextmanager
def _still_sealed() -> Iterator[None]:
    """Turn SEAL's refusal of a result that anybody could read into an error of our own."""
    try:
        yield
    except RuntimeError as problem:
        if "transparent" not in str(problem):
            raise
        raise Cancelled("ciphertexts cancel each other: their sum would not be sealed any more") from problem


def _pack_key(key: LatticeSecret, context: bytes) -> bytes:
    fields = {
        "scheme": key.scheme,
        "ring": key.ring.__dict__,
        "settings": key.settings,
        "name": key.name,
        "context": base64.b64encode(context).decode(),
    }
    text = json.dumps(fields).encode()
    return hashlib.sha256(text).digest() + text


def _serialise(context: Any, secret: bool) -> bytes:
    data: bytes = context.serialize(
        save_public_key=secret, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return data


def chunks_for(numbers: int, slots: int) -> int:
    """Count the ciphertexts for so many numbers, each with its check slot."""
    return max(1, -(-numbers // (slots - 1)))


def write_chunks(chunks: Sequence[bytes]) -> bytes:
    """Lay ciphertexts one after another, each behind its length."""
    return COUNT.pack(len(chunks)) + b"".join(SIZE.pack(len(chunk)) + chunk for chunk in chunks)


def read_chunks(body: bytes, expected: int) -> list[bytes]:
    """Read what `write_chunks` wrote."""
    chunks, at = [], COUNT.size
    try:
        (count,) = COUNT.unpack_from(body)
        for _ in range(count):
            (size,) = SIZE.unpack_from(body, at)
            chunks.append(body[at + SIZE.size : at + SIZE.size + size])
            at += SIZE.size + size
    except struct.error:
        count = -1
    if count != expected or at != len(body):
        raise SealError(f"a sealed vector is damaged: expected {expected} whole ciphertexts")
    return chunks
