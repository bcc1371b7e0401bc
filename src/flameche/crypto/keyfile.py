"""Key files: the clients' secret in a file that only its owner may read, the server's part beside it."""

from __future__ import annotations

import os
from pathlib import Path

from flameche.crypto.api import Adder, Scheme
from flameche.crypto.registry import adder_from_bytes, public_bytes, scheme_from_bytes, secret_bytes
from flameche.errors import BadInput

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
    if os.name == "posix" and path.exists() and path.stat().st_mode & 0o077:
        raise BadInput(f"{path} can be read by others; its owner alone may: chmod 600 {path}")
    kind, data = _read(path)
    return scheme_from_bytes(kind, data)


def read_public(path: Path) -> Adder:
    """Read the server's part."""
    kind, data = _read(path)
    return adder_from_bytes(kind, data)


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
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from problem
    if not text.startswith(MAGIC) or b"\n" not in text[len(MAGIC) :]:
        raise BadInput(f"{path} is not a key file of flameche, or is damaged")
    kind, _, data = text[len(MAGIC) :].partition(b"\n")
    return kind.decode(errors="replace"), data
