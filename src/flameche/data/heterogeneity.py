"""What makes the groups differ: a transform of images and labels per group, a label distribution per client.

Settings (the paper's): `csl` concept shift on labels, `fds` feature distribution skew, `csf` concept shift
on features with label skew. Every group's transform is a chain of steps joined by `+`:

    none   swap:1,7   rotate:90   erode:3   dilate:8   channels:1,0,2   zoom   invert   invert+zoom

`swap` touches labels only, everything else pixels only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flameche.data import images
from flameche.data.choices import one_of
from flameche.errors import DataError

SETTING_TITLES = {
    "csl": "concept shift on labels",
    "fds": "feature distribution skew",
    "csf": "concept shift on features, label skew",
}
SETTINGS = ("none", *SETTING_TITLES)
STEPS = ("none", "swap", "rotate", "erode", "dilate", "channels", "zoom", "invert")
ZOOMS = ("crop", "resize")
SKEW_SPLITS = ("even", "authors")

# Pairs swapped by `csl`. MNIST, Fashion-MNIST: the authors' code. CIFAR-10: the pairs that the paper prints,
# taken for every other set that has these labels. Fewer classes: three pairs that share a label, one apart.
SWAPS = {
    "cifar10": ((0, 2), (1, 7), (0, 5), (4, 7)),
    "digits": ((1, 7), (2, 7), (4, 7), (3, 8)),
    "mnist": ((1, 7), (2, 7), (4, 7), (3, 8)),
    "fashion-mnist": ((1, 7), (2, 7), (4, 7), (3, 8)),
    "pathmnist": ((0, 2), (1, 7), (0, 5), (4, 7)),
    "tissuemnist": ((0, 2), (1, 7), (0, 5), (4, 7)),
    "mednist28": ((1, 5), (2, 5), (4, 5), (0, 3)),
}
SWAPS_BY_CLASSES = {  # for sets of the user's own: the most classes that they have
    9: ((0, 2), (1, 7), (0, 5), (4, 7)),
    8: ((0, 2), (1, 7), (0, 5), (4, 7)),
    6: ((1, 5), (2, 5), (4, 5), (0, 3)),
    4: ((0, 1), (0, 2), (1, 3), (2, 3)),
    3: ((0, 1), (0, 2), (1, 2)),
    2: ((0, 1),),
}
MORPHOLOGY = ("erode:3", "dilate:3", "dilate:8", "none")
ROTATIONS = ("none", "rotate:90", "rotate:180", "rotate:270")
GREY_SHIFTS = ("none", "zoom", "invert", "invert+zoom")
FEATURE_SHIFTS = {  # `csf`; sets that are not named here rotate
    "pathmnist": ("channels:0,1,2", "channels:1,0,2", "channels:2,1,0", "channels:0,2,1"),
    "tissuemnist": GREY_SHIFTS,
    "mednist28": GREY_SHIFTS,
}

# Share of the samples kept per label 0…9; "left" and "right" are straight lines.
SHARES = {
    "normal": (0.05, 0.2875, 0.525, 0.7625, 0.95, 0.7625, 0.525, 0.2875, 0.10, 0.05),
    "anti-normal": (0.95, 0.7125, 0.475, 0.2375, 0.05, 0.1, 0.2375, 0.475, 0.7125, 0.95),
    "left": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    "right": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
}
UNSKEWED = "unskewed"


@dataclass(frozen=True)
class Transform:
    """One group's view of the data: pixel steps in order, and a relabelling [classes]."""

    text: str
    pixels: tuple[Callable[[images.Images], images.Images], ...]
    relabel: NDArray[np.int64]

    def images(self, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Transform images [N Ch H W]; `x` itself if no step touches pixels."""
        for step in self.pixels:
            x = step(x)
        return x

    def labels(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """Relabel [N]."""
        return self.relabel[y]


def default_transforms(setting: str, dataset: str, classes: int, groups: int) -> list[str]:
    """Return the first `groups` transforms that `setting` prescribes for `dataset`."""
    one_of(setting, SETTINGS, "data.heterogeneity")
    if setting == "none":
        return ["none"] * groups
    if setting == "csl":
        few = next((n for n in SWAPS_BY_CLASSES if n <= classes), None)
        pairs = SWAPS.get(dataset) or (SWAPS_BY_CLASSES[few] if few else ())
        known = [f"swap:{a},{b}" for a, b in pairs]
    else:
        known = list(MORPHOLOGY if setting == "fds" else FEATURE_SHIFTS.get(dataset, ROTATIONS))
    if groups > len(known):
        raise DataError(
            f"{setting} defines {len(known)} groups for {dataset}, {groups} were asked for; "
            "lower data.groups or give data.transforms, one per group"
        )
    return known[:groups]


def parse_transform(text: str, *, classes: int, shape: tuple[int, int, int], zoom: str = "crop") -> Transform:
    """Read a chain such as "invert+zoom" for images of `shape` (Ch, H, W)."""
    one_of(zoom, ZOOMS, "data.zoom")
    relabel = np.arange(classes)
    pixels: list[Callable[[images.Images], images.Images]] = []
    for part in str(text).split("+"):
        name, _, rest = part.strip().partition(":")
        one_of(name, STEPS, "transform")
        args = _integers(part.strip(), rest)
        if name == "swap":
            relabel = _swap(part, args, classes)[relabel]
        elif name != "none":
            pixels.append(_pixel_step(part.strip(), name, args, shape, zoom))
        elif args:
            raise DataError(f"transform {part!r} takes no numbers; write none")
    return Transform(str(text), tuple(pixels), relabel)


def _integers(part: str, rest: str) -> list[int]:
    try:
        return [int(number) for number in rest.split(",")] if rest else []
    except ValueError:
        raise DataError(
            f"transform {part!r}: expected whole numbers after the colon, as in swap:1,7"
        ) from None


def _swap(part: str, args: Sequence[int], classes: int) -> NDArray[np.int64]:
    if len(args) != 2 or args[0] == args[1] or not all(0 <= label < classes for label in args):
        raise DataError(
            f"transform {part!r}: expected two different labels from 0…{classes - 1}, as in swap:1,7"
        )
    table = np.arange(classes)
    table[list(args)] = table[list(reversed(args))]
    return table


def _pixel_step(
    part: str, name: str, args: list[int], shape: tuple[int, int, int], zoom: str
) -> Callable[[images.Images], images.Images]:
    channels, height, width = shape
    if name == "channels":
        if sorted(args) != list(range(channels)):
            raise DataError(f"transform {part!r}: expected an order of the channels 0…{channels - 1}")
        return lambda x: images.reorder_channels(x, args)
    if name in ("zoom", "invert"):
        if args:
            raise DataError(f"transform {part!r} takes no numbers; write {name}")
        if name == "invert":
            return images.invert
        return images.zoom_crop if zoom == "crop" else images.zoom_resize
    if len(args) != 1:
        raise DataError(
            f"transform {part!r}: expected one number, as in {'rotate:90' if name == 'rotate' else 'erode:3'}"
        )
    number = args[0]
    if name == "rotate":
        if number % 90:
            raise DataError(f"transform {part!r}: expected a multiple of 90 degrees")
        if number % 180 and height != width:
            raise DataError(
                f"transform {part!r}: a quarter turn needs square images, these are {height}x{width}"
            )
        return lambda x: images.rotate(x, number)
    if not 1 <= number <= max(height, width):
        raise DataError(f"transform {part!r}: expected a window of 1…{max(height, width)} pixels")
    return (lambda x: images.erode(x, number)) if name == "erode" else (lambda x: images.dilate(x, number))


def skew_variants(clients: int, split: str = "even") -> list[str]:
    """Return the label distribution of each client of one group, contiguous.

    "even": unskewed and the four skews as evenly as possible (25 clients: 5/5/5/5/5, the paper's reading);
    "authors": a quarter of the clients each skew, the rest unskewed (25 clients: 6/6/6/6 + 1).
    """
    if one_of(split, SKEW_SPLITS, "data.skew_split") == "authors":
        skewed = [name for name in SHARES for _ in range(clients // 4)]
        return skewed + [UNSKEWED] * (clients - len(skewed))
    names = [UNSKEWED, *SHARES]
    counts = [clients // len(names) + (i < clients % len(names)) for i in range(len(names))]
    return [name for name, count in zip(names, counts, strict=True) for _ in range(count)]


def kept(variant: str, label: int, samples: int) -> int:
    """Return int(share · samples), how many of `samples` with `label` a client of `variant` keeps."""
    if variant == UNSKEWED:
        return samples
    return int(round(SHARES[variant][label] * samples, 9))  # 0.29 · 100 is 28.999… in floating point
