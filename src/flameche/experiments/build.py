"""Builds what a config describes: federation, metadata, trainer, world, method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
from flameche.data import Federation, build_federation, load_dataset, load_npz
from flameche.errors import ConfigError
from flameche.experiments.keys import key_notes, make_scheme_for
from flameche.experiments.protection import protection_notes
from flameche.experiments.schema import Experiment, ModelConfig
from flameche.metadata import extractors
from flameche.metadata.extractors import ClientSamples, Metadata
from flameche.methods import METHODS
from flameche.methods.base import Method, World
from flameche.models import FeatureExtractor, build_model
from flameche.models.build import choose_kind
from flameche.protocol.ledger import Ledger
from flameche.protocol.updates import protect_updates
from flameche.rng import stream_seed
from flameche.training.device import prepare_torch, usable_cores
from flameche.training.loop import LoopTrainer
from flameche.training.none import NoTrainer
from flameche.training.stacked import stackable
from flameche.training.trainer import Trainer, TrainingPlan
from flameche.training.vectorised import VectorisedTrainer

Progress = Callable[[str, int, int], None]  # what, done, of how many
GPU_BATCH = 4000


@dataclass
class Setup:
    """A run that is ready to be played."""

    federation: Federation
    world: World
    method: Method
    notes: list[str]


def build(
    experiment: Experiment,
    seed: int,
    *,
    device: str,
    training: bool = True,
    metadata: Metadata | None = None,
    scheme: Scheme | SecAgg | None = None,
    progress: Progress | None = None,
) -> Setup:
    """Build a run of an experiment; without training, only its clustering half.

    Metadata that are known already (same data, extractor and seed) may be given.
    """
    federation, notes = load_federation(experiment, seed)
    prepare_torch(device, experiment.training.threads or _threads(experiment, federation))
    ledger = Ledger(federation.clients)
    scheme = scheme or make_scheme_for(experiment)
    world = World(
        clients=federation.clients,
        rounds=experiment.rounds,
        seed=seed,
        trainer=_trainer(experiment, federation, seed, device)
        if training
        else NoTrainer(federation.train.sizes),
        ledger=ledger,
        scheme=scheme,
        min_cluster=experiment.scheme.least,
        updates=protect_updates(
            experiment.scheme.updates, federation.clients, experiment.scheme.least, ledger
        ),
        extract=lambda: extract_metadata(experiment, federation, seed, device, progress),
        samples=lambda: own_samples(experiment, federation),
        group=federation.group,
        weighting=experiment.training.weighting,
        known_metadata=metadata,
    )
    options: dict[str, Any] = experiment.method.model_dump(exclude={"kind"})
    method: Method = METHODS[experiment.method.kind](world, **options)
    world.notes.extend([*notes, *protection_notes(experiment), *key_notes(experiment.scheme, scheme)])
    return Setup(federation, world, method, world.notes)


def _threads(experiment: Experiment, federation: Federation) -> int:
    """Choose a thread count: small networks lose more by waiting for each other than they gain."""
    kind = experiment.model.kind
    small = (choose_kind(federation.shape) if kind == "auto" else kind) in ("lenet5", "small-cnn")
    return 1 if small else usable_cores()


def load_federation(experiment: Experiment, seed: int) -> tuple[Federation, list[str]]:
    """Load the data and deal it to clients; also what a reader of the results should know of the data."""
    data = experiment.data
    if data.path is not None:
        dataset = load_npz(Path(data.path), test_split=data.test_split)
    else:
        dataset = load_dataset(data.dataset or "digits", test_split=data.test_split)
    how = data.model_dump(exclude={"dataset", "path", "test_split"})
    federation = build_federation(dataset, seed=seed, **how)
    return federation, [dataset.note] if dataset.note else []


def own_samples(experiment: Experiment, federation: Federation) -> ClientSamples:
    """Give the samples that clients summarise: all they hold, or those they train on."""
    own = federation.train
    if experiment.metadata.samples == "all" and len(federation.holdout.y):
        own = own.joined(federation.holdout)
    return ClientSamples(own.x, own.y, own.offsets, federation.classes)


def extract_metadata(
    experiment: Experiment, federation: Federation, seed: int, device: str, progress: Progress | None = None
) -> Metadata:
    """Summarise each client's samples as the config says."""
    kind, components = experiment.metadata.kind, experiment.metadata.components
    samples = own_samples(experiment, federation)
    if kind in ("random-gaussian", "random-uniform"):
        shared = seed if experiment.metadata.seed is None else experiment.metadata.seed
        features = FeatureExtractor(
            _model(experiment.model, federation, shared),
            federation.shape,
            seed=stream_seed(shared, "metadata"),
            weights="gaussian" if kind == "random-gaussian" else "uniform",
            head=experiment.model.head,
            device=device,
        )
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress("metadata", done, len(samples.y))

        batch = GPU_BATCH if device == "cuda" else extractors.BATCH
        return extractors.class_means(samples, features, batch=batch, progress=advance)
    if kind == "mean":
        return extractors.mean_images(samples)
    if kind == "mean-pca-local":
        return extractors.mean_pca_local(samples, components)
    if kind == "mean-pca-shared":
        return extractors.mean_pca_shared(samples, components)
    if kind == "subspace":
        return extractors.subspaces(samples, components)
    return extractors.label_counts(samples)


def _model(config: ModelConfig, federation: Federation, seed: int, number: int = 0) -> Any:
    """Build the network with the shared initial weights, or (number > 0) with others."""
    names = ("model", number) if number else ("model",)
    return build_model(config.kind, federation.shape, federation.classes, stream_seed(seed, *names))


def _trainer(experiment: Experiment, federation: Federation, seed: int, device: str) -> Trainer:
    how = experiment.training
    plan = TrainingPlan(how.epochs, how.batch, how.lr, how.augment, how.bn_buffers)

    def model(number: int = 0) -> Any:
        return _model(experiment.model, federation, seed, number)

    first, kind = model(), LoopTrainer
    if how.trainer == "vectorised" or (how.trainer == "auto" and device == "cuda"):
        if stackable(first, federation.shape):
            kind = VectorisedTrainer
        elif how.trainer == "vectorised":
            raise ConfigError(
                f'training.trainer = "vectorised": model.kind = "{experiment.model.kind}" cannot be stacked '
                '(dropout, randomness or branches on data); take "loop"'
            )
    return kind(first, federation, plan, seed, device=device, fresh=model)
