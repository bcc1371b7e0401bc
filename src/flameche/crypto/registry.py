"""Finds a scheme by name, makes its keys, and reads them back; each library is imported when asked for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flameche.crypto.api import Adder, KeyInfo, Scheme
from flameche.crypto.codec import exact_codec
from flameche.crypto.plain import Plain
from flameche.errors import ConfigError


@dataclass(frozen=True)
class SchemeInfo:
    """One line of `flameche schemes`."""

    name: str
    title: str
    needs: str  # the package it stands on
    opened_by: str
    security: str
    exact: bool
    updates: bool = False  # whether it can sum model updates


SCHEMES = {
    info.name: info
    for info in (
        SchemeInfo("plain", "in the clear", "", "server", "none", True),
        SchemeInfo(
            "secagg", "secure aggregation, Bonawitz et al.", "cryptography", "server", "128 bit", True, True
        ),
        SchemeInfo("paillier", "Paillier, packed", "gmpy2", "clients", "128 bit at 3072 bits", True),
        SchemeInfo("bfv", "BFV lattice, exact", "tenseal", "clients", "128 bit", True),
        SchemeInfo("ckks", "CKKS lattice, additive parameters", "tenseal", "clients", "128 bit", False, True),
        SchemeInfo("ckks-paper", "CKKS, the paper's parameters", "tenseal", "clients", "128 bit", False),
    )
}
KEYED = ("bfv", "ckks", "ckks-paper", "paillier")


def make_scheme(kind: str, *, clients: int, bound: float = 64.0, key_bits: int = 3072) -> Scheme:
    """Make a scheme with fresh keys, for sums of up to `clients` vectors of values up to `bound`."""
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError(f"a bound of {bound:g} leaves room for nothing; give a number above 0")
    if kind == "plain":
        return Plain()
    module = _module(kind)
    if kind == "bfv":
        made: Scheme = module.Bfv.generate(max_terms=clients, bound=bound)
    elif kind in ("ckks", "ckks-paper"):
        made = module.Ckks.generate(max_terms=clients, bound=bound, paper=kind == "ckks-paper")
    elif kind == "paillier":
        bits = exact_codec(bound, clients)[0].fraction_bits
        made = module.Paillier.generate(max_terms=clients, bound=bound, key_bits=key_bits, fraction_bits=bits)
    else:
        raise ConfigError(f"scheme.kind = {kind!r} has no keys; sessions of '{kind}' make their own")
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
    module = _module(kind, keyed=True)
    if kind == "bfv":
        found: Scheme = module.Bfv.from_bytes(data)
    elif kind == "paillier":
        found = module.Paillier.from_bytes(data)
    else:
        found = module.Ckks.from_bytes(data, kind)
    return found


def adder_from_bytes(kind: str, data: bytes) -> Adder:
    """Make a server's half from its part of a key."""
    module = _module(kind, keyed=True)
    if kind == "paillier":
        found: Adder = module.Paillier.adder_from_bytes(data)
    elif kind == "bfv":
        found = module.adder_from_bytes(data)
    else:
        found = module.adder_from_bytes(data, kind)
    return found


def info_of(scheme: object) -> KeyInfo | None:
    """Tell what anybody may know of a scheme's key; None where it has none."""
    return getattr(scheme, "info", None)


def key_info(kind: str, data: bytes) -> KeyInfo:
    """Tell what anybody may know of a key, from either of its parts."""
    module = _module(kind, keyed=True)
    if kind == "paillier":
        found: KeyInfo = module.key_info(data)
        return found
    from flameche.crypto import lattice

    return lattice.key_info(data, kind)


def _module(kind: str, *, keyed: bool = False) -> Any:
    if kind not in SCHEMES:
        raise ConfigError(f"scheme {kind!r} is not known; there are {', '.join(SCHEMES)}")
    if keyed and kind not in KEYED:
        raise ConfigError(f"scheme '{kind}' has no lasting keys; {', '.join(KEYED)} have")
    try:
        return importlib.import_module(f"flameche.crypto.{kind.partition('-')[0]}")
    except ImportError as problem:
        package = SCHEMES[kind].needs
        raise ConfigError(
            f"scheme.kind = {kind!r} needs the package {package}: pip install {package}"
        ) from problem
