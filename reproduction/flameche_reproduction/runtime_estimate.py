"""Estimates how long runs take: from the wall times of stored runs of the same kind, else from defaults."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flameche_reproduction.image_sets import SETS
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.results_index import ResultLine, is_trained

# Seconds of a hundred rounds of training, guessed: one core, or a GPU shared by a few processes. A round of
# ResNet-18 takes 182 s of a core with 500 samples a client (results/bench-train.md); 350 are trained on.
TRAINING = {
    "cpu": {"lenet5": 450.0, "resnet18": 13_000.0, "small-cnn": 60.0},
    "cuda": {"lenet5": 50.0, "resnet18": 100.0, "small-cnn": 20.0},
}
CLUSTERING = {
    "cpu": {"lenet5": 10.0, "resnet18": 150.0, "small-cnn": 1.0},
    "cuda": {"lenet5": 5.0, "resnet18": 10.0, "small-cnn": 1.0},
}
TIMES = {"ifca": 3.0, "stocfl": 1.4, "fesem": 1.3, "fedgroup": 1.1}  # what methods take beside FedAvg


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run, and whether they come from stored runs."""

    seconds: float
    measured: bool


def relative_cost(run: PlannedRun) -> float:
    """Return a run's cost relative to others: its default seconds on a GPU."""
    return default_seconds(run, "cuda")


def default_seconds(run: PlannedRun, device: str) -> float:
    """Return the default seconds of a run, for when no similar run is stored."""
    net, experiment = SETS[run.dataset].net, run.experiment
    if not run.training:
        return CLUSTERING[device][net]
    return TRAINING[device][net] * experiment.rounds / 100 * TIMES.get(experiment.method.kind, 1.0)


class RuntimeEstimator:
    """Estimates from the wall times of stored runs; each uses runs of one device only."""

    def __init__(self, lines: Iterable[ResultLine], device: str) -> None:
        self.device, self.machines = device, set[str]()
        self._walls: dict[tuple[str, ...], dict[str, list[float]]] = {}
        for line in lines:
            name = str(line.get("device") or "")  # not recorded: of no use here
            on = "" if not name else "cpu" if name.startswith("cpu") else "cuda"
            wall, rounds = line.get("wall_s"), line.get("rounds") or 100
            if on == device and wall and line.get("dataset") in SETS and line.get("method"):
                whole = wall * 100 / rounds if is_trained(line) else wall
                net = SETS[line["dataset"]].net
                self.machines.add(name)
                for key in self._keys(line["dataset"], net, line["method"], is_trained(line)):
                    self._walls.setdefault(key, {}).setdefault(name, []).append(whole)

    @staticmethod
    def _keys(dataset: str, net: str, method: str, training: bool) -> Sequence[tuple[str, ...]]:
        kind = "trained" if training else "clustered"
        return (kind, dataset, method), (kind, net, method), (kind, net)

    def estimate(self, run: PlannedRun) -> Estimate:
        """Estimate a run's seconds from the most similar kind of stored run."""
        net = SETS[run.dataset].net
        for key in self._keys(run.dataset, net, run.method, run.training):
            if key in self._walls:
                share = run.experiment.rounds / 100 if run.training else 1.0
                times = TIMES.get(run.method, 1.0) if len(key) == 2 else 1.0
                # one clustering makes the metadata that others share, so that a median would forget them
                typical = statistics.median if run.training else statistics.fmean
                walls = max(self._walls[key].values(), key=len)
                return Estimate(typical(walls) * share * times, True)
        return Estimate(default_seconds(run, self.device), False)
