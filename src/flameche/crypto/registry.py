"""The schemes by name: what each stands on, how its keys are made, and how they are read back.

A scheme's library is imported when its keys are made or read, so that all schemes can be listed without them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flameche.crypto.api import Adder, KeyInfo, Scheme
from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.plain import Plain
from flameche.errors import ConfigError
from flameche.registry import SCHEMES


@dataclass(frozen=True)
class SchemeKind:
    """A kind of scheme, as `flameche schemes` lists it; subclasses make schemes and read keys.

    Args:
        name: what `scheme.kind` calls it.
        title: what it is, in a few words.
        needs: the package it stands on, "" for none.
        opened_by: who can read a sum: "server", or "clients".
        security: its security level, in words.
        exact: whether the opened sum is the sum of the rounded terms to the last bit.
        updates: whether it can sum model updates (`scheme.updates`).
        keyed: whether it has keys that last, which `flameche keys` makes; then `from_bytes`,
            `adder_from_bytes` and `key_info` read what its scheme's `secret_bytes` and `public_bytes` wrote.
    """

    name: str
    title: str
    needs: str
    opened_by: str
    security: str
    exact: bool
    updates: bool = False
    keyed: bool = False

    def generate(self, *, clients: int, bound: float, key_bits: int = 3072) -> Scheme | SecAgg:
        """Make a scheme with fresh keys, for sums of up to `clients` vectors of values up to `bound`."""
        raise NotImplementedError

    def from_bytes(self, data: bytes) -> Scheme:
        """Read the clients' part of a key."""
        raise NotImplementedError

    def adder_from_bytes(self, data: bytes) -> Adder:
        """Make the server's half from its part of a key."""
        raise NotImplementedError

    def key_info(self, data: bytes) -> KeyInfo:
        """Tell what anybody may know of a key, from either of its parts."""
        raise NotImplementedError

    def library(self) -> Any:
        """Import the module of this scheme, which imports the package that it stands on.

        Raises:
            ConfigError: the package is not installed.
        """
        try:
            return importlib.import_module(f"flameche.crypto.{self.name.partition('-')[0]}")
        except ImportError as problem:
            raise ConfigError(
                f"scheme.kind = {self.name!r} needs the package {self.needs}: pip install {self.needs}"
            ) from problem


class _Plain(SchemeKind):
    def generate(self, *, clients: int, bound: float, key_bits: int = 3072) -> Scheme:
        return Plain()


class _SecAgg(SchemeKind):
    def generate(self, *, clients: int, bound: float, key_bits: int = 3072) -> SecAgg:
        return SecAgg(exact_codec(bound, clients)[0])


class _Paillier(SchemeKind):
    def generate(self, *, clients: int, bound: float, key_bits: int = 3072) -> Scheme:
        bits = exact_codec(bound, clients)[0].fraction_bits
        made: Scheme = self.library().Paillier.generate(
            max_terms=clients, bound=bound, key_bits=key_bits, fraction_bits=bits
        )
        return made

    def from_bytes(self, data: bytes) -> Scheme:
        found: Scheme = self.library().Paillier.from_bytes(data)
        return found

    def adder_from_bytes(self, data: bytes) -> Adder:
        found: Adder = self.library().Paillier.adder_from_bytes(data)
        return found

    def key_info(self, data: bytes) -> KeyInfo:
        found: KeyInfo = self.library().key_info(data)
        return found


class _Lattice(SchemeKind):
    def key_info(self, data: bytes) -> KeyInfo:
        self.library()
        from flameche.crypto import lattice

        return lattice.key_info(data, self.name)


class _Bfv(_Lattice):
    def generate(self, *, clients: int, bound: float, key_bits: int = 3072) -> Scheme:
        made: Scheme = self.library().Bfv.generate(max_terms=clients, bound=bound)
        return made

    def from_bytes(self, data: bytes) -> Scheme:
        found: Scheme = self.library().Bfv.from_bytes(data)
        return found

    def adder_from_bytes(self, data: bytes) -> Adder:
        found: Adder = self.library().adder_from_bytes(data)
        return found


