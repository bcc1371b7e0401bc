"""A site's own samples: from the app's `load`, from an npz, or from a folder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flameche.data.formats import check_client, check_client_keys, client_arrays
from flameche.errors import DataError
from flameche.experiments.deployment import OwnData
from flameche.flower.settings import class_count, class_names
from flameche.rng import stream

if TYPE_CHECKING:
    from PIL import Image

TEST_SHARE = 0.2  # of a site's samples, where it has no test samples of its own
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif"}
# Ends of names that the operator may be told; another could be a part of a person's name.
TELLING = {".webp", ".dcm", ".heic", ".avif", ".jp2", ".svg", ".pdf", ".npy", ".npz", ".csv", ".txt", ".json"}
GREY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA")  # modes of Pillow that have 8 bits a channel
BITS_PER_SAMPLE, SAMPLE_FORMAT, UNSIGNED = 258, 339, 1  # tags of a TIFF file, and a value of the latter


def from_hook(given: Any, source: str, classes: str, seed: int, number: int) -> OwnData:
    """Take what an app's `load` gave: (x, y), or a mapping with x, y and perhaps test_x, test_y."""
    if isinstance(given, OwnData):
        if given.classes != class_count(classes):
            what = (
                f'{source} gave data of {given.classes} classes; the app\'s config says classes = "{classes}"'
            )
            raise DataError(what, public=what)
        return given
    if isinstance(given, tuple) and len(given) == 2:
        given = {"x": given[0], "y": given[1]}
    if not isinstance(given, Mapping) or not {"x", "y"} <= given.keys():
        what = f"{source} gave a {type(given).__name__}; expected images and labels: (x, y)"
        raise DataError(what, public=what)
    check_client_keys(source, list(given))
    arrays = {key: np.asanyarray(value) for key, value in given.items()}  # masked arrays are refused as such
    return from_arrays(arrays, source, classes, seed, number)


def from_path(path: Path, classes: str, seed: int, number: int) -> OwnData:
    """Read an npz with x and y (and test_x, test_y), or a folder with a folder of images for each class."""
    arrays = _read_folder(path, class_names(classes)) if path.is_dir() else client_arrays(path)
    return from_arrays(arrays, str(path), classes, seed, number)


def from_arrays(
    arrays: Mapping[str, NDArray[Any]], source: str, classes: str, seed: int, number: int
) -> OwnData:
    """Check a site's arrays, and part them where no test samples were given."""
    shape = image_shape(arrays["x"], source)
    known = class_count(classes)
    x, y = check_client(source, arrays["x"], arrays["y"], shape, known)
    if "test_x" in arrays:
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
    what = f"x has shape {list(x.shape)}, expected images [n H W], [n H W Ch] or [n Ch H W]"
    raise DataError(f"{source}: {what}", public=what)


def _read_folder(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read images from folders that are named after classes, or numbered."""
    found, labels = [], []
    for folder in sorted(child for child in path.iterdir() if child.is_dir()):
        if folder.name in names:
            label = names.index(folder.name)
        elif folder.name.isdecimal() and not names:
            label = int(folder.name)
        else:
            told = ", ".join(names) if names else "numbers; or name them in the app's config (classes)"
            raise DataError(
                f"{folder}: no class; expected folders named {told}",
                public=f"one of its folders is no class; expected folders named {told}",
            )
        for file in _images_in(folder):
            found.append(read_image(file))
            if found[-1].shape != found[0].shape:
                raise DataError(
                    f"{file} is {list(found[-1].shape)}, others are {list(found[0].shape)}; "
                    "bring all to one size, and all to grey or all to colour",
                    public="its images have different shapes, expected one size, and all grey or all colour",
                )
            labels.append(label)
    if not found:
        what = "no images; expected a folder for each class"
        raise DataError(f"{path}: {what}", public=what)
    return {"x": np.stack(found), "y": np.array(labels, np.int64)}


def _images_in(folder: Path) -> list[Path]:
    """List a folder's images; refuse what else is there, as it may be samples too, but for hidden files."""
    files = sorted(folder.iterdir())
    for file in files:
        kind = file.suffix.lower()
        if file.is_dir():
            what = "folder"
        elif kind in IMAGES or file.name.startswith("."):
            continue
        else:
            what = f"{kind} file" if kind in TELLING else "file of another kind"
        expected = f"expected images alone: {' '.join(sorted(IMAGES))}"
        raise DataError(
            f"{file}: not an image that is read; {expected}",
            public=f"a {what} lies in one of its folders of images; {expected}",
        )
    return [file for file in files if file.suffix.lower() in IMAGES]


def read_image(file: Path) -> NDArray[np.uint8]:
    """Read an image as it is, grey [H W] or colour [H W 3]; refuse what 8 bits a channel cannot hold."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            if reason := _would_lose(image):
                raise DataError(f"{file}: {reason}", public=f"an image cannot be used: it is {reason}")
            return np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
    except OSError as problem:
        raise DataError(
            f"{file}: not an image that can be read", public="one of its images cannot be read"
        ) from problem


def _would_lose(image: Image.Image) -> str:
    """Tell what of an image would be lost in 8-bit grey or RGB, and what to do about it; "": nothing."""
    kind = f"a {image.format} of mode {image.mode}"
    if image.mode.startswith(("I", "F")) or not _has_bytes(image):
        return (
            f"{kind} with values that are not whole numbers from 0 to 255; rescale them, in the same way for "
            "all images of all sites, and save it with 8 bits (L or RGB)"
        )
    if image.mode not in (*GREY, *COLOUR):
        return (
            f"{kind}, expected grey (L), RGB or a palette (P); convert it to one of these and save it again"
        )
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        return (
            f"{kind} that is transparent in places; put it on a background and save it without transparency"
        )
    pictures = getattr(image, "n_frames", 1)
    if pictures > 1 and image.format != "MPO":  # a photo, followed by previews of it
        return f"{kind} that holds {pictures} pictures; save each as a file of its own"
    return ""


def _has_bytes(image: Image.Image) -> bool:
    """Tell if the file has at most 8 bits a channel: of 16 in colour, Pillow drops half without a word."""
    if tags := getattr(image, "tag_v2", None):
        formats = set(tags.get(SAMPLE_FORMAT, (UNSIGNED,)))
        return max(tags.get(BITS_PER_SAMPLE, (1,))) <= 8 and formats == {UNSIGNED}
    layouts = [
        str(tile[3]) for tile in getattr(image, "tile", [])
    ]  # such as RGB;16B; BGR;16 is 5 or 6 bits each
    return not any(";16" in layout and "BGR;16" not in layout for layout in layouts)
