"""Run folders: `<out>/<name>/<hash>/<seed>/`, written so that a kill at any moment loses nothing.

    config.toml  environment.json  rounds.jsonl  checkpoint.npz  clients.parquet  summary.json
    error.txt, why a sweep's run failed
    clusters.npz  models.npz, what a newcomer needs (`newcomers.py`)
    noisy.npz, the clients' metadata with noise, where privacy is asked for
    openings.json, the sums that were opened, for `flameche audit`
    client.key, while an encrypted run lasts; key.json, the key's fingerprint

Rounds are appended as they end; everything else is written beside its place and moved there. summary.json
comes last: where it is, the run is finished.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from flameche.errors import RunBusy, StoreError
from flameche.experiments.provenance import AGAIN, sources_note
from flameche.simulation.engine import Checkpoint

NOISY = "noisy.npz"


def has_checkpoint(path: Path) -> bool:
    """Tell whether a run's folder holds a checkpoint; without locking it."""
    return (path / "checkpoint.npz").exists()


class RunFolder:
    """One run's folder; it records for the simulator and belongs to one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path / ".lock")
        except BlockingIOError as problem:
            raise RunBusy(f"{path} is being written by another process; wait for it to end") from problem
        except OSError as problem:
            raise StoreError(
                f"{path} cannot be written: {problem.strerror}; choose another folder with --out"
            ) from problem

    def close(self) -> None:
        """Let the folder go, and take it away if nothing was written into it."""
        self._lock.close()
        trifles = (".lock", "inputs.json", "client.key", "key.json")
        if not {file.name for file in self.path.iterdir()} - set(trifles):
            for name in trifles:
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.path, self.path.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def summary(self) -> dict[str, Any] | None:
        """Read the summary of a finished run; None before that."""
        file = self.path / "summary.json"
        if not file.exists():
            return None
        try:
            summary: dict[str, Any] = json.loads(file.read_text())
        except ValueError as problem:
            raise StoreError(f"{file} is damaged; remove it to run again") from problem
        return summary

    def clear(self) -> None:
        """Forget what was run here.

        Stopped on the way, it leaves the finished run as it was, or a run that begins at its first round: the
        checkpoint goes first, the summary next.
        """
        keys = ("client.key", "key.json", "inputs.json")
        made = (
            "rounds.jsonl",
            "clients.parquet",
            "openings.json",
            "clusters.npz",
            "models.npz",
            NOISY,
            "error.txt",
        )
        for name in ("checkpoint.npz", "summary.json", *keys, *made):
            (self.path / name).unlink(missing_ok=True)

    @property
    def noisy(self) -> dict[str, NDArray[np.generic]] | None:
        """Read the metadata with noise of a run that was interrupted; None if there are none."""
        file = self.path / NOISY
        if not file.exists():
            return None
        try:
            with file.open("rb") as raw, np.load(raw) as held:
                return {key: held[key] for key in held.files}
        except (ValueError, OSError, EOFError, KeyError, BadZipFile) as problem:
            raise StoreError(f"{file} is damaged; --fresh runs it again, with new noise") from problem

    def keep_noisy(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Keep metadata with noise: a run that goes on must not draw other noise."""
        self.write_arrays(NOISY, arrays)

    @property
    def begun(self) -> bool:
        """Tell whether there is a checkpoint to go on from."""
        return has_checkpoint(self.path)

    @property
    def key_file(self) -> Path:
        """Tell where the simulated clients keep their key while the run lasts."""
        return self.path / "client.key"

    def keep_fingerprint(self, fingerprint: str, key: Path) -> None:
        """Remember a key by its public name; refuse to go on with another than the run began with."""
        file = self.path / "key.json"
        if not (self.begun and file.exists()):
            self.write_json("key.json", {"fingerprint": fingerprint})
        elif read_json(file).get("fingerprint") != fingerprint:
            raise StoreError(
                f"{key} is not the key this run began with; give it that one, or remove {self.path} to start "
                "the run again"
            )

    def keep_inputs(self, inputs: Mapping[str, str]) -> None:
        """Remember the user's own files by their hashes; refuse to mix runs made from different ones."""
        file = self.path / "inputs.json"
        if not file.exists():
            if inputs:
                self.write_json("inputs.json", inputs)
            return
        before = read_json(file)
        changed = sorted(key for key in {*before, *inputs} if before.get(key) != inputs.get(key))
        if changed:
            raise StoreError(
                f"{' and '.join(changed)} changed since the run in {self.path}; "
                "run it again with --fresh, or give the experiment another name"
            )

    def keep_environment(self, now: dict[str, Any], remedy: str = AGAIN) -> list[str]:
        """Write the environment a run starts in, add those it goes on in; return what to tell of them.

        remedy: how a run that other sources began is run again.
        """
        file = self.path / "environment.json"
        if not (file.exists() and self.begun):
            self.write_json("environment.json", now)
            return []
        first = json.loads(file.read_text())
        self.write_json("environment.json", {**first, "resumed": [*first.get("resumed", []), now]})
        note = sources_note(first, now["sources"], "begun", remedy) if "sources" in now else None
        told = [] if note is None else [note]
        moved = [key for key in ("device", "python", "torch", "numpy") if first.get(key) != now.get(key)]
        if not moved:
            return told
        return [*told, f"resumed under another {', '.join(moved)}: not bit-identical to an uninterrupted run"]

    def write_text(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        self._replace(name, lambda file: file.write(text.encode()))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write JSON whole or not at all; NaN becomes null."""
        self.write_text(name, json.dumps(without_nan(value), indent=1) + "\n")

    def write_clients(self, columns: Mapping[str, NDArray[np.generic]]) -> None:
        """Write the table of clients."""
        import pandas as pd

        frame = pd.DataFrame(columns)
        self._replace("clients.parquet", lambda file: frame.to_parquet(file, index=False))

    def write_arrays(self, name: str, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Write arrays whole or not at all, numbers as float32."""
        single: dict[str, Any] = {
            key: value.astype(np.float32) if value.dtype == np.float64 else value
            for key, value in arrays.items()
        }
        self._replace(name, lambda file: np.savez(file, **single))

    def resume(self) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
        """Give the last checkpoint and the rounds up to it; rounds after it will be played again."""
        checkpoint = self._load_checkpoint()
        file = self.path / "rounds.jsonl"
        records: list[dict[str, Any]] = []
        last = checkpoint.round if checkpoint else 0
        if file.exists():
            for line in file.read_text().splitlines():
                try:
                    record = json.loads(line)
                    if record["round"] <= last:
                        records.append(record)
                except (ValueError, TypeError, KeyError):  # the line that a kill cut short
                    break
        if len(records) < last:
            raise StoreError(f"{file} has lost rounds of a run that reached {last}; remove {self.path}")
        self.write_text("rounds.jsonl", "".join(_line(record) for record in records))
        return checkpoint, [
            {**r, "accuracy": _number(r["accuracy"]), "ari": _number(r["ari"])} for r in records
        ]

    def add_round(self, record: dict[str, Any]) -> None:
        """Append a finished round."""
        file = self.path / "rounds.jsonl"
        try:
            with file.open("a") as out:
                out.write(_line(record))
        except OSError as problem:
            raise StoreError(f"{file} cannot be written: {problem.strerror}") from problem

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint in place of the one before."""
        head = {"round": checkpoint.round, "ledger": checkpoint.ledger, "wall_s": checkpoint.wall_s}
        head_bytes = np.frombuffer(json.dumps(head).encode(), np.uint8)
        arrays: dict[str, Any] = {"head": head_bytes, **checkpoint.arrays}
        with (self.path / "rounds.jsonl").open("a") as file:  # a checkpoint is never ahead of its rounds
            os.fsync(file.fileno())
        self._replace("checkpoint.npz", lambda file: np.savez(file, **arrays), 0o600)  # what clients told

    def _load_checkpoint(self) -> Checkpoint | None:
        file = self.path / "checkpoint.npz"
        if not file.exists():
            return None
        try:
            with file.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in archive.files}
            head = json.loads(arrays.pop("head").tobytes())
        except (ValueError, OSError, KeyError, BadZipFile) as problem:
            raise StoreError(f"{file} is damaged; remove {self.path} to start the run again") from problem
        return Checkpoint(head["round"], arrays, head["ledger"], head["wall_s"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which ends the run, and drop the checkpoint."""
        self.write_json("summary.json", summary)
        (self.path / "checkpoint.npz").unlink(missing_ok=True)
        self.key_file.unlink(missing_ok=True)

    def _replace(self, name: str, write: Any, mode: int = 0o666) -> None:
        part = self.path / f".{name}.part"
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / name)
        except OSError as problem:
            part.unlink(missing_ok=True)
            raise StoreError(f"{self.path / name} cannot be written: {problem.strerror}") from problem


def run_path(out: Path, name: str, config_hash: str, seed: int) -> Path:
    """Tell where a run lives."""
    return out / name / config_hash / str(seed)


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None, all the way down: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of a run's folder."""
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except ValueError as problem:
        raise StoreError(f"{file} is damaged; remove {file.parent} to start the run again") from problem
    return content


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(without_nan(record)) + "\n"


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _locked(path: Path) -> IO[str]:
    """Open a file that only one process may hold; BlockingIOError where another does."""
    file = path.open("w")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on this system: do without
        pass
    except OSError:
        file.close()
        raise
    return file
