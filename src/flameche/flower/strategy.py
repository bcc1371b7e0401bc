"""FLAMECHE as a Flower strategy: `Flameche(experiment).start(grid=grid)`.

A round takes several exchanges, and nodes get different messages in each, so `start` plays all of it;
Flower's hooks for single rounds have no use. What is played is kept in a run folder, as by the simulator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flameche.errors import ConfigError, FlamecheError, StoreError
from flameche.experiments.config import Experiment, config_hash, load_experiment, to_toml
from flameche.experiments.deployment import server_job
from flameche.experiments.leakage import OPENINGS, opened
from flameche.experiments.protection import packages
from flameche.experiments.provenance import environment, sources, sources_note
from flameche.experiments.store import RunFolder, read_json, run_path, without_nan
from flameche.flower.live import Live
from flameche.flower.outcome import clients_table, models_table, summarise
from flameche.flower.settings import in_app
from flameche.flower.transport import GridTransport
from flameche.network.coordinator import Coordinator
from flameche.report import write_report
from flameche.training.tensorboard import Board

HERE = "flower"  # how a run folder's environment says that a network played it


class Flameche(Strategy):
    """Plays an experiment's rounds with whatever nodes are there; goes on where an earlier run stopped."""

    def __init__(
        self,
        experiment: Experiment | str | Path,
        seed: int = 0,
        *,
        out: str | Path = "runs",
        key: str | Path | None = None,
        patience: float = 120.0,
        least_nodes: int = 2,
        removed: tuple[int, ...] = (),
        own_data: bool = True,
        tensorboard: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Describe the server's part: `key` is server.pub, needed by schemes that have keys."""
        self.experiment = experiment if isinstance(experiment, Experiment) else _read(Path(experiment))
        self.seed, self.own_data, self.tensorboard = seed, own_data, tensorboard
        self.folder = run_path(Path(out), self.experiment.name, config_hash(self.experiment), seed)
        self._key = None if key is None else Path(key)
        self._settings: dict[str, Any] = {
            "patience": patience, "least_nodes": least_nodes, "removed": removed
        }  # fmt: skip
        self.say = say or logging.getLogger("flwr").info

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 600.0,
        **others: Any,
    ) -> Result:
        """Play all rounds; `timeout` is for one answer of one node, in seconds.

        The experiment says how many rounds there are and how models begin; nothing else may be given.
        """
        if initial_arrays is not None or any(value is not None for value in others.values()):
            raise ConfigError("Flameche.start takes grid and timeout; the experiment says everything else")
        if num_rounds not in (None, self.experiment.rounds):
            raise ConfigError(
                f"num_rounds = {num_rounds}, but the experiment says {self.experiment.rounds}, to nodes too"
            )
        job = server_job(self.experiment, self.seed, public_key=self._key, timeout=timeout, **self._settings)
        with RunFolder(self.folder) as folder:
            self._check_ours()
            made_by, again = sources(self.experiment.model.kind), f"remove {self.folder} to run it again"
            if (summary := folder.summary) is not None:
                self.say(f"finished earlier; read from {self.folder}")
                other = sources_note(summary, made_by, remedy=again)
                self._tell([*summary.get("notes", []), *([other] if other else [])])
                return _result(self._records(), {}, summary)
            if self._key is not None:
                folder.keep_fingerprint(job.fingerprint, self._key)
            folder.write_text("config.toml", to_toml(self.experiment))
            here = environment("cpu", [*packages(self.experiment), "flwr"])
            here |= {"command": "flwr run", "network": HERE, "sources": made_by}  # argv holds a token
            told = folder.keep_environment(here, again)
            board = Board(self.folder / "tensorboard") if self.tensorboard else None
            live = Live(self.experiment.rounds, self.say, board)
            self.summary()
            played = Coordinator(GridTransport(grid), job, folder, say=self.say, on_round=live.round)
            try:
                played.run()
            finally:
                if board is not None:
                    board.close()
            models = models_table(played)
            folder.write_clients(clients_table(played))
            if kept := opened(self.experiment, played.ledger):
                folder.write_json(OPENINGS, kept)
            if played.standing.keep:
                folder.write_arrays("clusters.npz", played.standing.keep)
            if models:
                folder.write_arrays("models.npz", models)
            summary = without_nan(summarise(self.experiment, self.seed, self.own_data, played))
            summary["notes"] = [*told, *summary["notes"]]
            folder.finish(summary)
        page = write_report(self.folder, self.folder.parent.parent)
        self._tell(summary["notes"])
        self.say(f"run folder: {self.folder}")
        self.say(f"report: {page}")
        return _result(played.records, models, summary)

    def summary(self) -> None:
        """Say what will be played."""
        own = self.experiment
        self.say(
            f"{own.name} · {own.method.kind} · {own.scheme.kind} · seed {self.seed} · {own.rounds} rounds of "
            f"{own.participants} of {own.data.clients} nodes"
        )

    def configure_train(self, *_: Any, **__: Any) -> Any:
        """Refuse: a round is more than one exchange."""
        raise FlamecheError("Flameche plays its rounds itself: call start(grid=grid)")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train

    def _tell(self, notes: list[str]) -> None:
        """Say a run's notes."""
        for note in notes:
            self.say(f"note: {note}")

    def _check_ours(self) -> None:
        """Refuse a folder in which the simulator played the same experiment."""
        file = self.folder / "environment.json"
        if file.exists() and read_json(file).get("network") != HERE:
            raise StoreError(
                f"{self.folder} holds a simulation of this experiment; choose another folder (out)"
            )

    def _records(self) -> list[dict[str, Any]]:
        import json

        text = (self.folder / "rounds.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def _read(path: Path) -> Experiment:
    """Read an experiment from where we stand, or from the app."""
    return load_experiment(path if path.is_file() else in_app(str(path)))


def _result(records: list[dict[str, Any]], models: dict[str, Any], summary: dict[str, Any]) -> Result:
    """Put what was played into Flower's own form; the arrays are the models, a row for each cluster."""
    result = Result()
    result.arrays = ArrayRecord({key: _array(rows) for key, rows in models.items()})
    for record in records:
        number, accuracy = record["round"], record["accuracy"]
        result.train_metrics_clientapp[number] = MetricRecord(
            {"bytes-up": record["bytes_up"], "bytes-down": record["bytes_down"], "sizes": record["sizes"]}
        )
        if accuracy is not None and not np.isnan(accuracy):
            result.evaluate_metrics_clientapp[number] = MetricRecord({"accuracy": float(accuracy)})
    return result


def _array(rows: Any) -> Any:
    from flwr.app import Array

    return Array(np.asarray(rows))
