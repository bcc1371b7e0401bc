"""The paper's image sets: title and network of each, and the base configuration that its runs override.

The files in `experiments/` say the same, to be read and changed; tests/reproduction/test_catalogue.py
compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flameche.data.heterogeneity import SETTING_TITLES

Net = Literal["lenet5", "resnet18", "small-cnn"]


@dataclass(frozen=True)
class ImageSet:
    """A dataset's title and network, and what a reader of its column must know."""

    title: str
    net: Net
    batch: int
    stands_for: str = ""  # the paper's set in whose place it is
    note: str = ""

    @property
    def epochs(self) -> int:
        """The number of local epochs, which the paper gives for each network."""
        return 10 if self.net == "resnet18" else 5

    @property
    def full_batches(self) -> bool:
        """Whether short batches are left out: without them LeNet-5 is nearer to the paper's accuracies."""
        return self.net == "lenet5"


SETS: Mapping[str, ImageSet] = {
    "mnist": ImageSet("MNIST", "lenet5", 128),
    "fashion-mnist": ImageSet("Fashion-MNIST", "lenet5", 128),
    "cifar10": ImageSet("CIFAR-10", "resnet18", 256),
    "tissuemnist": ImageSet(
        "TissueMNIST",
        "resnet18",
        128,
        note="TissueMNIST could not be had offline, so nothing was run on it; MedNIST28 stands in its place.",
    ),
    "mednist28": ImageSet(
        "MedNIST28",
        "resnet18",
        128,
        stands_for="tissuemnist",
        note="MedNIST28 is not in the paper: it stands in for TissueMNIST, and is compared with nothing.",
    ),
    "pathmnist": ImageSet("PathMNIST", "resnet18", 256),
    "digits": ImageSet(
        "digits",
        "small-cnn",
        32,
        note="digits is not in the paper: it is for trying.",
    ),
}
PAPER_SETS = ("mnist", "fashion-mnist", "cifar10", "tissuemnist", "mednist28", "pathmnist")
SETTINGS = SETTING_TITLES


def base_config(name: str) -> dict[str, Any]:
    """Return the base configuration of a set's runs: FLAMECHE in paper mode, concept shift on labels."""
    if name == "digits":
        return {
            "name": name,
            "rounds": 15,
            "data": {"dataset": name, "clients": 20, "per_label": 6, "heterogeneity": "csl"},
            "training": {"batch": 32, "lr": 2e-3},
            "method": {"mode": "paper"},
        }
    about = SETS[name]
    return {
        "name": name,
        "rounds": 100,
        "participation": 0.2,
        "data": {
            "dataset": name,
            "clients": 100,
            "groups": 4,
            "per_label": 50,
            "holdout": 0.3,
            "heterogeneity": "csl",
        },
        "model": {"kind": about.net},
        "training": {
            "epochs": about.epochs,
            "batch": about.batch,
            "lr": 1e-3,
            "drop_last": about.full_batches,
        },
        "metadata": {"kind": "random-gaussian"},
        "method": {"kind": "flameche", "clusters": 4, "mode": "paper", "tau": 10},
    }
