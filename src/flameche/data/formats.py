"""Readers of the publishers' file formats: idx, CIFAR-10 (binary and Python version), MedMNIST's npz.

Each takes a file that already matches its checksum, or one of the user's own, and returns images
[N Ch H W] uint8 with labels [N] int64, or a DataError that names the file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

SPLITS = ("train", "val", "test")
POOLED_KEYS = tuple(f"{split}_{kind}" for split in SPLITS for kind in ("images", "labels"))
CLIENT_KEYS = ("x", "y", "test_x", "test_y")
FEW_LEVELS, LOST = 16, 4  # floats may not end as fewer levels than that, having had so many times more
CIFAR_ROW = 1 + 3 * 32 * 32


def read_content(path: Path) -> bytes:
    """Return the bytes of `path`, unpacked if its name ends in .gz."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({_brief(error)}); delete it and get it again") from error


def verify(path: Path, content: bytes, expected: str) -> None:
    """Refuse `content` unless its checksum is `expected`, written "algorithm:hex"."""
    algorithm, _, digest = expected.partition(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != digest:
        raise DataError(
            f"{path}: expected {algorithm} {digest}, found {found} in {len(content)} bytes; "
            "it is truncated or not the published file, delete it and get it again"
        )


def parse_idx(path: Path, content: bytes, ndim: int) -> NDArray[np.uint8]:
    """Parse an idx file of unsigned bytes: magic 00 00 08 ndim, big-endian sizes, values."""
    head = 4 + 4 * ndim
    if len(content) < head or content[:4] != bytes([0, 0, 8, ndim]):
        raise DataError(
            f"{path}: expected an idx file that starts with 000008{ndim:02x}, "
            f"found {content[:4].hex() or 'nothing'}; delete it and get it again"
        )
    shape = struct.unpack(f">{ndim}I", content[4:head])
    need = head + int(np.prod(shape, dtype=object))
    if len(content) != need:
        raise DataError(f"{path}: expected {need} bytes, found {len(content)}; delete it and get it again")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()  # writable, as torch wants


def parse_cifar_binary(path: Path, content: bytes) -> tuple[Images, Labels]:
    """Parse CIFAR-10's binary version: rows of one label byte and 3 x 32 x 32 pixels."""
    if not content or len(content) % CIFAR_ROW:
        raise DataError(
            f"{path}: expected rows of {CIFAR_ROW} bytes, found {len(content)}; delete it and get it again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


class _ArraysOnly(pickle.Unpickler):
    """Unpickle containers and numpy arrays; anything else a pickle could call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            return import_module("numpy._core.multiarray")._reconstruct
        raise pickle.UnpicklingError(f"refused to load {module}.{name}")


def parse_cifar_pickle(path: Path, content: bytes) -> tuple[Images, Labels]:
    """Parse a batch of CIFAR-10's Python version. Call `verify` first: a pickle is a program."""
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        x = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
        y = np.asarray(batch[b"labels"], np.int64)
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: not a CIFAR-10 batch ({_brief(error)}); delete it and get it again"
        ) from error
    return x, y


def read_npz(path: Path, pool: str) -> tuple[tuple[Images, Labels], tuple[Images, Labels], int]:
    """Read a MedMNIST-layout npz: train, the split `pool`, and the number of classes over all splits."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path}: not an npz file, or truncated; get or write it again")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                _require_arrays(path, arrays.files, pool)
                labels = {
                    split: _labels(path, f"{split}_labels", arrays[f"{split}_labels"])
                    for split in SPLITS
                    if f"{split}_labels" in arrays.files
                }
                images = {
                    split: _images(path, f"{split}_images", arrays[f"{split}_images"])
                    for split in ("train", pool)
                }
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; give the path of a MedMNIST-layout npz") from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{path}: damaged ({_brief(error)}); get or write it again") from error
    for split, x in images.items():
        if len(x) != len(labels[split]):
            raise DataError(f"{path}: {split} has {len(x)} images but {len(labels[split])} labels")
    classes = 1 + max(int(y.max()) for y in labels.values())
    if classes > len(labels["train"]):
        raise DataError(
            f"{path}: a label is {classes - 1}, but there are only {len(labels['train'])} training samples; "
            "number the classes 0, 1, 2, …"
        )
    if len(unused := np.setdiff1d(np.arange(classes), np.concatenate(list(labels.values())))):
        raise DataError(
            f"{path}: labels go up to {classes - 1}, but no sample has label {unused[0]}; "
            "number the classes 0, 1, 2, … without gaps"
        )
    return (images["train"], labels["train"]), (images[pool], labels[pool]), classes


def read_client(path: Path, shape: tuple[int, int, int], classes: int) -> tuple[Images, Labels]:
    """Read one client's npz, x and y, for a model of images of `shape` (Ch, H, W) and so many classes."""
    arrays = client_arrays(path)
    return check_client(str(path), arrays["x"], arrays["y"], shape, classes)


def client_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of one client's npz: x, y and perhaps test_x, test_y; any other is refused."""
    how = "write it with numpy.savez(file, x=images, y=labels)"
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path}: not an npz file; {how}", public="its file is not an npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as npz:
                check_client_keys(str(path), npz.files)
                return {key: npz[key] for key in npz.files}
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; give an npz with x and y", public="the file of its data is not there"
        ) from error
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: damaged ({_brief(error)}); write it again", public="the file of its data is damaged"
        ) from error


