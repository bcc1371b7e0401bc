"""Keeps extracted metadata in a folder: tables over many rules extract them once and load no images."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from flameche.experiments.build import extract_metadata, load_federation
from flameche.experiments.config import Experiment
from flameche.experiments.keys import make_scheme_for
from flameche.metadata.extractors import Metadata
from flameche.methods.base import World
from flameche.protocol.ledger import Ledger
from flameche.rng import stream
from flameche.training.none import NoTrainer


def key_of(experiment: Experiment, seed: int) -> str:
    """Name the metadata of an experiment and a seed by all they depend on."""
    parts = {
        name: getattr(experiment, name).model_dump(mode="json", exclude_defaults=True)
        for name in ("data", "model", "metadata")
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{experiment.data.dataset}-{digest}-{seed}"


def metadata_of(
    experiment: Experiment, seed: int, device: str, folder: Path | None
) -> tuple[Metadata, np.ndarray]:
    """Read metadata and true groups [C] from the folder, or extract them and leave them there."""
    file = folder and folder / f"{key_of(experiment, seed)}.npz"
    if file and file.exists():
        held = np.load(file)
        return Metadata(held["phi"], held["counts"]), held["group"]
    federation, _ = load_federation(experiment, seed)
    metadata = extract_metadata(experiment, federation, seed, device)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, phi=metadata.phi, counts=metadata.counts, group=federation.group)
    return metadata, federation.group


def without_labels(metadata: Metadata, seed: int, missing: int) -> Metadata:
    """Take away the classes that `data.missing_labels` would take from each client, with the same draws.

    What a client holds of its other classes does not depend on those, so neither do their means.
    """
    clients, classes = metadata.counts.shape
    kept = np.ones((clients, classes), bool)
    for client in range(clients):
        kept[client, stream(seed, "data", "missing", client).permutation(classes)[:missing]] = False
    return Metadata(metadata.phi * kept[:, :, None], metadata.counts * kept)


def world_of(experiment: Experiment, seed: int, metadata: Metadata, group: np.ndarray) -> World:
    """Build the world of an experiment's clustering half around metadata that are known."""
    clients = len(metadata)
    ledger = Ledger(clients)

    def images() -> None:
        raise RuntimeError("only metadata are known here")

    return World(
        clients=clients,
        rounds=experiment.rounds,
        seed=seed,
        trainer=NoTrainer(metadata.counts.sum(axis=1)),
        ledger=ledger,
        scheme=make_scheme_for(experiment),
        min_cluster=experiment.scheme.least,
        extract=lambda: metadata,
        samples=images,
        group=group,
        known_metadata=metadata,
    )
