"""Runs an experiment with one seed: to the end in a run folder, or its clustering half alone."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flameche.errors import ConfigError
from flameche.experiments.build import Setup, build
from flameche.experiments.callbacks import make_callbacks
from flameche.experiments.config import Experiment, config_hash, to_toml
from flameche.experiments.extraction import Progress, noisy_source
from flameche.experiments.keys import bound_advice, keep_key, make_scheme_for, scheme_of_run
from flameche.experiments.leakage import OPENINGS, leaked, opened
from flameche.experiments.newcomers import keepsake
from flameche.experiments.protection import (
    accounted,
    deferred,
    deferred_notes,
    has_metadata,
    packages,
    protection,
    release_notes,
)
from flameche.experiments.provenance import code_of, commit, environment, sources, sources_note, versions
from flameche.experiments.run_folder import RunFolder, run_path, without_nan
from flameche.metadata.extractors import plane
from flameche.methods import METHODS
from flameche.methods.base import DIVERGED, Method, World
from flameche.protocol.ledger import Ledger
from flameche.simulation.engine import Result, simulate
from flameche.training.device import device_name


def run_experiment(
    experiment: Experiment,
    seed: int,
    out: Path,
    *,
    device: str = "cpu",
    fresh: bool = False,
    progress: Progress | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[dict[str, Any], Path]:
    """Play a run, or go on with it, or just read it if it is finished; return its summary and folder.

    A run that other sources made or began says so in its notes. `fresh` uses nothing of what is stored, and
    takes it away once everything is ready to be played.
    """
    path = run_path(out, experiment.name, config_hash(experiment), seed)
    with RunFolder(path) as folder:
        followers = make_callbacks(experiment.callbacks)
        made_by = sources(*code_of(experiment))
        if not fresh:
            folder.keep_inputs(inputs(experiment))
            if (summary := folder.summary) is not None:
                note = sources_note(summary, made_by)
                return {**summary, "notes": [*summary.get("notes", []), *([note] if note else [])]}, path
        start = time.perf_counter()
        scheme = make_scheme_for(experiment) if fresh else scheme_of_run(experiment, folder)
        source = noisy_source(experiment, seed, None if fresh else folder.noisy)
        setup = build(experiment, seed, device=device, scheme=scheme, source=source, progress=progress)
        if fresh:
            folder.clear()
            folder.keep_inputs(inputs(experiment))
            keep_key(experiment, scheme, folder)
        if source is not None:
            source.keep_in(folder.keep_noisy)
        folder.write_text("config.toml", to_toml(experiment))
        here = {**environment(device, packages(experiment)), "sources": made_by}
        setup.notes.extend(folder.keep_environment(here))
        for follower in followers:
            follower.on_start(experiment, seed, path)

        def tell(record: dict[str, Any]) -> None:
            if on_round:
                on_round(record)
            for listener in followers:
                listener.on_round(copy.deepcopy(record))

        try:
            with bound_advice(experiment):
                result = simulate(
                    setup.method,
                    setup.world,
                    experiment.participants,
                    evaluate_every=experiment.training.evaluate_every,
                    recorder=folder,
                    on_round=tell,
                    started=start,
                    timeline=setup.timeline,
                )
        finally:
            setup.world.trainer.close()
        folder.write_clients(clients_table(setup, result))
        if kept := opened(experiment, setup.world.ledger):
            folder.write_json(OPENINGS, kept)
        if result.outcome.keep:
            folder.write_arrays("clusters.npz", keepsake(experiment, seed, setup, result))
            folder.write_arrays("models.npz", setup.method.models.to_arrays())
        summary = without_nan(summarise(experiment, seed, setup, result, device))
        folder.finish(summary)
        for follower in followers:
            follower.on_end(copy.deepcopy(summary))
        return summary, path


def cluster_experiment(
    experiment: Experiment, seed: int, *, device: str = "cpu", progress: Progress | None = None
) -> dict[str, Any]:
    """Play only the clustering half: same schedule, same metadata, no model is trained."""
    if not has_metadata(experiment):
        able = [kind for kind, method in METHODS.loaded().items() if method.about.by_metadata]
        raise ConfigError(
            f'method.kind = "{experiment.method.kind}" does not cluster metadata, so there is nothing to do '
            f"without training; {', '.join(able)} do"
        )
    start = time.perf_counter()
    setup = build(experiment, seed, device=device, training=False, progress=progress)
    with bound_advice(experiment):
        result = simulate(
            setup.method, setup.world, experiment.participants, started=start, timeline=setup.timeline
        )
    summary: dict[str, Any] = without_nan(summarise(experiment, seed, setup, result, device))
    return summary


def summarise(experiment: Experiment, seed: int, setup: Setup, result: Result, device: str) -> dict[str, Any]:
    """Put a finished run into one flat record."""
    names = setup.federation.name, setup.federation.setting
    return record_of(experiment, seed, names, setup.world, setup.method, result, device)


def record_of(
    experiment: Experiment,
    seed: int,
    names: tuple[str, str],
    world: World,
    method: Method,
    result: Result,
    device: str,
) -> dict[str, Any]:
    """Put what a method did in a world into one flat record; names: of the data and the setting."""
    ledger, diverged = world.ledger, DIVERGED in world.notes
    return {
        "method": experiment.method.kind,
        "label": method.about.title,
        "dataset": names[0],
        "setting": names[1],
        "seed": seed,
        "scheme": protection(experiment),
        "rounds": experiment.rounds,
        "accuracy": None if diverged else result.mean_accuracy,
        "accuracy_per_round": [record["accuracy"] for record in result.rounds],
        "ari": result.ari,
        "ari_final": result.ari_final,
        "ari_per_round": [record["ari"] for record in result.rounds],
        "dbi": result.outcome.dbi,
        "ch": result.outcome.ch,
        "k": method.clusters,
        "diverged": diverged,
        "assignment": method.assignment.tolist(),
        "assignment_final": None if result.outcome.assignment is None else result.outcome.assignment.tolist(),
        "wall_s": result.wall_s,
        "device": device_name(device),
        **leaked(experiment, ledger, world.notes),
        **spent(experiment, ledger, world.notes),
    }


def spent(experiment: Experiment, ledger: Ledger, notes: Sequence[str], *more: str) -> dict[str, Any]:
    """Record what a run took, by which config and versions; `more` packages than an experiment needs."""
    privacy = accounted(experiment, ledger)
    return {
        "bytes_up": int(ledger.per_client("up").sum()),
        "bytes_down": int(ledger.per_client("down").sum()),
        "deferred": deferred(ledger),
        "seconds": ledger.seconds_by_part(),
        "ledger": ledger.summary(),
        "privacy": privacy,
        "versions": versions([*packages(experiment), *more]),
        "commit": commit(),
        "sources": sources(*code_of(experiment)),
        "config_hash": config_hash(experiment),
        "notes": [*notes, *deferred_notes(experiment, ledger), *release_notes(privacy)],
    }


def clients_table(setup: Setup, result: Result) -> dict[str, Any]:
    """Put what is known of each client into columns."""
    world, federation = setup.world, setup.federation
    has_map = world.has_metadata
    xy = plane(world.metadata) if has_map else np.full((world.clients, 2), np.nan)
    return {
        "client": np.arange(world.clients),
        "group": world.group,
        "assignment": setup.method.assignment,
        "samples": federation.train.sizes,
        "accuracy": result.accuracy,
        "bytes_up": world.ledger.per_client("up"),
        "bytes_down": world.ledger.per_client("down"),
        "rounds": result.participations,
        "map_x": xy[:, 0],
        "map_y": xy[:, 1],
    }


def inputs(experiment: Experiment) -> dict[str, str]:
    """Name the user's own files that a run depends on, by hash: its config knows only where they are."""
    files = {}
    if experiment.data.path is not None:
        files["data.path"] = Path(experiment.data.path).expanduser()
    module, _, factory = experiment.model.kind.partition(":")
    if factory and (found := Path(*module.split(".")).with_suffix(".py")).exists():
        files["model.kind"] = found
    return {
        key: hashlib.sha256(file.read_bytes()).hexdigest() for key, file in files.items() if file.is_file()
    }
