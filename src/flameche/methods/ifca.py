"""IFCA: each client tries all K models and trains the one with the lowest loss on its data.

Ghosh, Chung, Yin and Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020.

Deviations:
- Models are averaged, as in the publication's second variant, after the local epochs that all methods take.
- `restarts` initialisations (five in the FLAMECHE paper) run side by side, all are paid for, and the one with
  the best accuracy on the clients' held-back samples counts (on their training samples where none are held).
- With `first = "random"` a client trains a random model when it comes for the first time, and chooses later.
  By loss, as published, most who come in the first round take the same one, the best of K untrained models.
- The server sees which model a client trained, and sums: the method runs under secure aggregation.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from flameche.methods.base import UNSEEN, About, Arrays, Floats, Ints, MethodOptions, Outcome, World
from flameche.rng import stream
from flameche.tables import Count

NOTHING_HELD = "IFCA chose its initialisation by training accuracy where clients hold nothing back"


class IfcaOptions(MethodOptions):
    """K models of each of several starts; `first`: how a client chooses when it first comes."""

    kind: str = "ifca"
    clusters: Count = 4
    restarts: Count = 5
    first: Literal["loss", "random"] = "loss"


class Ifca:
    """S times K models; row s K + k is cluster k of start s."""

    Options: ClassVar[type[MethodOptions]] = IfcaOptions
    about: ClassVar[About] = About(
        "IFCA",
        "client-side",
        "sums",
        "assignment, model, for each restart",
        client="S·R·K·M, S-1 trainings a round",
        up="(S-1)·R·M",
        down="S·R·K·M",
    )

    def __init__(self, world: World, **options: Any) -> None:
        how = IfcaOptions(**options)
        self.world, self.clusters, self.restarts, self.first = world, how.clusters, how.restarts, how.first
        self.models = world.different_models(self.restarts * self.clusters)
        self.choice = np.full((self.restarts, world.clients), UNSEEN, np.int64)  # [S C]
        self.validation: Floats = np.full((self.restarts, world.clients), np.nan)  # the latest [S C]
        self.assignment = self.choice[0].copy()
        self.best = 0
        world.ledger.tuning_runs = self.restarts - 1

    def round(self, r: int, participants: Ints) -> bool:
        """Choose, train and average in every start; tell that nobody was redistributed."""
        self.world.ledger.received(
            "model", participants, self.world.down_bytes(self.models) * len(self.models)
        )
        with self.world.ledger.clock("client", "clustering"):
            choice = np.stack([self._choose(participants, s) for s in range(self.restarts)])  # [S n]
            if self.first == "random":
                choice = np.where(self.choice[:, participants] == UNSEEN, self._drawn(participants), choice)
        self.choice[:, participants] = choice
        first = np.arange(self.restarts)[:, None] * self.clusters  # row of each start [S 1]
        rows = np.where(self.choice == UNSEEN, UNSEEN, self.choice + first)  # [S C]
        pick = rows[:, participants].ravel()
        clients = np.tile(participants, self.restarts)
        trained = self.world.train(self.models, pick, clients, r, fetched=True)
        self.models = self.world.average(self.models, trained, pick, clients, members=rows.ravel())
        self.world.ledger.sent("assignment", participants, 8 * self.restarts)  # choice and accuracy
        if self.restarts > 1:
            self._validate(pick, participants)
        self.assignment = self.choice[self.best].copy()
        return False

    def _choose(self, clients: Ints, start: int) -> Ints:
        """Let clients [n] take the model of a start with the lowest training loss [n]."""
        loss = self._losses(clients, start)
        lowest: Ints = np.argmin(np.where(np.isnan(loss), np.inf, loss), axis=1)  # not one that diverged
        return lowest

    def _drawn(self, clients: Ints) -> Ints:
        """Draw a model of each start for clients [S n]; a client's draw depends on nobody else."""
        draws = (stream(self.world.seed, "ifca", client) for client in clients.tolist())
        rows = [draw.integers(self.clusters, size=self.restarts) for draw in draws]
        return np.array(rows, np.int64).reshape(len(clients), self.restarts).T

    def _losses(self, clients: Ints, start: int) -> Floats:
        """Let clients [n] try all models of a start on their training samples [n K]."""
        pick = np.tile(np.arange(self.clusters), len(clients)) + start * self.clusters
        loss, _ = self.world.trainer.judge(self.models, pick, np.repeat(clients, self.clusters), "train")
        return loss.reshape(len(clients), self.clusters)

    def _validate(self, pick: Ints, participants: Ints) -> None:
        """Judge every start by the mean of all clients' latest accuracies.

        That is a sum: a participant sends the change of its own. It fetches its averaged models for it.
        """
        clients = np.tile(participants, self.restarts)
        self.world.ledger.received("tuning", participants, self.world.down_bytes(self.models) * self.restarts)
        with self.world.ledger.clock("client", "tuning"):
            _, accuracy = self.world.trainer.judge(self.models, pick, clients, "held")
            none = np.isnan(accuracy)
            if none.any():
                _, known = self.world.trainer.judge(self.models, pick[none], clients[none], "train")
                accuracy[none] = known
                if NOTHING_HELD not in self.world.notes:
                    self.world.notes.append(NOTHING_HELD)
        self.validation[:, participants] = accuracy.reshape(self.restarts, -1)
        told = (~np.isnan(self.validation)).sum(axis=1)  # nobody, where all who were asked are lost
        self.best = int((np.nansum(self.validation, axis=1) / np.maximum(told, 1)).argmax())

    def serving(self) -> Ints:
        """Serve each client its model of the best start; one never seen takes the lowest loss."""
        serving, unseen = self.assignment.copy(), np.flatnonzero(self.assignment == UNSEEN)
        if len(unseen):
            serving[unseen] = self._choose(unseen, self.best)
        rows: Ints = serving + self.best * self.clusters
        return rows

    def finish(self) -> Outcome:
        """Let every client choose a last time; who cannot be asked stays where it was."""
        loss = self._losses(np.arange(self.world.clients), self.best)
        lowest = np.argmin(np.where(np.isnan(loss), np.inf, loss), axis=1)
        return Outcome(np.where(np.isnan(loss).all(axis=1), self.assignment, lowest))

    def state(self) -> Arrays:
        """Give choices and accuracies in all starts."""
        return {"choice": self.choice, "validation": self.validation, "best": np.array(self.best)}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.choice = arrays["choice"].astype(np.int64)
        self.validation = arrays["validation"].astype(np.float64)
        self.best = int(arrays["best"])
