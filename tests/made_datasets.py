"""Small datasets in the publishers' formats, under the names and in the places of the published ones."""

import gzip
import hashlib
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flameche.data import sources

IDX = (sources.TRAIN_X, sources.TRAIN_Y, sources.TEST_X, sources.TEST_Y)


def tell(monkeypatch: pytest.MonkeyPatch, name: str, contents: dict[str, bytes], algorithm: str) -> None:
    """Let the checksum table of `name` expect `contents`."""
    sums = {
        file: sources.Published(f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")
        for file, content in contents.items()
    }
    source = sources.SOURCES[name]
    monkeypatch.setitem(sources.SOURCES, name, replace(source, files={**source.files, **sums}, also=()))


def idx_set(folder: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool, name: str = "mnist") -> None:
    rng = np.random.default_rng(0)
    contents = {}
    for file, n in zip(IDX, (20, 20, 10, 10), strict=True):
        shape = (n, 28, 28) if "images" in file else (n,)
        values = rng.integers(0, 10, shape, dtype=np.uint8)
        contents[file] = (
            bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()
        )
    (folder / name).mkdir(parents=True)
    for file, content in contents.items():
        path = folder / name / (file + ".gz" if packed else file)
        path.write_bytes(gzip.compress(content) if packed else content)
    tell(monkeypatch, name, contents, "sha256")


def cifar_set(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    rng = np.random.default_rng(0)
    contents = {}
    for batch in sources.CIFAR_BATCHES:
        rows = rng.integers(0, 10, (4, 3073), dtype=np.uint8)
        if version == sources.CIFAR_BIN:
            contents[f"{version}/{batch}.bin"] = rows.tobytes()
        else:
            python = {b"data": rows[:, 1:], b"labels": rows[:, 0].tolist()}
            contents[f"{version}/{batch}"] = pickle.dumps(python, protocol=3)
    (folder / version).mkdir(parents=True)
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    tell(monkeypatch, "cifar10", contents, "md5")


def npz_set(path: Path, classes: int) -> None:
    y = np.arange(2 * classes) % classes
    arrays = {f"{s}_labels": y[:, None] for s in ("train", "val", "test")}
    arrays |= {f"{s}_images": np.zeros((len(y), 28, 28, 3), np.uint8) for s in ("train", "val", "test")}
    np.savez(path, **arrays)
