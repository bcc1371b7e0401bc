"""A site's own folder: what a node must still know after a restart, readable by its owner alone.

metadata.npz          phi and its counts, computed once
round.npz  answer.*   the round under way: how it began, and the answers so far
trained.*             models trained in that round
session.*             secure aggregation between two steps; each file is read once
last.json             the last round it took part in, and its cluster then
clusters.npz          after the run: what a client that comes later needs to find its cluster
config.toml           with it: the run's experiment
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
from flameche.network.parcel import Arrays, Parcel, Refused, npz_arrays, npz_bytes

LONG_AGO = 86400.0


class Site:
    """Files of mode 0600 in a folder of mode 0700; each is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)
        except OSError as problem:
            raise StoreError(f"{path}: a node cannot keep its state here: {problem.strerror}") from problem

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of an earlier one."""
        part = self._beside(name)
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
        """Read a file; None where there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise StoreError(f"{self.path / name} cannot be read: {problem.strerror}") from problem

    def take(self, name: str) -> bytes | None:
        """Read a file and remove it: nobody reads it again, also not at the same moment."""
        mine = self._beside(name)
        try:
            (self.path / name).rename(mine)
        except FileNotFoundError:
            return None
        data = self.read(mine.name)
        mine.unlink()
        return data

    def _beside(self, name: str) -> Path:
        """Give a name that nobody else has; a file's own name may come from a message."""
        if "/" in name:
            raise StoreError(f"'{name}' is not a file in a node's folder")
        return self.path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"

    def forget(self, *kinds: str) -> None:
        """Remove the files whose names begin so."""
        for file in self.path.iterdir():
            if file.name.startswith(kinds):
                file.unlink(missing_ok=True)

    def arrays(self, name: str) -> Arrays | None:
        """Read a file of arrays; None where there is none that can be read."""
        data = self.read(name)
        try:
            return None if data is None else npz_arrays(data)
        except Refused:
            return None

    def write_arrays(self, name: str, arrays: Arrays) -> None:
        """Write a file of arrays."""
        self.write(name, npz_bytes(arrays))

    def begin_round(self, opening: Parcel) -> None:
        """Remember how a round began; an earlier one is over."""
        self.forget("round.", "answer.", "session.")
        for file in self.path.glob(".*"):  # left behind by processes that were killed
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - LONG_AGO:
                    file.unlink()
        self.write("round.npz", opening.to_bytes())

    @property
    def opening(self) -> Parcel | None:
        """Give how the round under way began; None where that is not known."""
        return self._parcel("round.npz")

    def log(self, upto: int) -> list[Parcel] | None:
        """Give the first `upto` answers of the round under way; None where some are not here."""
        found = [self._parcel(f"answer.{number}") for number in range(upto)]
        known = [answer for answer in found if answer is not None]
        return known if len(known) == upto else None

    def _parcel(self, name: str) -> Parcel | None:
        data = self.read(name)
        try:
            return None if data is None else Parcel.from_bytes(data)
        except Refused:
            return None

    def add_answer(self, number: int, answer: Parcel) -> None:
        """Keep an answer."""
        self.write(f"answer.{number}", answer.to_bytes())

    def keep_clusters(self, config: str, arrays: Arrays) -> None:
        """Keep what newcomers need, with the experiment, in place of an earlier run's."""
        self.forget("clusters.npz")  # which the new config would not fit
        self.write("config.toml", config.encode())
        self.write_arrays("clusters.npz", arrays)

    def write_last(self, what: dict[str, Any]) -> None:
        """Keep, for whoever looks, what became of this node last."""
        self.write("last.json", json.dumps(what).encode())