def check_client_keys(source: str, held: Collection[str]) -> None:
    """Refuse one client's arrays where x or y is missing, or where there are others than are read."""
    missing = " and ".join(name for name in ("x", "y") if name not in held)
    if missing:
        raise DataError(
            f"{source}: missing {missing}, holds {', '.join(held)}; "
            "write it with numpy.savez(file, x=images, y=labels)",
            public=f"its data lack {missing}; expected images x and labels y",
        )
    if unknown := [name for name in held if name not in CLIENT_KEYS]:
        raise DataError(
            f"{source}: holds {', '.join(unknown)}, which nothing reads; leave it out: read are "
            f"{', '.join(CLIENT_KEYS)}",
            public=f"its data hold more arrays than are read: {', '.join(CLIENT_KEYS)}",
        )
    if ("test_x" in held) != ("test_y" in held):
        both = "test_x and test_y belong together; give both or neither"
        raise DataError(f"{source}: {both}", public=both)


def check_client(
    source: str, x: NDArray[Any], y: NDArray[Any], shape: tuple[int, int, int], classes: int
) -> tuple[Images, Labels]:
    """Bring one client's images, with channels first, last or none, into one form; check its labels."""
    where = Path(source)
    labels = _labels(where, "y", y)
    if x.ndim == 4 and (x.shape[1:] == shape or (x.shape[1] == shape[0] and x.shape[3] > 4)):
        x = x.transpose(0, 2, 3, 1)
    images = _images(where, "x", x)
    if images.shape[1:] != shape:
        raise DataError(
            f"{source}: images are {list(images.shape[1:])}, the run's are {list(shape)} "
            "(channels, height, width)",
            public=f"its images are {list(images.shape[1:])}, the run's are {list(shape)}",
        )
    if len(images) != len(labels):
        counts = f"x has {len(images)} images, but y {len(labels)} labels"
        raise DataError(f"{source}: {counts}", public=counts)
    if int(labels.max()) >= classes:
        raise DataError(
            f"{source}: y holds {int(labels.max())}, the run's classes are 0 to {classes - 1}",
            public=f"its labels go beyond the run's classes, expected 0 to {classes - 1}",
        )
    return images, labels


def npz_counts(path: Path) -> dict[str, int]:
    """Return how many labels each split of an npz has, without reading its images."""
    try:
        # Opened here: numpy leaves a file open that is no zip.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            return {s: len(arrays[f"{s}_labels"]) for s in SPLITS if f"{s}_labels" in arrays.files}
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: damaged ({_brief(error)}); get or write it again") from error


def _require_arrays(path: Path, held: Collection[str], pool: str) -> None:
    if unknown := [name for name in held if name not in POOLED_KEYS]:
        raise DataError(
            f"{path}: holds {', '.join(unknown)}, which nothing reads; leave it out: read are "
            f"{', '.join(POOLED_KEYS)}. Who has which sample cannot be told here: samples are dealt out to "
            "clients; where sites have their own, write one file a site and use `flameche deploy` "
            "(docs/deploy.md)"
        )
    wanted = [split for split in SPLITS if split in ("train", pool) or f"{split}_images" in held]
    missing = [f"{s}_{kind}" for s in wanted for kind in ("images", "labels") if f"{s}_{kind}" not in held]
    if not missing:
        return
    other = next((s for s in ("test", "val") if s != pool and f"{s}_images" in held), None)
    only_pool = all(name.startswith(pool) for name in missing)
    hint = f'; set data.test_split = "{other}" to score on that split' if only_pool and other else ""
    raise DataError(f"{path}: missing {', '.join(missing)}{hint}")


