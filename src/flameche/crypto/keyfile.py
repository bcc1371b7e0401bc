"""Key files: the clients' secret in a file that only its owner may read, the server's part beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flameche.crypto.api import Adder, KeyInfo, Scheme
from flameche.crypto.registry import (
    adder_from_bytes,
    key_info,
    keyed_schemes,
    public_bytes,
    scheme_from_bytes,
    secret_bytes,
)
from flameche.errors import BadInput, FlamecheError

if TYPE_CHECKING:
    from flameche.crypto.box import Box

MAGIC = b"flameche key 1\n"
SECRET, PUBLIC = "client.key", "server.pub"


def write_secret(path: Path, scheme: Scheme) -> None:
    """Write the clients' key with mode 0600; an existing file is never replaced."""
    data = secret_bytes(scheme)
    if data is None:
        raise BadInput(f"scheme '{scheme.name}' has no lasting keys; there is nothing to write")
    _write(path, scheme.name, data, 0o600)


def write_public(path: Path, scheme: Scheme) -> None:
    """Write the server's part."""
    data = public_bytes(scheme)
    if data is not None:
        _write(path, scheme.name, data, 0o644)


def read_secret(path: Path) -> Scheme:
    """Read a clients' key; refuse one that others may read."""
    kind, data = _read(path)
    with _naming(path):
        scheme = scheme_from_bytes(kind, data)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise BadInput(f"{path} can be read by others; its owner alone may: chmod 600 {path}")
    return scheme


def read_box(path: Path) -> Box:
    """Make the box that all holders of a clients' key have, from the very bytes of the file."""
    from flameche.crypto.box import Box  # needs cryptography, which only networks do

    if not read_info(path).secret:
        raise BadInput(f"{path} is the server's part of a key; clients have the secret one")
    return Box(_read(path)[1])


def read_public(path: Path) -> Adder:
    """Read the server's part."""
    kind, data = _read(path)
    with _naming(path):
        return adder_from_bytes(kind, data)


def read_info(path: Path) -> KeyInfo:
    """Read what anybody may know of a key, from either file."""
    kind, data = _read(path)
    with _naming(path):
        return key_info(kind, data)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in what is wrong with it."""
    try:
        yield
    except FlamecheError as problem:
        raise BadInput(f"{path}: {problem}") from problem


def _write(path: Path, kind: str, data: bytes, mode: int) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(MAGIC + kind.encode() + b"\n" + data)
        os.link(part, path)  # whole or not at all, and never over another
    except FileExistsError as problem:
        raise BadInput(f"{path} exists; a key is never replaced, remove it first") from problem
    except OSError as problem:
        raise BadInput(f"{path} cannot be written: {problem.strerror}") from problem
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path) -> tuple[str, bytes]:
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is not a file; expected a key that `flameche keys new` wrote")
    try:
        with path.open("rb") as file:
            text = file.read() if file.read(len(MAGIC)) == MAGIC else b""
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from problem
    name, newline, data = text.partition(b"\n")
    kind = name.decode(errors="replace")
    if not newline or kind not in keyed_schemes():
        raise BadInput(f"{path} is not a key file of flameche, or is damaged")
    return kind, data