class _Ckks(_Lattice):
    def generate(self, *, clients: int, bound: float, key_bits: int = 3072) -> Scheme:
        made: Scheme = self.library().Ckks.generate(
            max_terms=clients, bound=bound, paper=self.name == "ckks-paper"
        )
        return made

    def from_bytes(self, data: bytes) -> Scheme:
        found: Scheme = self.library().Ckks.from_bytes(data, self.name)
        return found

    def adder_from_bytes(self, data: bytes) -> Adder:
        found: Adder = self.library().adder_from_bytes(data, self.name)
        return found


PLAIN = _Plain("plain", "in the clear", "", "server", "none", True)
SECAGG = _SecAgg(
    "secagg", "secure aggregation, Bonawitz et al.", "cryptography", "server", "128 bit", True, updates=True
)
PAILLIER = _Paillier(
    "paillier", "Paillier, packed", "gmpy2", "clients", "128 bit at 3072 bits", True, keyed=True
)
BFV = _Bfv("bfv", "BFV lattice, exact", "tenseal", "clients", "128 bit", True, keyed=True)
CKKS = _Ckks(
    "ckks",
    "CKKS lattice, additive parameters",
    "tenseal",
    "clients",
    "128 bit",
    False,
    updates=True,
    keyed=True,
)
CKKS_PAPER = _Ckks(
    "ckks-paper", "CKKS, the paper's parameters", "tenseal", "clients", "128 bit", False, keyed=True
)


def keyed_schemes() -> list[str]:
    """List the schemes whose keys last."""
    return [name for name, kind in SCHEMES.loaded().items() if kind.keyed]


def make_scheme(kind: str, *, clients: int, bound: float = 64.0, **options: Any) -> Any:
    """Make a scheme with fresh keys, for sums of up to `clients` vectors of values up to `bound`.

    options: more that the kind of scheme takes, as `key_bits`.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError(f"a bound of {bound:g} leaves room for nothing; give a number above 0")
    found: SchemeKind = SCHEMES[kind]
    if found.keyed and kind not in SCHEMES:
        raise ConfigError(
            f"scheme.kind = {kind!r} has keys that last, whose files name the scheme: let a package "
            "declare it, or register it, by a name of its own"
        )
    made = found.generate(clients=clients, bound=bound, **options)
    if found is not PLAIN and getattr(made, "name", "plain") == "plain":
        raise ConfigError(f"scheme.kind = {kind!r}: its schemes need a `name` of their own, not 'plain'")
    return made


def secret_bytes(scheme: Scheme) -> bytes | None:
    """Write a scheme's secret, for a file of mode 0600; None where it has none."""
    write: Callable[[], bytes] | None = getattr(scheme, "secret_bytes", None)
    return write() if write else None


def public_bytes(scheme: Scheme) -> bytes | None:
    """Write the server's part of a scheme's key; None where it has none."""
    write: Callable[[], bytes] | None = getattr(scheme, "public_bytes", None)
    return write() if write else None


def scheme_from_bytes(kind: str, data: bytes) -> Scheme:
    """Read a secret that `secret_bytes` wrote."""
    return _keyed(kind).from_bytes(data)


def adder_from_bytes(kind: str, data: bytes) -> Adder:
    """Make a server's half from its part of a key."""
    return _keyed(kind).adder_from_bytes(data)


def info_of(scheme: object) -> KeyInfo | None:
    """Tell what anybody may know of a scheme's key; None where it has none."""
    return getattr(scheme, "info", None)


def key_info(kind: str, data: bytes) -> KeyInfo:
    """Tell what anybody may know of a key, from either of its parts."""
    return _keyed(kind).key_info(data)


def _keyed(kind: str) -> SchemeKind:
    found: SchemeKind = SCHEMES[kind]
    if not found.keyed:
        raise ConfigError(f"scheme '{kind}' has no lasting keys; {', '.join(keyed_schemes())} have")
    return found
