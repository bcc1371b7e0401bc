"""The ways to train that experiments/one_group.py tries."""

from __future__ import annotations

from dataclasses import dataclass, replace

CLIENTS, PARTS = 25, 4
SETTINGS = ("csl", "pairs", "fds", "csf")  # of first updates; pairs: csl with MNIST's pairs


@dataclass(frozen=True)
class Way:
    """A way to train. `crop`: the side that shifted images are cut to, where it is not their own."""

    dataset: str
    view: str = "none"  # the group's transform
    skew: bool = False
    small: bool = False  # a stem for small images
    moves: str = ""  # flips, turns and shifts of training images, by their first letters
    crop: int = 0
    holdout: float = 0.3
    statistics: str = "mean"  # of BatchNorm: the clients' mean, or the first client's
    misread: bool = False
    sgd: tuple[float, float] | None = None  # learning rate, momentum; None: Adam
    setting: str = ""  # of first updates
    clients: int = CLIENTS
    seed: int = 0


def ways() -> dict[str, Way]:
    """Name everything that is tried."""
    cifar, path, sgd = Way("cifar10"), Way("pathmnist"), (0.01, 0.5)
    authors = replace(cifar, small=True, moves="fts")
    found = {
        "cifar10": cifar,
        "cifar10-fts": replace(cifar, moves="fts"),
        "cifar10-fts-whole": replace(cifar, moves="fts", holdout=0.0),
        "cifar10-fts-whole-first": replace(cifar, moves="fts", holdout=0.0, statistics="first"),
        "cifar10-small": replace(cifar, small=True),
        "cifar10-small-fs": replace(authors, moves="fs"),
        "cifar10-small-fs-whole": replace(authors, moves="fs", holdout=0.0),
        "cifar10-small-fts": authors,
        "cifar10-small-fts-first": replace(authors, statistics="first"),
        **{
            f"cifar10-small-fts-{view.replace(':', '')}": replace(authors, view=view)
            for view in ("erode:3", "dilate:3", "dilate:8")
        },
        **{
            f"cifar10-small-fts-skew-{view.replace(':', '')}": replace(authors, view=view, skew=True)
            for view in ("none", "rotate:90", "rotate:180", "rotate:270")
        },
        "cifar10-sgd": replace(cifar, sgd=sgd),
        "cifar10-fts-sgd": replace(cifar, moves="fts", sgd=sgd),
        "cifar10-small-fts-sgd": replace(authors, sgd=sgd),
        "pathmnist": path,
        "pathmnist-held-first": replace(path, holdout=0.475, statistics="first"),
        "pathmnist-misread-first": replace(path, misread=True, statistics="first"),
        "pathmnist-fts": replace(path, moves="fts"),
        "pathmnist-fs-crop32": replace(path, moves="fs", crop=32),
        "pathmnist-fts-crop32": replace(path, moves="fts", crop=32),
        "pathmnist-fts-crop32-first": replace(path, moves="fts", crop=32, statistics="first"),
        "pathmnist-small": replace(path, small=True),
        "pathmnist-small-first": replace(path, small=True, statistics="first"),
        "pathmnist-small-first-1": replace(path, small=True, statistics="first", seed=1),
        "pathmnist-small-misread-first": replace(path, small=True, misread=True, statistics="first"),
        "pathmnist-small-fts-crop32-first": replace(
            path, small=True, moves="fts", crop=32, statistics="first"
        ),
        "pathmnist-sgd": replace(path, sgd=sgd),
        "pathmnist-fts-crop32-sgd": replace(path, moves="fts", crop=32, sgd=sgd),
        "pathmnist-small-first-sgd": replace(path, small=True, statistics="first", sgd=sgd),
    }
    firsts = {
        f"{way.dataset}-{setting}{'-small' if small else ''}-{'sgd' if rate else 'adam'}": replace(
            way, setting=setting, small=small, sgd=rate, clients=36, moves=moves
        )
        for way, small, moves in (
            (cifar, False, ""),
            (cifar, True, "fts"),
            (path, False, ""),
            (path, True, ""),
        )
        for setting in SETTINGS
        for rate in (None, (0.01, 0.0))
    }
    return found | firsts
