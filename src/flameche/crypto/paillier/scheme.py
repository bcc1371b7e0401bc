"""The scheme: draws a key, deals its two halves, and writes and reads them as files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any, Literal

from gmpy2 import mpz

from flameche.crypto.api import KeyInfo
from flameche.crypto.codec import FixedPoint
from flameche.crypto.paillier.adder import PaillierAdder
from flameche.crypto.paillier.keys import PaillierKey, PaillierPrivate, _Secret
from flameche.crypto.paillier.packing import NAME, PaillierPublic
from flameche.errors import ConfigError, SealError

KEY_BITS = (2048, 3072)


class Paillier(_Secret):
    """A key that all clients share, and the codec that they agreed on."""

    name = NAME
    opened_by: Literal["server", "clients"] = "clients"

    def __init__(self, private: PaillierPrivate, codec: FixedPoint) -> None:
        self.public = PaillierPublic(private.n, codec)
        self.key_name = private.key_name
        self._private = private

    @classmethod
    def generate(
        cls,
        *,
        max_terms: int,
        bound: float = 64.0,
        key_bits: int = 3072,
        fraction_bits: int = 30,
        insecure_for_tests: bool = False,
    ) -> Paillier:
        """Draw a key for sums of max_terms values up to bound; short keys only for tests."""
        if key_bits not in KEY_BITS and not insecure_for_tests:
            raise ConfigError(f"Paillier keys have {_offered()} bits, not {key_bits}")
        return cls(PaillierPrivate.generate(key_bits), FixedPoint(float(bound), max_terms, fraction_bits))

    def adder(self) -> PaillierAdder:
        """Deal the server's half: the public key alone."""
        return PaillierAdder(self.public)

    def client_key(self, threads: int | None = None) -> PaillierKey:
        """Deal a client's half; it opens with as many threads as there are processors, or as told."""
        return PaillierKey(self._private, self.public, threads)

    @property
    def info(self) -> KeyInfo:
        """Tell what anybody may know of the key."""
        return self.public.info(secret=True)

    def secret_bytes(self) -> bytes:
        """Write the key file of a client; whoever reads it reads every vector."""
        primes = {"p": f"{self._private.p:x}", "q": f"{self._private.q:x}"}
        return _write("private", primes, self.public.codec)

    @classmethod
    def from_bytes(cls, data: bytes, *, insecure_for_tests: bool = False) -> Paillier:
        """Read a client's key file; SealError says what is wrong with it."""
        (p, q), codec = _read(data, "private", ("p", "q"))
        _check_length(p * q, insecure_for_tests)
        try:
            return cls(PaillierPrivate(p, q), codec)
        except ConfigError as error:
            raise SealError(f"a Paillier key file cannot be used: {error}") from None

    def public_bytes(self) -> bytes:
        """Write the server's file."""
        return _write("public", {"n": f"{self.public.n:x}"}, self.public.codec)

    @staticmethod
    def adder_from_bytes(data: bytes, *, insecure_for_tests: bool = False) -> PaillierAdder:
        """Read the server's file; a private key is refused there."""
        (n,), codec = _read(data, "public", ("n",))
        _check_length(n, insecure_for_tests)
        try:
            return PaillierAdder(PaillierPublic(n, codec))
        except ConfigError as error:
            raise SealError(f"a Paillier key file cannot be used: {error}") from None


def key_info(data: bytes) -> KeyInfo:
    """Tell what anybody may know of either part of a key."""
    if _format("public").encode() in data[:100]:
        return Paillier.adder_from_bytes(data).public.info(secret=False)
    return Paillier.from_bytes(data).info


def _format(kind: str) -> str:
    return f"flameche paillier {kind} key"


def _offered() -> str:
    return " or ".join(map(str, KEY_BITS))


def _check_length(n: mpz, insecure_for_tests: bool) -> None:
    if n.bit_length() not in KEY_BITS and not insecure_for_tests:
        raise SealError(f"a Paillier key of {n.bit_length()} bits is refused; make one of {_offered()}")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(kind: str, numbers: dict[str, str], codec: FixedPoint) -> bytes:
    content = {"format": _format(kind), "version": 1, **numbers, "codec": asdict(codec)}
    return json.dumps({**content, "sha256": _digest(content)}, indent=1).encode() + b"\n"


def _read(data: bytes, kind: str, names: tuple[str, ...]) -> tuple[list[mpz], FixedPoint]:
    """Read a key file; its content never appears in a message."""
    try:
        content = json.loads(data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SealError(f"this is no Paillier {kind} key file, or one that was cut short")
    found = content.get("format")
    if kind == "public" and found == _format("private"):
        raise SealError("this is a private key, which a server must not hold; give it the public key file")
    if kind == "private" and found == _format("public"):
        raise SealError("this is the server's part of a key for 'paillier'; a client needs the secret one")
    if found != _format(kind):
        raise SealError(f"this is no Paillier {kind} key file")
    if content.get("version") != 1:
        raise SealError(f"a Paillier {kind} key file of a version that is not known here; version 1 is")
    digest = content.pop("sha256", None)
    if digest != _digest(content):
        raise SealError(f"a Paillier {kind} key file is damaged: its content does not match its hash")
    try:
        numbers = [mpz(int(content[name], 16)) for name in names]
        bound, *counts = (content["codec"][name] for name in ("bound", "max_terms", "fraction_bits"))
        codec = FixedPoint(float(bound), *map(int, counts))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise SealError(f"a Paillier {kind} key file lacks a part that it should have") from None
    if any(number < 3 or number % 2 == 0 for number in numbers):
        raise SealError(f"a Paillier {kind} key file holds a number that is no part of a key")
    return numbers, codec
