"""A site's own samples: from the app's `load`, from an npz, or from a folder of images."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.data.formats import check_client
from flameche.errors import DataError
from flameche.experiments.deployment import OwnData
from flameche.rng import stream

TEST_SHARE = 0.2  # of a site's samples, where it has no test samples of its own
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif"}


def from_hook(given: Any, source: str, classes: str, seed: int, number: int) -> OwnData:
    """Take what an app's `load` gave: (x, y), or a mapping with x, y and perhaps test_x, test_y."""
    if isinstance(given, OwnData):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        given = {"x": given[0], "y": given[1]}
    if not isinstance(given, Mapping) or not {"x", "y"} <= given.keys():
        raise DataError(f"{source} gave a {type(given).__name__}; expected images and labels: (x, y)")
    arrays = {key: np.asarray(value) for key, value in given.items() if key in ("x", "y", "test_x", "test_y")}
    return from_arrays(arrays, source, classes, seed, number)


def from_path(path: Path, classes: str, seed: int, number: int) -> OwnData:
    """Read an npz with x and y (and test_x, test_y), or a folder with a folder of images for each class."""
    arrays = _read_folder(path, _names(classes)) if path.is_dir() else _read_npz(path)
    return from_arrays(arrays, str(path), classes, seed, number)


def from_arrays(
    arrays: Mapping[str, NDArray[Any]], source: str, classes: str, seed: int, number: int
) -> OwnData:
    """Check a site's arrays, and part them where no test samples were given."""
    shape = image_shape(arrays["x"], source)
    labels = [arrays[key] for key in ("y", "test_y") if key in arrays]
    known = (
        len(_names(classes))
        or _count(classes)
        or 1 + max((int(y.max()) for y in labels if y.size), default=0)
    )
    x, y = check_client(source, arrays["x"], arrays["y"], shape, known)
    if "test_x" in arrays and "test_y" in arrays:
        test = check_client(f"{source} (test)", arrays["test_x"], arrays["test_y"], shape, known)
        return OwnData((x, y), test, known)
    order = stream(seed, "own test samples", number).permutation(len(y))
    first = min(max(1, round(TEST_SHARE * len(y))), max(len(y) - 2, 0))
    test_at, train_at = np.sort(order[:first]), np.sort(order[first:])
    return OwnData((x[train_at], y[train_at]), (x[test_at], y[test_at]), known)


def image_shape(x: NDArray[Any], source: str) -> tuple[int, int, int]:
    """Tell the images' (channels, height, width): [n H W], [n H W Ch] or [n Ch H W], Ch up to 4."""
    if x.ndim == 3:
        return 1, int(x.shape[1]), int(x.shape[2])
    if x.ndim == 4 and x.shape[3] <= 4:
        return int(x.shape[3]), int(x.shape[1]), int(x.shape[2])
    if x.ndim == 4 and x.shape[1] <= 4:
        return int(x.shape[1]), int(x.shape[2]), int(x.shape[3])
    raise DataError(
        f"{source}: x has shape {list(x.shape)}, expected images [n H W], [n H W Ch] or [n Ch H W]"
    )


def _names(classes: str) -> list[str]:
    return [] if _count(classes) else [name.strip() for name in classes.split(",") if name.strip()]


def _count(classes: str) -> int:
    return int(classes) if classes.isdigit() else 0


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("x", "y", "test_x", "test_y") if key in file.files}
    except FileNotFoundError as problem:
        raise DataError(f"{path}: no such file; give an npz with x and y, or a folder of images") from problem
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error) as problem:
        raise DataError(
            f"{path}: not an npz file, or damaged; write it with numpy.savez(file, x=…, y=…)"
        ) from problem
    if lacking := " and ".join(key for key in ("x", "y") if key not in arrays):
        raise DataError(f"{path}: missing {lacking}; write it with numpy.savez(file, x=images, y=labels)")
    return arrays


def _read_folder(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read images from folders that are named after classes, or numbered."""
    from PIL import Image, UnidentifiedImageError

    found, labels = [], []
    for folder in sorted(child for child in path.iterdir() if child.is_dir()):
        if folder.name in names:
            label = names.index(folder.name)
        elif folder.name.isdigit() and not names:
            label = int(folder.name)
        else:
            told = ", ".join(names) if names else "numbers; or name them in the app's config (classes)"
            raise DataError(f"{folder}: no class; expected folders named {told}")
        for file in sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGES):
            try:
                with Image.open(file) as image:
                    found.append(np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB")))
            except (OSError, UnidentifiedImageError) as problem:
                raise DataError(f"{file}: not an image that can be read") from problem
            if found[-1].shape != found[0].shape:
                raise DataError(
                    f"{file} is {list(found[-1].shape)}, others are {list(found[0].shape)}; "
                    "bring all to one size"
                )
            labels.append(label)
    if not found:
        raise DataError(f"{path}: no images; expected a folder for each class")
    return {"x": np.stack(found), "y": np.array(labels, np.int64)}
