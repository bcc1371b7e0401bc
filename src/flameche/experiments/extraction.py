"""From samples to metadata, by the one map that all clients of a run share, newcomers included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from flameche.errors import DataError
from flameche.experiments.schema import Experiment, ModelConfig
from flameche.metadata import extractors
from flameche.metadata.bounded import BoundedFeatures
from flameche.metadata.extractors import Axes, ClientSamples, Metadata
from flameche.metadata.kinds import MeanPcaShared, MetadataKind, Setting
from flameche.models import FeatureExtractor, build_model
from flameche.privacy.noise import Arrays, Budget, NoisySource, secret_normals, seeded_normals
from flameche.registry import METADATA
from flameche.rng import stream_seed

Progress = Callable[[str, int, int], None]  # what, done, of how many
Shape = tuple[int, int, int]
GPU_BATCH = 4000


def shared_model(config: ModelConfig, shape: Shape, classes: int, seed: int, number: int = 0) -> Any:
    """Build the network with the shared initial weights, or (number > 0) with others."""
    names = ("model", number) if number else ("model",)
    return build_model(config.kind, shape, classes, stream_seed(seed, *names))


def noisy_source(experiment: Experiment, seed: int, kept: Arrays | None = None) -> NoisySource | None:
    """Make what adds noise to clients' metadata, where privacy is asked for."""
    how = experiment.privacy
    if how.epsilon is None:
        return None
    draw = seeded_normals(seed) if how.noise == "seeded" else secret_normals
    return NoisySource(Budget(how.epsilon, how.delta), draw, kept)


class Extraction:
    """What a run's clients do to their samples; it depends on the config, the seed and the images' shape.

    Where privacy is asked for, features are bounded; the noise is added afterwards (`NoisySource`).

    `axes`: the basis of kinds that have one which is made from all clients' data (`MeanPcaShared`); fitted to
    the first samples, unless given.
    """

    def __init__(
        self,
        experiment: Experiment,
        shape: Shape,
        classes: int,
        seed: int,
        device: str,
        axes: Axes | None = None,
    ) -> None:
        how, model = experiment.metadata, experiment.model
        own = seed if how.seed is None else how.seed

        def network(weights: Literal["gaussian", "uniform"]) -> Callable[[Any], Any]:
            shared = shared_model(model, shape, classes, own)
            features = FeatureExtractor(
                shared, shape, seed=stream_seed(own, "metadata"), weights=weights, head=model.head,
                device=device,
            )  # fmt: skip
            return BoundedFeatures(features, shape) if experiment.privacy.epsilon is not None else features

        batch = GPU_BATCH if device == "cuda" else extractors.BATCH
        setting = Setting(how, shape, classes, network, batch)
        self.kind: MetadataKind = METADATA[how.kind](setting, axes) if axes else METADATA[how.kind](setting)

    def __call__(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Summarise each client's samples as the config says."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress("metadata", done, len(samples.y))

        found = self.kind.extract(samples, advance)
        clients = len(samples.offsets) - 1
        if not isinstance(found, Metadata) or found.phi.ndim != 3 or len(found.phi) != clients:
            raise DataError(f"{type(self.kind).__name__} gave no metadata [{clients} blocks features]")
        if found.counts.shape != found.phi.shape[:2]:
            raise DataError(
                f"{type(self.kind).__name__} gave counts {list(found.counts.shape)} for metadata "
                f"{list(found.phi.shape)}"
            )
        return found

    def fitted_if_shared(self, samples: Callable[[], ClientSamples]) -> Axes | None:
        """Give the shared basis, if the kind has one; all clients' samples are asked for where need be."""
        if not isinstance(self.kind, MeanPcaShared):
            return None
        return self.kind.axes or self.kind.fit(samples())
