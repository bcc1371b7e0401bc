"""Load a dataset by name or from an npz file, and tell which ones are at hand.

Files are looked for in `$FLAMECHE_DATA`, by default `~/.cache/flameche`, and downloaded there when missing.
Published files are checked against their published checksums each time they are read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flameche.data.choices import one_of
from flameche.data.download import fetch
from flameche.data.formats import (
    npz_counts,
    parse_cifar_binary,
    parse_cifar_pickle,
    parse_idx,
    read_content,
    read_npz,
    verify,
)
from flameche.data.sources import (
    CIFAR_BATCHES,
    CIFAR_BIN,
    CIFAR_PY,
    SOURCES,
    TEST_X,
    TEST_Y,
    TRAIN_X,
    TRAIN_Y,
    Source,
)
from flameche.errors import DataError
from flameche.registry import DATASETS
from flameche.rng import stream

TEST_SPLITS = ("default", "val", "test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images [N Ch H W] with labels [N]: a training part to deal to clients, a pool to test on."""

    name: str
    classes: int
    train_x: NDArray[np.uint8]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]
    note: str = ""  # where this copy differs from the published one; callers show it

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if x.ndim != 4 or x.dtype != np.uint8 or 0 in x.shape:
                raise DataError(
                    f"{self.name}: {part} images are {x.dtype} {list(x.shape)}, expected uint8 [N, Ch, H, W]"
                )
            if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
                raise DataError(
                    f"{self.name}: {part} labels are {y.dtype} {list(y.shape)}, expected integers [{len(x)}]"
                )
            if y.min() < 0 or y.max() >= self.classes:
                raise DataError(
                    f"{self.name}: {part} labels are {y.min()}…{y.max()}, expected 0…{self.classes - 1}"
                )
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"{self.name}: test images are {list(self.test_x.shape[1:])}, "
                f"expected {list(self.train_x.shape[1:])} as in training"
            )


@dataclass(frozen=True)
class DatasetInfo:
    """One line of `flameche datasets`: what a set holds, whether it is here, and if not what to put where."""

    name: str
    title: str
    channels: int
    size: tuple[int, int]
    classes: int
    train: int
    test: int
    found: bool
    where: Path | None
    missing: str
    note: str


def data_folder(folder: Path | None = None) -> Path:
    """Return `folder` if given, else $FLAMECHE_DATA, else ~/.cache/flameche."""
    return Path(folder or os.environ.get("FLAMECHE_DATA") or "~/.cache/flameche").expanduser()


def load_dataset(name: str, *, test_split: str = "default", folder: Path | None = None) -> Dataset:
    """Load a named dataset; its files are downloaded if they are not there.

    The test pool is the official test split; for sets in MedMNIST's layout it is `val` unless
    `test_split` says "test".
    """
    one_of(test_split, TEST_SPLITS, "data.test_split")
    if name not in SOURCES:
        return _others(name, test_split)
    source = SOURCES[name]
    if source.kind != "npz" and test_split == "val":
        raise DataError(f'{name} has no val split; set data.test_split = "test" or "default"')
    if source.kind == "embedded":
        return _digits()
    root = data_folder(folder)
    if _missing(source, root):
        fetch(source, _missing(source, root), _home(source, root), _remedy(source, root))
    paths = _paths(source, root)
    if still := _missing(source, root):
        raise DataError(f"{source.name}: still missing after the download: {', '.join(still)}")
    if source.kind == "idx":
        return _load_idx(source, paths)
    if source.kind == "cifar":
        return _load_cifar(source, paths)
    return _load_named_npz(source, paths[f"{name}.npz"], test_split)


digits, mnist, fashion_mnist, cifar10, pathmnist, tissuemnist, mednist28 = (
    partial(load_dataset, name) for name in SOURCES
)


def _others(name: str, test_split: str) -> Dataset:
    """Load a dataset that another package, or the user's own module, has."""
    try:
        found = DATASETS[name](test_split=test_split)
    except TypeError as problem:
        raise DataError(f"data.dataset = {name!r} cannot be loaded: {problem}") from problem
    if not isinstance(found, Dataset):
        raise DataError(
            f"data.dataset = {name!r} gave {type(found).__name__}, expected a flameche.data.Dataset"
        )
    return found


def load_npz(path: Path, *, test_split: str = "default") -> Dataset:
    """Load any npz in MedMNIST's layout, {train,val,test}_{images,labels}: uint8, or floats in [0, 1]."""
    one_of(test_split, TEST_SPLITS, "data.test_split")
    path = Path(path).expanduser()
    pool = "val" if test_split == "default" else test_split
    (train_x, train_y), (test_x, test_y), classes = read_npz(path, pool)
    note = f"own file {path.name}, sha256 {_file_hash(path, 'sha256')[:12]}"
    return Dataset(f"own:{path.stem}", classes, train_x, train_y, test_x, test_y, note)


def available(folder: Path | None = None) -> list[DatasetInfo]:
    """List every named dataset: looks for files, identifies npz copies, loads and downloads nothing."""
    own = [_info(source, data_folder(folder)) for source in SOURCES.values()]
    others = [name for name in DATASETS if name not in SOURCES]
    return [*own, *(_foreign_info(name) for name in others)]


def _foreign_info(name: str) -> DatasetInfo:
    """Tell of another package's dataset what can be told without loading it."""
    title = next(iter((DATASETS[name].__doc__ or "").splitlines()), "")
    return DatasetInfo(name, title, 0, (0, 0), 0, 0, 0, True, None, "", "of another package, not loaded here")


