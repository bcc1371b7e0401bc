"""Images from files: a folder with one folder of images for each class, read without loss or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flameche.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif"}
# Suffixes that an error for others may quote; any other text after a dot could be part of a person's name.
KNOWN_SUFFIXES = {
    ".webp", ".dcm", ".heic", ".avif", ".jp2", ".svg", ".pdf", ".npy", ".npz", ".csv", ".txt", ".json",
}  # fmt: skip
GREY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA")  # modes of Pillow that have 8 bits a channel
BITS_PER_SAMPLE, SAMPLE_FORMAT, UNSIGNED = 258, 339, 1  # tags of a TIFF file, and a value of the latter


def image_shape(x: NDArray[Any], source: str) -> tuple[int, int, int]:
    """Return the images' (channels, height, width); x [n H W], [n H W Ch] or [n Ch H W], Ch up to 4."""
    if x.ndim == 3:
        return 1, int(x.shape[1]), int(x.shape[2])
    if x.ndim == 4 and x.shape[3] <= 4:
        return int(x.shape[3]), int(x.shape[1]), int(x.shape[2])
    if x.ndim == 4 and x.shape[1] <= 4:
        return int(x.shape[1]), int(x.shape[2]), int(x.shape[3])
    problem = f"x has shape {list(x.shape)}, expected images [n H W], [n H W Ch] or [n Ch H W]"
    raise DataError(f"{source}: {problem}", public=problem)


def read_image_folder(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read images x and labels y from folders named after the classes, or numbered if there are no names.

    Raises:
        DataError: if a folder is not a class, a file is not an image, or images differ in shape.
    """
    images, labels = [], []
    for folder in sorted(child for child in path.iterdir() if child.is_dir()):
        if folder.name in names:
            label = names.index(folder.name)
        elif folder.name.isdecimal() and not names:
            label = int(folder.name)
        else:
            expected = ", ".join(names) if names else "numbers; or name them in the app's config (classes)"
            raise DataError(
                f"{folder}: not a class; expected folders named {expected}",
                public=f"one of its folders is not a class; expected folders named {expected}",
            )
        for file in _images_in(folder):
            images.append(read_image(file))
            if images[-1].shape != images[0].shape:
                raise DataError(
                    f"{file} is {list(images[-1].shape)}, others are {list(images[0].shape)}; "
                    "bring all to one size, and all to grey or all to colour",
                    public="its images have different shapes, expected one size, and all grey or all colour",
                )
            labels.append(label)
    if not images:
        problem = "no images; expected a folder for each class"
        raise DataError(f"{path}: {problem}", public=problem)
    return {"x": np.stack(images), "y": np.array(labels, np.int64)}


def _images_in(folder: Path) -> list[Path]:
    """List a folder's images; refuse any other file that is not hidden, because it may hold samples too."""
    files = sorted(folder.iterdir())
    for file in files:
        suffix = file.suffix.lower()
        if file.is_dir():
            found = "folder"
        elif suffix in IMAGE_SUFFIXES or file.name.startswith("."):
            continue
        else:
            found = f"{suffix} file" if suffix in KNOWN_SUFFIXES else "file of another kind"
        expected = f"expected images only: {' '.join(sorted(IMAGE_SUFFIXES))}"
        raise DataError(
            f"{file}: not an image that can be read; {expected}",
            public=f"a {found} lies in one of its folders of images; {expected}",
        )
    return [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]


def read_image(file: Path) -> NDArray[np.uint8]:
    """Read an image, grey [H W] or colour [H W 3]; refuse one that 8 bits a channel cannot hold."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            if problem := _loss(image):
                raise DataError(f"{file}: {problem}", public=f"an image cannot be used: it is {problem}")
            return np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
    except OSError as problem:
        raise DataError(
            f"{file}: not an image that can be read", public="one of its images cannot be read"
        ) from problem


def _loss(image: Image.Image) -> str:
    """Describe what an image would lose in 8-bit grey or RGB, and the remedy; empty if nothing."""
    kind = f"a {image.format} of mode {image.mode}"
    if image.mode.startswith(("I", "F")) or not _has_8_bits(image):
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


def _has_8_bits(image: Image.Image) -> bool:
    """Return whether the file has at most 8 bits a channel: Pillow silently halves 16 bits in colour."""
    if tags := getattr(image, "tag_v2", None):
        formats = set(tags.get(SAMPLE_FORMAT, (UNSIGNED,)))
        return max(tags.get(BITS_PER_SAMPLE, (1,))) <= 8 and formats == {UNSIGNED}
    layouts = [str(tile[3]) for tile in getattr(image, "tile", [])]
    return not any(
        ";16" in layout and "BGR;16" not in layout for layout in layouts
    )  # BGR;16: 5 or 6 bits each
