"""The kinds of metadata: what each client tells of its samples, by a map that all clients share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flameche.metadata.extractors import (
    BATCH,
    Axes,
    ClientSamples,
    Metadata,
    class_means,
    label_counts,
    mean_images,
    mean_pca_local,
    shared_axes,
    subspaces,
)
from flameche.tables import Count, Seed, Table

Progress = Callable[[int], None]  # how many samples were done
Features = Callable[[Any], Any]


class MetadataOptions(Table):
    """What the [metadata] table of an experiment may say; a kind's own options may add keys to these.

    `seed` is the shared map's, None takes the run's. `samples`: a client summarises all it holds, or only
    what it trains on; "all" is the paper's local dataset, and nearer to its DBI. `components`: of principal
    axes and subspaces.
    """

    kind: str = "random-gaussian"
    samples: Literal["all", "train"] = "all"
    components: Count = 5
    seed: Seed | None = None


@dataclass(frozen=True)
class Setting:
    """What a kind of metadata may use: its options, the samples' shape, and a random network's features.

    network: builds the network's feature map for weights drawn as "gaussian" or "uniform", clipped where
    privacy is asked for; nothing is built before it is called.
    """

    options: Any
    shape: tuple[int, int, int]
    classes: int
    network: Callable[[Literal["gaussian", "uniform"]], Features]
    batch: int = BATCH


class MetadataKind(ABC):
    """One kind of metadata; subclasses map every client's samples to a vector for each of its blocks.

    Example:
        >>> import numpy as np
        >>> from flameche.metadata.extractors import ClientSamples
        >>> from flameche.metadata.kinds import LabelCounts, MetadataOptions, Setting
        >>> setting = Setting(MetadataOptions(), (1, 2, 2), 3, network=lambda weights: lambda x: x)
        >>> x, y = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 0, 2, 1])
        >>> LabelCounts(setting).extract(ClientSamples(x, y, np.array([0, 3, 4]), classes=3)).phi[:, 0]
        array([[2., 0., 1.],
               [0., 1., 0.]])
    """

    Options: ClassVar[type[MetadataOptions]] = MetadataOptions
    averages: ClassVar[bool] = False  # metadata of a union of samples are the parts', weighed by their counts
    clips: ClassVar[bool] = False  # it can clip features sample by sample, which noise needs

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Map each client's samples to its metadata; a client's metadata depend on its own samples alone."""


class RandomGaussian(MetadataKind):
    """Class-wise means of the features of a network with Gaussian weights."""

    averages, clips = True, True
    weights: ClassVar[Literal["gaussian", "uniform"]] = "gaussian"

    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Average features per client and class (Eq. 3)."""
        features = self.setting.network(self.weights)
        return class_means(samples, features, batch=self.setting.batch, progress=progress)


class RandomUniform(RandomGaussian):
    """Class-wise means of the features of a network with uniform weights."""

    weights = "uniform"


class Mean(MetadataKind):
    """Class-wise mean images."""

    averages = True

    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Average images per client and class."""
        return mean_images(samples)


class MeanPcaLocal(MetadataKind):
    """Class-wise mean images on the principal axes of the client's own samples."""

    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Project each client's means on its own axes."""
        return mean_pca_local(samples, self.setting.options.components)


class MeanPcaShared(MetadataKind):
    """Class-wise mean images on principal axes that all clients share.

    axes: the basis, made from the first samples that are extracted unless it is given.
    """

    averages = True

    def __init__(self, setting: Setting, axes: Axes | None = None) -> None:
        super().__init__(setting)
        self.axes = axes

    def fit(self, samples: ClientSamples) -> Axes:
        """Give the basis; it is made from these clients' samples if there is none yet."""
        if self.axes is None:
            self.axes = shared_axes(mean_images(samples), self.setting.options.components)
        return self.axes

    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Project the means of clients on the shared axes."""
        return self.fit(samples).project(mean_images(samples))


class Subspace(MetadataKind):
    """The first singular vectors of each class's images, as PACFL has them."""

    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Take singular vectors per client and class."""
        return subspaces(samples, self.setting.options.components)


class LabelCounts(MetadataKind):
    """How many samples a client has of each class."""

    def extract(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Count samples per client and class."""
        return label_counts(samples)
