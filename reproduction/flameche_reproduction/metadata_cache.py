"""A cache of extracted metadata on disk, so that clusterings of the same clients extract them once."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from flameche.data.split import lost_by_client
from flameche.experiments.build import extract_metadata, load_federation
from flameche.experiments.config import Experiment
from flameche.experiments.extraction import Progress, noisy_source
from flameche.experiments.keys import key_notes, make_scheme_for
from flameche.experiments.protection import protection_notes
from flameche.experiments.provenance import code_of, sources
from flameche.metadata.extractors import Metadata
from flameche.methods.base import World
from flameche.protocol.ledger import Ledger
from flameche.training.device import prepare_torch, usable_cores
from flameche.training.trainer import NoTrainer

Groups = NDArray[np.int64]


def cache_key(experiment: Experiment, seed: int) -> str:
    """Return the cache key of an experiment's metadata: a hash of everything they depend on."""
    parts = {
        name: getattr(experiment, name).model_dump(mode="json", exclude_defaults=True)
        for name in ("data", "model", "metadata")
    }
    parts["metadata"]["kind"] = experiment.metadata.kind
    if experiment.partition.kind != "equal":
        parts["partition"] = experiment.partition.model_dump(mode="json")
    if experiment.privacy.epsilon is not None:
        parts["privacy"] = experiment.privacy.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{experiment.data.dataset}-{digest}-{seed}"


def cached_metadata(
    experiment: Experiment,
    seed: int,
    device: str,
    folder: Path | None,
    progress: Progress | None = None,
) -> tuple[Metadata, Groups]:
    """Return metadata and true groups [C] from the cache, or extract and cache them.

    Metadata that another version of the sources extracted are extracted again.
    """
    made_by = json.dumps(sources(*code_of(experiment)))
    file = folder and folder / f"{cache_key(experiment, seed)}.npz"
    if file and file.exists():
        try:
            with file.open("rb") as raw, np.load(raw) as held:  # numpy leaves open what is no zip file
                if str(held["sources"]) == made_by:
                    return Metadata(held["phi"], held["counts"]), held["group"]
        except (ValueError, OSError, EOFError, KeyError, BadZipFile):  # it can be made again
            file.unlink(missing_ok=True)
    federation, _ = load_federation(experiment, seed)
    prepare_torch(device, experiment.training.threads or usable_cores())
    metadata = extract_metadata(experiment, federation, seed, device, progress)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as out:
            np.savez(
                out,
                phi=metadata.phi,
                counts=metadata.counts,
                group=federation.group,
                sources=np.array(made_by),
            )
        part.replace(file)
    return metadata, federation.group


def without_labels(metadata: Metadata, seed: int, missing: int) -> Metadata:
    """Remove the classes that `data.missing_labels` would remove from each client, by the same draws.

    What a client holds of its other classes does not depend on those, so neither do their means.
    """
    clients, classes = metadata.counts.shape
    kept = np.ones((clients, classes), bool)
    for client in range(clients):
        kept[client, list(lost_by_client(seed, classes, missing, client))] = False
    return Metadata(metadata.phi * kept[:, :, None], metadata.counts * kept)


def clustering_world(experiment: Experiment, seed: int, metadata: Metadata, group: Groups) -> World:
    """Build the world of an experiment without training, around known metadata."""
    clients = len(metadata)

    def images() -> Any:
        raise RuntimeError("only metadata are known here")

    scheme = make_scheme_for(experiment)
    world = World(
        clients=clients,
        rounds=experiment.rounds,
        seed=seed,
        trainer=NoTrainer(metadata.counts.sum(axis=1)),
        ledger=Ledger(clients),
        scheme=scheme,
        min_cluster=experiment.scheme.least,
        extract=lambda: metadata,
        samples=images,
        group=group,
        known_metadata=metadata,
        noise=source.noise if (source := noisy_source(experiment, seed)) else 0.0,
    )
    if source is not None:
        world.ledger.released(np.arange(clients))
    world.notes.extend([*protection_notes(experiment), *key_notes(experiment.scheme, scheme)])
    return world
