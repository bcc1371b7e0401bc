"""Chooses the number of clusters of an experiment before anything is trained."""

from __future__ import annotations

import time
from typing import Any

from flameche.em.significance import REFUSED
from flameche.errors import ConfigError
from flameche.experiments.build import build_world
from flameche.experiments.config import Experiment
from flameche.experiments.extraction import Progress
from flameche.experiments.keys import bound_advice
from flameche.experiments.leakage import leaked
from flameche.experiments.protection import has_metadata
from flameche.experiments.run_folder import without_nan
from flameche.metadata.extractors import Metadata
from flameche.methods.selection import Selection, select_clusters


def select_experiment(
    experiment: Experiment,
    seed: int,
    most: int,
    *,
    device: str = "cpu",
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Choose K for an experiment's clients, under its scheme, from their metadata alone.

    Metadata that are known already (same data, extractor and seed) may be given.
    """
    if experiment.privacy.epsilon is not None:
        raise ConfigError(
            "privacy.epsilon: choosing K apart from the run would be a release of its own; "
            'take method.clusters = "auto"'
        )
    if experiment.scheme.kind != "plain" and not has_metadata(experiment):
        raise ConfigError(
            f'scheme.kind = "{experiment.scheme.kind}": method.kind = "{experiment.method.kind}" has no '
            'metadata to seal, so K would be chosen in the clear; take method.kind = "flameche"'
        )
    start = time.perf_counter()
    federation, world = build_world(
        experiment, seed, device=device, training=False, metadata=metadata, progress=progress
    )
    with bound_advice(experiment):
        selection = select_clusters(world, most)
    groups = int(federation.group.max()) + 1
    found = described(selection)
    for row, candidate in zip(found["candidates"], selection.candidates, strict=True):
        row["ari"] = selection.ari(candidate, federation.group) if groups > 1 else None
    record: dict[str, Any] = without_nan(
        {
            "dataset": federation.name,
            "setting": federation.setting,
            "seed": seed,
            "scheme": experiment.scheme.kind,
            "clients": federation.clients,
            "most": most,
            "groups": groups,
            **found,
            "asked": len(selection.clients),
            "sums": len(world.ledger.openings),
            "bytes_up": int(world.ledger.per_client("up").sum()),
            "bytes_down": int(world.ledger.per_client("down").sum()),
            "seconds": world.ledger.seconds_by_part(),
            "wall_s": time.perf_counter() - start,
            **leaked(experiment, world.ledger, world.notes),
            "notes": world.notes,
        }
    )
    return record


def described(selection: Selection) -> dict[str, Any]:
    """Put a selection into one record."""
    choice = selection.choice
    return {
        "rule": "session",
        "k": choice.k,
        "clear": choice.clear,
        "more": choice.more,
        "preferred": selection.preferred,
        "candidates": [
            {
                "k": c.k,
                "sureness": None if c.split is None else c.split.sure,
                "needed": None if c.split is None else REFUSED,
                "kept": c.kept,
                "dbi": c.dbi,
                "ch": c.ch,
            }
            for c in selection.candidates
        ],
    }
