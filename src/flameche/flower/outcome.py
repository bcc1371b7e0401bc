"""A finished federation as a run folder has it: summary, clients, models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.experiments.config import Experiment
from flameche.experiments.leakage import leaked
from flameche.experiments.protection import leak_notes, protection
from flameche.experiments.run import spent
from flameche.methods import METHODS
from flameche.network.coordinator import Coordinator

Arrays = dict[str, NDArray[Any]]


def summarise(experiment: Experiment, seed: int, own_data: bool, played: Coordinator) -> dict[str, Any]:
    """Put a finished federation into one flat record, with the simulator's keys."""
    standing, ledger, records = played.standing, played.ledger, played.records
    outcome, notes = standing.outcome, [*leak_notes(experiment), *standing.notes]
    known = _trained(played)
    if untrained := [k for k, name in enumerate(standing.names) if name not in known]:
        notes.append(
            f"nobody has trained cluster {', '.join(map(str, untrained))}: models.npz has no such row"
        )
    lost = sum(len(record.get("lost", {})) for record in records)
    if lost:
        notes.append(f"nodes were lost {lost} times; rounds.jsonl says when and why")
    return {
        "method": experiment.method.kind,
        "label": METHODS[experiment.method.kind].about.title,
        "dataset": "own" if own_data else experiment.data.dataset or "own",
        "setting": "network" if own_data else experiment.data.heterogeneity,
        "seed": seed,
        "scheme": protection(experiment),
        "rounds": experiment.rounds,
        "accuracy": records[-1]["accuracy"] if records else None,
        "accuracy_per_round": [record["accuracy"] for record in records],
        "ari": None,  # nobody knows the truth
        "ari_final": None,
        "ari_per_round": [None] * len(records),
        "dbi": outcome.get("dbi"),
        "ch": outcome.get("ch"),
        "k": standing.clusters,
        "assignment": standing.assignment.tolist(),
        "assignment_final": outcome.get("final"),
        "wall_s": played.wall_s,
        "device": "network",
        **leaked(experiment, ledger, notes),
        **spent(experiment, ledger, notes, "flwr"),
    }


def clients_table(played: Coordinator) -> Arrays:
    """Put what the server knows of each client into columns; metadata and groups are not among it."""
    clients = played.job.rules.clients
    rounds = np.zeros(clients, np.int64)
    for record in played.records:
        took = [i for i in record["participants"] if str(i) not in record.get("lost", {})]
        rounds[took] += 1
    sizes = played.relay.sizes
    unknown = np.full(clients, np.nan)
    return {
        "client": np.arange(clients),
        "group": np.full(clients, -1),
        "assignment": played.standing.assignment,
        "samples": np.array([int(sizes[i]) for i in range(clients)], np.int64),
        "accuracy": played.standing.accuracy,
        "bytes_up": played.ledger.per_client("up"),
        "bytes_down": played.ledger.per_client("down"),
        "rounds": rounds,
        "map_x": unknown,
        "map_y": unknown,
    }


def models_table(played: Coordinator) -> Arrays:
    """Put the clusters' models into rows, as the simulator keeps them; NaN where nobody has trained one."""
    known = _trained(played)
    trained = [known[name] for name in played.standing.names if name in known]
    if not trained:
        return {}
    blank = {key: np.full_like(array, np.nan) for key, array in trained[0].items()}
    rows = [known.get(name, blank) for name in played.standing.names]
    return {key: np.stack([row[key] for row in rows]) for key in blank}


def _trained(played: Coordinator) -> dict[str, Arrays]:
    """Give the models that somebody has trained, by name."""
    return {name: model for name, model in played.relay.models.items() if "params" in model}