def _info(source: Source, root: Path) -> DatasetInfo:
    train, test, note = source.train, source.test, ""
    missing = _remedy(source, root) if _missing(source, root) else ""
    where = None
    if not missing and source.kind != "embedded":
        where = next(iter(_paths(source, root).values()))
        where = where if source.kind == "npz" else where.parent
    if where is not None and source.kind == "npz":
        try:
            note = "" if _is_published(source, where) else "not the published file; checked when loaded"
            counts = npz_counts(where)
            train, test = counts.get("train", 0), counts.get("val", 0)
        except DataError as error:
            missing = str(error)
    return DatasetInfo(
        source.name, source.title, source.channels, source.size, source.classes, train, test,
        not missing, where, missing, note,
    )  # fmt: skip


def _home(source: Source, root: Path) -> Path:
    """Return the folder that the files of `source` belong in."""
    return root / source.name if source.kind == "idx" else root


def _paths(source: Source, root: Path) -> dict[str, Path]:
    """Return the files of `source` that exist, by name; the user's folder comes before the system's."""
    found = {}
    for name in source.files:
        for place in (_home(source, root), *map(Path, source.also)):
            for suffix in ("", ".gz") if source.kind == "idx" else ("",):
                path = place / f"{name}{suffix}"
                if name not in found and path.is_file():
                    found[name] = path
    return found


def _missing(source: Source, root: Path) -> list[str]:
    """Return the names of the files that are not there; for CIFAR-10 either of its two versions will do."""
    missing = [name for name in source.files if name not in _paths(source, root)]
    if source.kind != "cifar":
        return missing
    python = [name for name in missing if name.startswith(CIFAR_PY)]
    return [name for name in missing if name.startswith(CIFAR_BIN)] if python else []


def _remedy(source: Source, root: Path) -> str:
    names = ", ".join(_missing(source, root))
    packed = " (or .gz)" if source.kind == "idx" else ""
    packed = f" (or the six files of {CIFAR_PY})" if source.kind == "cifar" else packed
    home = _home(source, root)
    return f"{source.title} is not there: put {names}{packed} in {home}, or point FLAMECHE_DATA elsewhere"


def _read(source: Source, name: str, path: Path) -> bytes:
    content = read_content(path)
    verify(path, content, source.files[name].content)
    return content


def _load_idx(source: Source, paths: dict[str, Path]) -> Dataset:
    train_x, test_x = (parse_idx(paths[n], _read(source, n, paths[n]), 3)[:, None] for n in (TRAIN_X, TEST_X))
    train_y, test_y = (
        parse_idx(paths[n], _read(source, n, paths[n]), 1).astype(np.int64) for n in (TRAIN_Y, TEST_Y)
    )
    return Dataset(source.name, source.classes, train_x, train_y, test_x, test_y)


def _load_cifar(source: Source, paths: dict[str, Path]) -> Dataset:
    binary = [f"{CIFAR_BIN}/{batch}.bin" for batch in CIFAR_BATCHES]
    python = [f"{CIFAR_PY}/{batch}" for batch in CIFAR_BATCHES]
    if all(name in paths for name in binary):
        batches = [parse_cifar_binary(paths[n], _read(source, n, paths[n])) for n in binary]
    else:
        batches = [parse_cifar_pickle(paths[n], _read(source, n, paths[n])) for n in python]
    train_x, train_y = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
    test_x, test_y = batches[-1]
    return Dataset(source.name, source.classes, train_x, train_y, np.ascontiguousarray(test_x), test_y)


def _load_named_npz(source: Source, path: Path, test_split: str) -> Dataset:
    pool = "val" if test_split == "default" else test_split
    (train_x, train_y), (test_x, test_y), classes = read_npz(path, pool)
    expected = (source.channels, *source.size)
    if train_x.shape[1:] != expected:
        raise DataError(f"{path}: images are {list(train_x.shape[1:])}, {source.title} has {list(expected)}")
    if classes > source.classes:
        raise DataError(
            f"{path}: a label is {classes - 1}, {source.title} has classes 0…{source.classes - 1}"
        )
    note = ""
    if not _is_published(source, path):
        note = _known(source, path, train_x, train_y)
        _known(source, path, test_x, test_y)
    return Dataset(source.name, source.classes, train_x, train_y, test_x, test_y, note)


def _is_published(source: Source, path: Path) -> bool:
    algorithm, _, digest = source.files[path.name].content.partition(":")
    return bool(digest) and _file_hash(path, algorithm) == digest


def _known(source: Source, path: Path, x: NDArray[np.uint8], y: NDArray[np.int64]) -> str:
    """Say what is known of a split of a copy that is not the published file; refuse one that is not known."""
    digest = hashlib.sha256(x.tobytes() + y.astype("<i8").tobytes()).hexdigest()
    if digest not in source.known:
        raise DataError(
            f"{path} is not {source.title} as published: another checksum, so it may be damaged; "
            "replace it, or use it as a set of your own with data.path"
        )
    return source.known[digest]


def _file_hash(path: Path, algorithm: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from error


def _digits() -> Dataset:
    """scikit-learn's 1797 digits, 0…16 spread over 0…255; a fixed quarter of each class is the test pool."""
    from sklearn.datasets import load_digits  # slow to import, and only this set needs it

    bunch = load_digits()
    x = np.rint(bunch.images * 255 / 16).astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    test = np.zeros(len(y), bool)
    for label in range(10):
        members = np.flatnonzero(y == label)
        test[stream(0, "data", "digits", label).permutation(members)[: round(len(members) / 4)]] = True
    return Dataset("digits", 10, x[~test], y[~test], x[test], y[test])