def _labels(path: Path, name: str, y: NDArray[Any]) -> Labels:
    if y.ndim not in (1, 2) or (y.ndim == 2 and y.shape[1] != 1):
        what = f"{name} has shape {list(y.shape)}, expected one label per image, [N] or [N, 1]"
        raise DataError(f"{path}: {what}", public=what)
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(
            f"{path}: {name} is {y.dtype}, expected integers 0, 1, 2, …; "
            "numpy.unique(labels, return_inverse=True)[1] numbers the classes",
            public=f"{name} is {y.dtype}, expected integers 0, 1, 2, …",
        )
    _refuse_masked(path, name, y)
    if y.size == 0:
        raise DataError(f"{path}: {name} is empty", public=f"{name} is empty")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high > np.iinfo(np.int32).max:
        raise DataError(
            f"{path}: {name} holds {low if low < 0 else high}, expected classes 0, 1, 2, …; "
            "numpy.unique(labels, return_inverse=True)[1] numbers them so",
            public=f"{name} holds other numbers than classes 0, 1, 2, …",
        )
    return y.reshape(-1).astype(np.int64)


def _images(path: Path, name: str, x: NDArray[Any]) -> Images:
    if x.ndim not in (3, 4) or (x.ndim == 4 and not 1 <= x.shape[3] <= 4) or 0 in x.shape:
        what = f"{name} has shape {list(x.shape)}, expected [N, H, W], or [N, H, W, Ch] with 1 to 4 channels"
        raise DataError(f"{path}: {what}", public=what)
    _refuse_masked(path, name, x)
    if np.issubdtype(x.dtype, np.floating):
        if np.isnan(x).any():
            raise DataError(
                f"{path}: {name} has {int(np.isnan(x).sum())} NaN values, expected floats in [0, 1]; "
                "replace them, or leave those samples out",
                public=f"{name} has NaN values, expected floats in [0, 1]",
            )
        if x.min() < 0 or x.max() > 1:
            raise DataError(
                f"{path}: {name} ranges over [{x.min():.9g}, {x.max():.9g}], expected floats in [0, 1] or "
                "uint8; rescale them, in the same way for all clients",
                public=f"{name} has values outside of [0, 1], expected floats in [0, 1] or uint8",
            )
        rounded = np.rint(x * 255).astype(np.uint8)
        _refuse_collapsed(path, name, x, rounded)
        x = rounded
    elif x.dtype != np.uint8:
        remedy = "convert them"
        if np.issubdtype(x.dtype, np.integer):
            fit = x.min() >= 0 and x.max() <= 255
            remedy = f"they go from {x.min()} to {x.max()}: " + ("use astype" if fit else "rescale them")
        raise DataError(
            f"{path}: {name} is {x.dtype}, expected uint8 or floats in [0, 1]; {remedy}, "
            "in the same way for all clients",
            public=f"{name} is {x.dtype}, expected uint8 or floats in [0, 1]",
        )
    x = x[..., None] if x.ndim == 3 else x
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _refuse_collapsed(path: Path, name: str, x: NDArray[Any], rounded: Images) -> None:
    """Refuse floats so close together that 8 bits keep hardly any of them; compared with 16 bits."""
    left = len(np.unique(rounded))
    if left >= FEW_LEVELS:
        return
    wide = np.multiply(x, 65535, dtype=np.result_type(x.dtype, np.float32))
    low, high = float(x.min()), float(x.max())
    constant = left == 1 and not np.isclose(low, high, rtol=1e-5, atol=0)
    if constant or len(np.unique(np.rint(wide))) >= LOST * left:
        raise DataError(
            f"{path}: {name} ranges over [{low:.9g}, {high:.9g}], which 8 bits round to {left} "
            f"value{'s' if left > 1 else ''}; rescale to all of [0, 1], in the same way for all clients",
            public=f"{name} has floats so close together that 8 bits lose them; rescale to all of [0, 1]",
        )


def _refuse_masked(path: Path, name: str, array: NDArray[Any]) -> None:
    if np.ma.is_masked(array):
        what = f"{name} has masked values, which would be lost; fill them, or leave them out"
        raise DataError(f"{path}: {what}", public=what)


def _brief(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
