"""From samples to metadata, by the one map that all clients of a run share, newcomers included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flameche.experiments.schema import Experiment, ModelConfig
from flameche.metadata import extractors
from flameche.metadata.bounded import BoundedFeatures
from flameche.metadata.extractors import Axes, ClientSamples, Metadata
from flameche.models import FeatureExtractor, build_model
from flameche.privacy.noise import Arrays, Budget, NoisySource, secret_normals, seeded_normals
from flameche.rng import stream_seed

Progress = Callable[[str, int, int], None]  # what, done, of how many
Shape = tuple[int, int, int]
GPU_BATCH = 4000
# Metadata of a union of samples are the weighted mean of the parts' metadata, or their sum.
MEANS = ("random-gaussian", "random-uniform", "mean", "mean-pca-shared")


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

    `axes`: the basis of kind "mean-pca-shared", which is made from all clients' data; fitted to the first
    samples, unless given.
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
        self._config, self._device = experiment.metadata, device
        self._model, self._shape, self._classes = experiment.model, shape, classes
        self._bounded = experiment.privacy.epsilon is not None
        self._seed = seed if experiment.metadata.seed is None else experiment.metadata.seed
        self.axes = axes

    def __call__(self, samples: ClientSamples, progress: Progress | None = None) -> Metadata:
        """Summarise each client's samples as the config says."""
        kind, components = self._config.kind, self._config.components
        if kind in ("random-gaussian", "random-uniform"):
            return self._features(samples, progress)
        if kind == "mean":
            return extractors.mean_images(samples)
        if kind == "mean-pca-local":
            return extractors.mean_pca_local(samples, components)
        if kind == "mean-pca-shared":
            return self.fitted(samples).project(extractors.mean_images(samples))
        if kind == "subspace":
            return extractors.subspaces(samples, components)
        return extractors.label_counts(samples)

    def fitted(self, samples: ClientSamples) -> Axes:
        """Give the shared basis; made from these clients' samples if there is none yet."""
        if self.axes is None:
            self.axes = extractors.shared_axes(extractors.mean_images(samples), self._config.components)
        return self.axes

    def fitted_if_shared(self, samples: Callable[[], ClientSamples]) -> Axes | None:
        """Give the shared basis, if the kind has one; all clients' samples are asked for where need be."""
        if self._config.kind != "mean-pca-shared":
            return None
        return self.axes or self.fitted(samples())

    def _features(self, samples: ClientSamples, progress: Progress | None) -> Metadata:
        features: Callable[[Any], Any] = FeatureExtractor(
            shared_model(self._model, self._shape, self._classes, self._seed),
            self._shape,
            seed=stream_seed(self._seed, "metadata"),
            weights="gaussian" if self._config.kind == "random-gaussian" else "uniform",
            head=self._model.head,
            device=self._device,
        )
        if self._bounded:
            features = BoundedFeatures(features, self._shape)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress("metadata", done, len(samples.y))

        batch = GPU_BATCH if self._device == "cuda" else extractors.BATCH
        return extractors.class_means(samples, features, batch=batch, progress=advance)
