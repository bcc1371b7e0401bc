"""Builds what a config describes: federation, metadata, trainer, world, method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flameche.crypto.api import Scheme
from flameche.crypto.masking import SecAgg
from flameche.data import Federation, build_federation, load_dataset, load_npz
from flameche.errors import ConfigError
from flameche.experiments.drifts import DataDrift
from flameche.experiments.extraction import Extraction, Progress, noisy_source, shared_model
from flameche.experiments.keys import key_notes, make_scheme_for
from flameche.experiments.protection import leak_notes, protection_notes
from flameche.experiments.schema import Experiment
from flameche.experiments.timeline import scheduled
from flameche.metadata.extractors import ClientSamples, Metadata
from flameche.methods import make_method
from flameche.methods.base import Method, World
from flameche.models.build import choose_kind
from flameche.privacy.noise import NoisySource
from flameche.protocol.ledger import Ledger
from flameche.protocol.updates import protect_updates
from flameche.registry import PARTITIONS
from flameche.simulation.events import Timeline
from flameche.training.device import prepare_torch, usable_cores
from flameche.training.factory import make_trainer
from flameche.training.trainer import NoTrainer, Sgd, Trainer, TrainingPlan


@dataclass
class Setup:
    """A run that is ready to be played."""

    federation: Federation
    world: World
    method: Method
    notes: list[str]
    timeline: Timeline


def build(
    experiment: Experiment,
    seed: int,
    *,
    device: str,
    training: bool = True,
    metadata: Metadata | None = None,
    scheme: Scheme | SecAgg | None = None,
    source: NoisySource | None = None,
    progress: Progress | None = None,
) -> Setup:
    """Build a run of an experiment; without training, only its clustering half.

    Metadata that are known already (same data, extractor and seed) may be given, and so may the source of
    noise.
    """
    source = source or noisy_source(experiment, seed)
    federation, world = build_world(
        experiment,
        seed,
        device=device,
        training=training,
        metadata=metadata,
        scheme=scheme,
        source=source,
        progress=progress,
    )
    method = build_method(experiment, world)
    timeline = timeline_of(experiment, federation, seed, device, training, source)
    return Setup(federation, world, method, world.notes, timeline)


def build_method(experiment: Experiment, world: World) -> Method:
    """Build the method that acts in a world."""
    world.notes.extend(leak_notes(experiment))
    return make_method(experiment.method, world)


def build_world(
    experiment: Experiment,
    seed: int,
    *,
    device: str,
    training: bool = True,
    metadata: Metadata | None = None,
    scheme: Scheme | SecAgg | None = None,
    source: NoisySource | None = None,
    progress: Progress | None = None,
) -> tuple[Federation, World]:
    """Build the clients and the world that a method acts in."""
    source = source or noisy_source(experiment, seed)
    if source is not None and metadata is not None:
        raise ConfigError("privacy.epsilon: metadata that are given have no noise; let them be extracted")
    federation, notes = load_federation(experiment, seed)
    prepare_torch(device, experiment.training.threads or _threads(experiment, federation))
    ledger = Ledger(federation.clients)
    scheme = scheme or make_scheme_for(experiment)

    def extract() -> Metadata:
        found = extract_metadata(experiment, federation, seed, device, progress, source)
        if source is not None:
            ledger.released(np.arange(federation.clients))
        return found

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
        extract=extract,
        samples=lambda: own_samples(experiment, federation),
        group=federation.group,
        weighting=experiment.training.weighting,
        server_lr=experiment.training.server_lr,
        absent=experiment.training.absent,
        known_metadata=metadata,
        noise=source.noise if source else 0.0,
    )
    world.notes.extend([*notes, *protection_notes(experiment), *key_notes(experiment.scheme, scheme)])
    return federation, world


def timeline_of(
    experiment: Experiment,
    federation: Federation,
    seed: int,
    device: str,
    training: bool,
    source: NoisySource | None = None,
) -> Timeline:
    """Schedule the config's events, and say how data drift."""
    drift = DataDrift(
        deal=lambda moved: load_federation(experiment, seed, moved)[0],
        samples=lambda dealt: own_samples(experiment, dealt),
        extraction=Extraction(experiment, federation.shape, federation.classes, seed, device),
        trainer=(lambda dealt: _trainer(experiment, dealt, seed, device)) if training else None,
        source=source,
    )
    return Timeline(federation.clients, scheduled(experiment.events, federation.group, seed), drift)


def _threads(experiment: Experiment, federation: Federation) -> int:
    """Choose a thread count: small networks lose more by waiting for each other than they gain."""
    kind = experiment.model.kind
    small = (choose_kind(federation.shape) if kind == "auto" else kind) in ("lenet5", "small-cnn")
    return 1 if small else usable_cores()


def load_federation(
    experiment: Experiment, seed: int, moved: Mapping[int, int] | None = None
) -> tuple[Federation, list[str]]:
    """Load the data and deal it to clients; also what a reader of the results should know of the data.

    `moved` names clients whose data have drifted, with the groups to which.
    """
    data = experiment.data
    if data.path is not None:
        dataset = load_npz(Path(data.path), test_split=data.test_split)
    else:
        dataset = load_dataset(data.dataset or "digits", test_split=data.test_split)
    how = data.model_dump(exclude={"dataset", "path", "test_split"})
    partition = PARTITIONS[experiment.partition.kind](experiment.partition)
    federation = build_federation(dataset, seed=seed, moved=moved, partition=partition, **how)
    return federation, [dataset.note] if dataset.note else []


def own_samples(experiment: Experiment, federation: Federation) -> ClientSamples:
    """Give the samples that clients summarise: all they hold, or those they train on."""
    own = federation.train
    if experiment.metadata.samples == "all" and len(federation.holdout.y):
        own = own.joined(federation.holdout)
    return ClientSamples(own.x, own.y, own.offsets, federation.classes)


def extract_metadata(
    experiment: Experiment,
    federation: Federation,
    seed: int,
    device: str,
    progress: Progress | None = None,
    source: NoisySource | None = None,
) -> Metadata:
    """Summarise each client's samples as the config says, with noise where it asks for privacy."""
    extraction = Extraction(experiment, federation.shape, federation.classes, seed, device)

    def exact() -> Metadata:
        return extraction(own_samples(experiment, federation), progress)

    source = source or noisy_source(experiment, seed)
    return source.release(np.arange(federation.clients), exact) if source else exact()


def training_plan(experiment: Experiment) -> TrainingPlan:
    """Say how a client trains, as the config says."""
    how = experiment.training
    sgd = Sgd(how.lr, how.momentum) if how.optimiser == "sgd" else None
    return TrainingPlan(
        epochs=how.epochs, batch=how.batch, lr=how.lr, augment=how.augment, bn_buffers=how.bn_buffers,
        drop_last=how.drop_last, sgd=sgd, turn=how.turn,
    )  # fmt: skip


def _trainer(experiment: Experiment, federation: Federation, seed: int, device: str) -> Trainer:
    how, plan = experiment.training, training_plan(experiment)

    def model(number: int = 0) -> Any:
        return shared_model(experiment.model, federation.shape, federation.classes, seed, number)

    return make_trainer(
        how.trainer, model(), federation, plan, seed,
        device=device, precision=how.precision, memory=how.memory, workers=how.threads, fresh=model,
    )  # fmt: skip
