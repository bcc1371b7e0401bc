"""A node's own folder: what it must still know after a restart, readable by its owner only.

metadata.npz          phi and its counts, computed once
round.npz  answer.*   the current round: its first message, and the server's answers so far
trained.*             models that were trained in that round
session.*             secrets of secure aggregation between two steps; each file is read once
last.json             the last round that the node took part in, and its cluster then
clusters.npz          after the run: what a client that joins later needs to find its cluster
config.toml           beside it: the run's experiment
"""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flameche.errors import StoreError
from flameche.network.message import Arrays, Message, RejectedMessage, npz_arrays, npz_bytes

STALE_AFTER = 86400.0  # seconds


class NodeStorage:
    """Files of mode 0600 in a folder of mode 0700; each is replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)
        except OSError as problem:
            raise StoreError(f"{path}: a node cannot keep its state here: {problem.strerror}") from problem

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file."""
        part = self._temporary(name)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / name)
        except OSError as problem:
            raise StoreError(f"{self.path / name} cannot be written: {problem.strerror}") from problem
        finally:
            part.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it does not exist."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise StoreError(f"{self.path / name} cannot be read: {problem.strerror}") from problem

    def read_once(self, name: str) -> bytes | None:
        """Read a file and delete it; of two processes that do so at the same time, only one gets it."""
        claimed = self._temporary(name)
        try:
            (self.path / name).rename(claimed)
        except FileNotFoundError:
            return None
        data = self.read(claimed.name)
        claimed.unlink()
        return data

    def _temporary(self, name: str) -> Path:
        """Choose a unique temporary name; the file's own name may come from a message, so it is checked."""
        if "/" in name:
            raise StoreError(f"'{name}' is not a file in a node's folder")
        return self.path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"

    def delete(self, *prefixes: str) -> None:
        """Delete all files whose names start with one of the prefixes."""
        for file in self.path.iterdir():
            if file.name.startswith(prefixes):
                file.unlink(missing_ok=True)

    def read_arrays(self, name: str) -> Arrays | None:
        """Read a file of arrays; None if it does not exist or is damaged."""
        data = self.read(name)
        try:
            return None if data is None else npz_arrays(data)
        except RejectedMessage:
            return None

    def write_arrays(self, name: str, arrays: Arrays) -> None:
        """Write a file of arrays."""
        self.write(name, npz_bytes(arrays))

    def begin_round(self, start: Message) -> None:
        """Store the first message of a round, and delete what belongs to earlier rounds."""
        self.delete("round.", "answer.", "session.")
        for file in self.path.glob(".*"):  # temporary files of processes that were killed
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - STALE_AFTER:
                    file.unlink()
        self.write("round.npz", start.to_bytes())

    @property
    def round_start(self) -> Message | None:
        """Read the first message of the current round; None if it is missing."""
        return self._read_message("round.npz")

    def answers(self, count: int) -> list[Message] | None:
        """Read the first `count` answers of the current round; None if some are missing."""
        found = [self._read_message(f"answer.{number}") for number in range(count)]
        readable = [answer for answer in found if answer is not None]
        return readable if len(readable) == count else None

    def _read_message(self, name: str) -> Message | None:
        data = self.read(name)
        try:
            return None if data is None else Message.from_bytes(data)
        except RejectedMessage:
            return None

    def add_answer(self, number: int, answer: Message) -> None:
        """Store an answer of the current round."""
        self.write(f"answer.{number}", answer.to_bytes())

    def write_newcomer_bundle(self, config: str, arrays: Arrays) -> None:
        """Store what newcomers need, with the experiment's config, in place of an earlier run's."""
        self.delete("clusters.npz")  # it would not match the new config
        self.write("config.toml", config.encode())
        self.write_arrays("clusters.npz", arrays)

    def write_last(self, summary: dict[str, Any]) -> None:
        """Store a short summary of the node's last round, for people to read."""
        self.write("last.json", json.dumps(summary).encode())
