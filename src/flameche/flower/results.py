"""Results of a run on a network: a console line for each round, and the tables of its run folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.experiments.config import Experiment
from flameche.experiments.leakage import leaked
from flameche.experiments.protection import leak_notes, protection
from flameche.experiments.run import spent
from flameche.methods import METHODS
from flameche.network.coordinator import Coordinator
from flameche.training.tensorboard import Board

Arrays = dict[str, NDArray[Any]]


class RoundReporter:
    """Logs each round as a line, and writes its numbers to TensorBoard if there is a board."""

    def __init__(self, rounds: int, log: Callable[[str], None], board: Board | None = None) -> None:
        self._rounds, self._log, self._board = rounds, log, board
        self._up = self._down = 0

    def report(self, record: dict[str, Any]) -> None:
        """Report one round."""
        up, down = record["bytes_up"] - self._up, record["bytes_down"] - self._down
        self._up, self._down = record["bytes_up"], record["bytes_down"]
        self._log(round_line(record, self._rounds, up, down))
        if self._board is not None:
            accuracy = record["accuracy"]
            scalars = {
                "accuracy": float("nan") if accuracy is None else accuracy,
                "MB/up": up / 1e6,
                "MB/down": down / 1e6,
                "nodes/taking part": len({*map(str, record["participants"])} - {*record.get("lost", {})}),
                "nodes/lost": len(record.get("lost", {})),
                "exchanges": record.get("exchanges", 0),
            }
            scalars |= {f"cluster sizes/{k}": size for k, size in enumerate(record["sizes"])}
            self._board.add(record["round"], scalars)


def round_line(record: dict[str, Any], rounds: int, up: int, down: int) -> str:
    """Format a round as a line for the console."""
    accuracy = record["accuracy"]
    parts = [
        f"round {record['round']}/{rounds}",
        f"nodes {number_ranges(record['participants'])}",
        f"clusters {' '.join(map(str, record['sizes']))}",
        "" if accuracy is None or accuracy != accuracy else f"accuracy {100 * accuracy:.1f}%",
        f"{up / 1e6:.2f} MB up, {down / 1e6:.2f} down",
        "reclustered" if record["reclustered"] else "",
    ]
    parts += [f"lost node {i}: {reason}" for i, reason in record.get("lost", {}).items()]
    return " · ".join(part for part in parts if part)


def number_ranges(numbers: list[int]) -> str:
    """Format numbers with ranges: 0-3 7 9-12."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def run_summary(experiment: Experiment, seed: int, own_data: bool, run: Coordinator) -> dict[str, Any]:
    """Summarise a finished run with the simulator's keys."""
    state, ledger, records = run.state, run.ledger, run.records
    outcome, notes = state.outcome, [*leak_notes(experiment), *state.notes]
    trained = _trained_models(run)
    if untrained := [k for k, name in enumerate(state.names) if name not in trained]:
        clusters = ", ".join(map(str, untrained))
        notes.append(f"nobody has trained the model of cluster {clusters}: its row in models.npz is NaN")
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
        "ari": None,  # the true groups are unknown
        "ari_final": None,
        "ari_per_round": [None] * len(records),
        "dbi": outcome.get("dbi"),
        "ch": outcome.get("ch"),
        "k": state.clusters,
        "assignment": state.assignment.tolist(),
        "assignment_final": outcome.get("final"),
        "wall_s": run.wall_s,
        "device": "network",
        **leaked(experiment, ledger, notes),
        **spent(experiment, ledger, notes, "flwr"),
    }


def clients_table(run: Coordinator) -> Arrays:
    """Return what the server knows of each client, as columns; it knows neither metadata nor true groups."""
    clients = run.setup.rules.clients
    rounds = np.zeros(clients, np.int64)
    for record in run.records:
        took_part = [i for i in record["participants"] if str(i) not in record.get("lost", {})]
        rounds[took_part] += 1
    sizes = run.aggregator.sizes
    unknown = np.full(clients, np.nan)
    return {
        "client": np.arange(clients),
        "group": np.full(clients, -1),
        "assignment": run.state.assignment,
        "samples": np.array([int(sizes[i]) for i in range(clients)], np.int64),
        "accuracy": run.state.accuracy,
        "bytes_up": run.ledger.per_client("up"),
        "bytes_down": run.ledger.per_client("down"),
        "rounds": rounds,
        "map_x": unknown,
        "map_y": unknown,
    }


def models_table(run: Coordinator) -> Arrays:
    """Return the clusters' models as rows, as the simulator stores them; NaN for untrained models."""
    trained = _trained_models(run)
    found = [trained[name] for name in run.state.names if name in trained]
    if not found:
        return {}
    blank = {key: np.full_like(array, np.nan) for key, array in found[0].items()}
    rows = [trained.get(name, blank) for name in run.state.names]
    return {key: np.stack([row[key] for row in rows]) for key in blank}


def _trained_models(run: Coordinator) -> dict[str, Arrays]:
    """Return the models that somebody has trained, by name."""
    return {name: model for name, model in run.aggregator.models.items() if "params" in model}
