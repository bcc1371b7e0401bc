"""A Flower strategy that runs an experiment: `Flameche(experiment).start(grid=grid)`.

A round takes several exchanges, with different messages to different nodes, so `start` runs all rounds and
Flower's hooks for single rounds are not used. Results go to a run folder, as in a simulation.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flameche.errors import ConfigError, FlamecheError, StoreError
from flameche.experiments.config import Experiment, config_hash, load_experiment, to_toml
from flameche.experiments.deployment import server_setup
from flameche.experiments.leakage import OPENINGS, opened
from flameche.experiments.protection import packages
from flameche.experiments.provenance import code_of, environment, sources, sources_note
from flameche.experiments.run_folder import RunFolder, read_json, run_path, without_nan
from flameche.flower.results import RoundReporter, clients_table, models_table, run_summary
from flameche.flower.settings import app_file
from flameche.flower.transport import GridTransport
from flameche.network.coordinator import Coordinator
from flameche.report import write_report
from flameche.training.tensorboard import Board

NETWORK = "flower"  # in a run folder's environment: the run was on a network, not simulated


class Flameche(Strategy):
    """Runs an experiment with the nodes that are online; resumes an earlier run that was interrupted."""

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
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Configure the server; `key` is the path of server.pub, for schemes that have keys."""
        self.experiment = experiment if isinstance(experiment, Experiment) else _read(Path(experiment))
        self.seed, self.own_data, self.tensorboard = seed, own_data, tensorboard
        self.folder = run_path(Path(out), self.experiment.name, config_hash(self.experiment), seed)
        self._key = None if key is None else Path(key)
        self._settings: dict[str, Any] = {
            "patience": patience, "least_nodes": least_nodes, "removed": removed
        }  # fmt: skip
        self.log = log or logging.getLogger("flwr").info

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 600.0,
        **others: Any,
    ) -> Result:
        """Run all rounds; `timeout` is the time for one reply of one node, in seconds.

        The experiment sets the number of rounds and the initial models, so other arguments are refused.
        """
        if initial_arrays is not None or any(value is not None for value in others.values()):
            raise ConfigError("Flameche.start takes grid and timeout; the experiment says everything else")
        if num_rounds not in (None, self.experiment.rounds):
            raise ConfigError(
                f"num_rounds = {num_rounds}, but the experiment says {self.experiment.rounds}, "
                "and the nodes read the experiment"
            )
        setup = server_setup(
            self.experiment, self.seed, public_key=self._key, timeout=timeout, **self._settings
        )
        with RunFolder(self.folder) as folder:
            self._refuse_simulation()
            source_hashes = sources(*code_of(self.experiment))
            remedy = f"remove {self.folder} to run it again"
            if (summary := folder.summary) is not None:
                self.log(f"finished earlier; read from {self.folder}")
                other = sources_note(summary, source_hashes, remedy=remedy)
                self._log_notes([*summary.get("notes", []), *([other] if other else [])])
                return _result(self._records(), {}, summary)
            if self._key is not None:
                folder.keep_fingerprint(setup.fingerprint, self._key)
            folder.write_text("config.toml", to_toml(self.experiment))
            found = environment("cpu", [*packages(self.experiment), "flwr"])
            found |= {  # without argv, which contains a token
                "command": "flwr run", "network": NETWORK, "sources": source_hashes
            }  # fmt: skip
            notes = folder.keep_environment(found, remedy)
            board = Board(self.folder / "tensorboard") if self.tensorboard else None
            reporter = RoundReporter(self.experiment.rounds, self.log, board)
            self.summary()
            run = Coordinator(GridTransport(grid), setup, folder, log=self.log, on_round=reporter.report)
            try:
                run.run()
            finally:
                if board is not None:
                    board.close()
            models = models_table(run)
            folder.write_clients(clients_table(run))
            if kept := opened(self.experiment, run.ledger):
                folder.write_json(OPENINGS, kept)
            if run.state.newcomer_bundle:
                folder.write_arrays("clusters.npz", run.state.newcomer_bundle)
            if models:
                folder.write_arrays("models.npz", models)
            summary = without_nan(run_summary(self.experiment, self.seed, self.own_data, run))
            summary["notes"] = [*notes, *summary["notes"]]
            folder.finish(summary)
        page = write_report(self.folder, self.folder.parent.parent)
        self._log_notes(summary["notes"])
        self.log(f"run folder: {self.folder}")
        self.log(f"report: {page}")
        return _result(run.records, models, summary)

    def summary(self) -> None:
        """Log what will be run."""
        experiment = self.experiment
        self.log(
            f"{experiment.name} · {experiment.method.kind} · {experiment.scheme.kind} · seed {self.seed} · "
            f"{experiment.rounds} rounds of {experiment.participants} of {experiment.data.clients} nodes"
        )

    def configure_train(self, *_: Any, **__: Any) -> Any:
        """Raise FlamecheError: a round is more than one exchange."""
        raise FlamecheError("Flameche runs its rounds itself: call start(grid=grid)")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train

    def _log_notes(self, notes: list[str]) -> None:
        for note in notes:
            self.log(f"note: {note}")

    def _refuse_simulation(self) -> None:
        """Refuse a folder that holds a simulation of the same experiment."""
        file = self.folder / "environment.json"
        if file.exists() and read_json(file).get("network") != NETWORK:
            raise StoreError(
                f"{self.folder} holds a simulation of this experiment; choose another folder (out)"
            )

    def _records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]


def _read(path: Path) -> Experiment:
    """Read an experiment from the current folder, or else from the app's."""
    return load_experiment(path if path.is_file() else app_file(str(path)))


def _result(records: list[dict[str, Any]], models: dict[str, Any], summary: dict[str, Any]) -> Result:
    """Convert the results to Flower's format; the arrays are the models, one row for each cluster."""
    result = Result()
    result.arrays = ArrayRecord({key: Array(np.asarray(rows)) for key, rows in models.items()})
    for record in records:
        number, accuracy = record["round"], record["accuracy"]
        result.train_metrics_clientapp[number] = MetricRecord(
            {"bytes-up": record["bytes_up"], "bytes-down": record["bytes_down"], "sizes": record["sizes"]}
        )
        if accuracy is not None and not np.isnan(accuracy):
            result.evaluate_metrics_clientapp[number] = MetricRecord({"accuracy": float(accuracy)})
    return result
