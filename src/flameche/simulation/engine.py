"""The simulator: rounds, scores, checkpoints, resume.

Every random draw comes from a stream named by its round, so a run that starts again from a checkpoint
goes through the same states, bit for bit, as one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from flameche.methods.base import UNSEEN, Arrays, Ints, Method, Outcome, World
from flameche.simulation.events import Timeline
from flameche.simulation.schedule import draw_participants

CHECKPOINT_SHARE = 0.05  # of the run's time may go into writing checkpoints


@dataclass
class Checkpoint:
    """A run after `round`: what a method, its models, the trainer and the ledger need to go on."""

    round: int
    arrays: Arrays
    ledger: dict[str, Any]
    wall_s: float


class Recorder(Protocol):
    """Where a run leaves its traces."""

    def resume(self) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
        """Give the last checkpoint and the rounds up to it, if there are any."""
        ...

    def add_round(self, record: dict[str, Any]) -> None:
        """Keep a finished round."""
        ...

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in place of the one before."""
        ...


class Unrecorded:
    """Leaves no traces."""

    def resume(self) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
        """Start from nothing."""
        return None, []

    def add_round(self, record: dict[str, Any]) -> None:
        """Forget it."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Forget it."""


@dataclass
class Result:
    """A finished run."""

    rounds: list[dict[str, Any]]
    outcome: Outcome
    ari: float  # of the stored assignments
    ari_final: float  # after a last E-step
    accuracy: NDArray[np.float64]  # [C], NaN for clients that have left
    wall_s: float
    participations: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def mean_accuracy(self) -> float:
        """Average over the clients that are there at the end."""
        there = ~np.isnan(self.accuracy)
        return float(self.accuracy[there].mean()) if there.any() else float("nan")


def simulate(
    method: Method,
    world: World,
    participants: int,
    *,
    evaluate_every: int = 1,
    recorder: Recorder | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    started: float | None = None,
    timeline: Timeline | None = None,
) -> Result:
    """Play all rounds, from the last checkpoint if the recorder has one; a timeline says who comes and goes.

    `started` is when the run's own preparation began, by time.perf_counter; its wall time counts from there.
    """
    recorder, timeline = recorder or Unrecorded(), timeline or Timeline(world.clients)
    checkpoint, records = recorder.resume()
    start = time.perf_counter() if started is None else started
    if checkpoint:
        timeline.replay(checkpoint.round, world)
        _restore(method, world, checkpoint)
        start -= checkpoint.wall_s
    else:
        timeline.begin(method)
    for record in records:
        if on_round:
            on_round(record)
    accuracy = np.full(world.clients, np.nan)
    saved_at, saving = time.perf_counter(), 0.0
    for r in range(len(records) + 1, world.rounds + 1):
        world.ledger.round = r
        timeline.play(r, method, world)
        present = timeline.present(r)
        chosen = draw_participants(world.seed, r, world.clients, participants, present)
        reclustered = method.round(r, chosen)
        if r % evaluate_every == 0 or r == world.rounds:
            accuracy = _score(method, world, present)
        else:
            accuracy = np.full(world.clients, np.nan)
        record = _describe(method, world, r, chosen, reclustered, accuracy, present)
        records.append(record)
        recorder.add_round(record)
        now = time.perf_counter()
        if (now - saved_at) * CHECKPOINT_SHARE >= saving or r == world.rounds:
            recorder.save(_checkpoint(method, world, r, now - start))
            saved_at = time.perf_counter()
            saving = saved_at - now
        if on_round:
            on_round(record)
    present = timeline.present(world.rounds)
    if checkpoint and checkpoint.round == world.rounds:  # killed between the last round and the summary
        accuracy = _score(method, world, present)
    world.ledger.round = world.rounds + 1
    with world.ledger.muted():  # the simulator's own measurement, no part of the cost
        outcome = method.finish()
    ari = _ari(method, world.group, method.assignment, present)
    away = int((method.assignment[present] == UNSEEN).sum())
    if away and not np.isnan(ari):
        world.notes.append(
            f"ARI is over {len(present) - away} of {len(present)} clients; the others have no cluster yet"
        )
    played = np.zeros(world.clients, np.int64)
    for record in records:
        played[record["participants"]] += 1
    return Result(
        rounds=records,
        outcome=outcome,
        ari=ari,
        ari_final=float("nan")
        if outcome.assignment is None
        else _ari(method, world.group, outcome.assignment, present),
        accuracy=accuracy,
        wall_s=time.perf_counter() - start,
        participations=played,
    )


def _score(method: Method, world: World, present: Ints) -> NDArray[np.float64]:
    """Score every client that is there [C]; NaN for the others."""
    with world.ledger.clock("client", "evaluation"):
        accuracy = world.trainer.accuracy(method.models, method.serving())
    scores = np.full(world.clients, np.nan)
    scores[present] = accuracy[present]
    return scores


def _ari(method: Method, group: Ints, assignment: Ints, present: Ints) -> float:
    """Compare with the truth over clients there that have a cluster.

    NaN for a method without clusters, and where all these clients are of one group, so that there is nothing
    to be found.
    """
    known = present[assignment[present] != UNSEEN]
    if len(np.unique(group[known])) < 2 or (method.clusters < 2 and method.about.family == "–"):
        return float("nan")
    return float(adjusted_rand_score(group[known], assignment[known]))


def _describe(
    method: Method,
    world: World,
    r: int,
    chosen: Ints,
    reclustered: bool,
    accuracy: NDArray[np.float64],
    present: Ints,
) -> dict[str, Any]:
    known = method.assignment[present]
    known = known[known != UNSEEN]
    return {
        "round": r,
        "accuracy": float(accuracy[present].mean()),
        "ari": _ari(method, world.group, method.assignment, present),
        "sizes": np.bincount(known, minlength=method.clusters).tolist(),
        "participants": chosen.tolist(),
        "assignment": method.assignment.tolist(),
        "reclustered": bool(reclustered),
        "bytes_up": int(world.ledger.per_client("up").sum()),
        "bytes_down": int(world.ledger.per_client("down").sum()),
        "seconds": world.ledger.seconds_by_part(),
    }


def _checkpoint(method: Method, world: World, r: int, wall_s: float) -> Checkpoint:
    arrays: Arrays = {f"method/{key}": value for key, value in method.state().items()}
    arrays |= {f"trainer/{key}": value for key, value in world.trainer.state().items()}
    arrays |= {f"models/{key}": value for key, value in method.models.to_arrays().items()}
    arrays["assignment"] = method.assignment
    frozen = {key: value.copy() for key, value in arrays.items()}  # the run goes on and changes its own
    sealed = world.updates.model_bytes if world.updates else 0
    ledger = {**world.ledger.state(), "notes": world.notes, "model_bytes": sealed}
    return Checkpoint(r, frozen, ledger, wall_s)


def _restore(method: Method, world: World, checkpoint: Checkpoint) -> None:
    def under(prefix: str) -> Arrays:
        return {k.removeprefix(prefix): v for k, v in checkpoint.arrays.items() if k.startswith(prefix)}

    method.restore(under("method/"))
    world.trainer.restore(under("trainer/"))
    method.models = method.models.from_arrays(under("models/"))
    method.assignment = checkpoint.arrays["assignment"].astype(np.int64)
    world.ledger.restore(checkpoint.ledger)
    world.notes[:] = dict.fromkeys([*world.notes, *checkpoint.ledger.get("notes", [])])
    if world.updates:
        world.updates.model_bytes = checkpoint.ledger.get("model_bytes", 0)
