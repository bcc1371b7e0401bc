"""Chooses the number of clusters of an experiment before anything is trained."""

from __future__ import annotations

import time
from typing import Any

from sklearn.metrics import adjusted_rand_score

from flameche.experiments.build import build_world
from flameche.experiments.config import Experiment
from flameche.experiments.extraction import Progress
from flameche.experiments.keys import bound_advice
from flameche.experiments.leakage import leaked
from flameche.experiments.protection import choosing_notes
from flameche.experiments.store import without_nan
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
    start = time.perf_counter()
    federation, world = build_world(
        experiment, seed, device=device, training=False, metadata=metadata, progress=progress
    )
    world.notes.extend(choosing_notes(experiment))
    with bound_advice(experiment.scheme):
        selection = select_clusters(
            world, most, progress=progress and (lambda done, of: progress("choosing K", done, of))
        )
    groups = int(federation.group.max()) + 1
    found = described(selection)
    for row, candidate in zip(found["candidates"], selection.candidates, strict=True):
        row["ari"] = (
            float(adjusted_rand_score(federation.group, candidate.assignment)) if groups > 1 else None
        )
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
    return {
        "k": selection.k,
        "clear": selection.clear,
        "more": selection.more,
        "exchanges": selection.exchanges,
        "preferred": selection.preferred(),
        "candidates": [
            {
                "k": c.k,
                "sureness": None if c.merger is None else c.merger.sureness,
                "agreement": None if c.merger is None else c.merger.agreement,
                "kept": c.merger is not None and c.merger.refused,
                "dbi": c.dbi,
                "ch": c.ch,
                "silhouette": c.silhouette,
            }
            for c in selection.candidates
        ],
    }
