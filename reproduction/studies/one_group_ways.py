"""The ways to train that reproduction/studies/one_group.py tries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flameche.models.resnet import Stem

CLIENTS, PARTS = 25, 4
SETTINGS = ("csl", "pairs", "fds", "csf")  # of first updates; pairs: csl with MNIST's pairs


@dataclass(frozen=True)
class Way:
    """A way to train. `crop`: the side that shifted images are cut to, where it is not their own."""

    dataset: str
    view: str = "none"  # the group's transform
    skew: bool = False
    stem: Stem = "usual"
    moves: str = ""  # flips, turns and shifts of training images, by their first letters
    crop: int = 0
    holdout: float = 0.3
    statistics: str = "mean"  # of BatchNorm: the clients' mean, or the first client's
    misread: bool = False
    sgd: tuple[float, float] | None = None  # learning rate, momentum; None: Adam
    setting: str = ""  # of first updates
    clients: int = CLIENTS
    seed: int = 0


CIFAR, PATH = Way("cifar10"), Way("pathmnist")
UPDATES: tuple[tuple[Way, Stem, str], ...] = (  # of first updates: stem, moves
    (CIFAR, "usual", ""),
    (CIFAR, "small", "fts"),
    (PATH, "usual", ""),
    (PATH, "small", ""),
)


def ways() -> dict[str, Way]:
    """Name everything that is tried."""
    sgd = (0.01, 0.5)
    authors = replace(CIFAR, stem="small", moves="fts")
    found = {
        "cifar10": CIFAR,
        "cifar10-fts": replace(CIFAR, moves="fts"),
        "cifar10-fts-whole": replace(CIFAR, moves="fts", holdout=0.0),
        "cifar10-fts-whole-first": replace(CIFAR, moves="fts", holdout=0.0, statistics="first"),
        "cifar10-unpooled-fs": replace(CIFAR, stem="unpooled", moves="fs"),
        "cifar10-unpooled-fs-whole": replace(CIFAR, stem="unpooled", moves="fs", holdout=0.0),
        "cifar10-unpooled-fts": replace(CIFAR, stem="unpooled", moves="fts"),
        "cifar10-small": replace(CIFAR, stem="small"),
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
        "cifar10-sgd": replace(CIFAR, sgd=sgd),
        "cifar10-fts-sgd": replace(CIFAR, moves="fts", sgd=sgd),
        "cifar10-small-fts-sgd": replace(authors, sgd=sgd),
        "pathmnist": PATH,
        "pathmnist-held-first": replace(PATH, holdout=0.475, statistics="first"),
        "pathmnist-misread-first": replace(PATH, misread=True, statistics="first"),
        "pathmnist-fts": replace(PATH, moves="fts"),
        "pathmnist-fs-crop32": replace(PATH, moves="fs", crop=32),
        "pathmnist-fts-crop32": replace(PATH, moves="fts", crop=32),
        "pathmnist-fts-crop32-first": replace(PATH, moves="fts", crop=32, statistics="first"),
        "pathmnist-small": replace(PATH, stem="small"),
        "pathmnist-small-first": replace(PATH, stem="small", statistics="first"),
        "pathmnist-small-first-1": replace(PATH, stem="small", statistics="first", seed=1),
        "pathmnist-small-misread-first": replace(PATH, stem="small", misread=True, statistics="first"),
        "pathmnist-small-fts-crop32-first": replace(
            PATH, stem="small", moves="fts", crop=32, statistics="first"
        ),
        "pathmnist-sgd": replace(PATH, sgd=sgd),
        "pathmnist-fts-crop32-sgd": replace(PATH, moves="fts", crop=32, sgd=sgd),
        "pathmnist-small-first-sgd": replace(PATH, stem="small", statistics="first", sgd=sgd),
    }
    firsts = {
        "-".join([way.dataset, setting, *([stem] * (stem != "usual")), "sgd" if rate else "adam"]): replace(
            way, setting=setting, stem=stem, sgd=rate, clients=36, moves=moves
        )
        for way, stem, moves in UPDATES
        for setting in SETTINGS
        for rate in (None, (0.01, 0.0))
    }
    return found | firsts
