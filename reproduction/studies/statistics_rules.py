"""What models score under four rules for BatchNorm's statistics, all from one run of FedAvg on PathMNIST.

Clients train in their batches' statistics, so that running ones change no weight. They are linear in what a
client begins with: after n steps 0.9^n of it is left. So one run tells what every rule would have: the `mean`
of the participants', the `first` participant's, the first `member`'s, there or not, and each client's `own`.

    python reproduction/studies/statistics_rules.py one-group [--rounds 100]  # as Oracle trains a group of 25
    python reproduction/studies/statistics_rules.py fds [--rounds 40]  # 20 clients of four groups, one model
    python reproduction/studies/statistics_rules.py table  # results/statistics.md

Appends a line to results/statistics.jsonl every ten rounds; accuracies are on what nine clients hold out. On
two cores a round takes half a minute.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from play_or_table import play_or_table

from flameche.experiments.build import build
from flameche.experiments.provenance import provenance
from flameche.simulation.schedule import draw_participants
from flameche.training.models import Models
from flameche.training.trainer import batch_edges
from flameche_reproduction.planned_runs import PlannedRun
from flameche_reproduction.results_index import ResultsFile, describe_provenance

STORED = Path("results/statistics.jsonl")
KEPT = 0.9  # of running statistics, in each step
SCORED = 9  # clients
WAYS = {
    "one-group": ("data.clients=25", "data.groups=1", "data.heterogeneity=none"),
    "fds": ("data.clients=20", "data.groups=4", "data.heterogeneity=fds", "participation=0.25"),
}
TITLES = {
    "one-group": "One group of 25 clients, five a round: a quarter of Oracle",
    "fds": "Feature distribution skew, 20 clients in four groups, five a round, one model: FedAvg",
}
RULES = ("mean", "first", "member", "own")


def play(way: str, rounds: int, seed: int = 0, out: Path = STORED, more: tuple[str, ...] = ()) -> None:
    """Train, and score every few rounds."""
    held = ("method.kind=fedavg", "data.holdout=0.475", f"rounds={rounds}", *WAYS[way], *more)
    experiment = PlannedRun("pathmnist", "csl", way, seed, held).experiment
    setup = build(experiment, seed, device="cpu")
    trainer, count = setup.world.trainer, experiment.data.clients
    models = setup.world.initial_models(1)
    steps = experiment.training.epochs * (len(batch_edges(int(trainer.sizes[0]), trainer.plan)) - 1)
    left = KEPT**steps
    assert len(set(trainer.sizes.tolist())) == 1  # else clients take other numbers of steps
    rules = dict.fromkeys(("mean", "first", "member"), models.buffers[0])
    own = models.buffers[0].repeat(count, 1)
    scored = np.linspace(0, count - 1, SCORED).astype(np.int64)

    def accuracy(statistics: torch.Tensor, clients: np.ndarray) -> float:
        rows = np.zeros(len(clients), np.int64)
        found = trainer.judge(Models(models.params, statistics[None]), rows, clients, "held")[1]
        return float(found.mean())

    for r in range(1, rounds + 1):
        here = draw_participants(seed, r, count, experiment.participants)
        trained = trainer.train(models, 0 * here, here, r)
        describe_provenance = trained.buffers - left * models.buffers[0]
        rules["mean"] = describe_provenance.mean(0) + left * rules["mean"]
        rules["first"] = describe_provenance[0] + left * rules["first"]
        if 0 in here:
            rules["member"] = describe_provenance[here.tolist().index(0)] + left * rules["member"]
        own[here] = describe_provenance + left * own[here]
        models = Models(trained.params.mean(0, keepdim=True), rules["mean"][None])
        if r % 10 == 0 or r == rounds:
            found = {rule: accuracy(kept, scored) for rule, kept in rules.items()}
            found["own"] = float(np.mean([accuracy(own[c], np.array([c])) for c in scored]))
            line = {"way": way, "seed": seed, "round": r, **{k: round(v, 4) for k, v in found.items()}}
            ResultsFile(out).add({**line, **provenance("cpu")})
            print(json.dumps(line), flush=True)
    trainer.close()


def table() -> None:
    """Write results/statistics.md."""
    lines, parts = ResultsFile(STORED).read(), [f"# BatchNorm's statistics, by four rules\n\n{INTRODUCTION}"]
    for way, title in TITLES.items():
        rows = [
            f"| {line['round']} | " + " | ".join(f"{100 * line[rule]:.1f}" for rule in RULES) + " |"
            for line in lines
            if line["way"] == way
        ]
        head = [
            "| round | participants' mean | first participant's | first member's | own |",
            "|--:|--:|--:|--:|--:|",
        ]
        parts.append("\n".join([f"## {title}\n", *head, *rows]))
    parts.append(describe_provenance(lines))
    STORED.with_suffix(".md").write_text("\n\n".join(parts) + "\n")


INTRODUCTION = """Accuracy in %, PathMNIST, 47.5% held out, on what nine clients hold out; seed 0
(`reproduction/studies/statistics_rules.py`). Weights do not depend on the rule, so that rows are of the
same models. *First member's*: of the first client of the cluster, there or not, so that they change when
it takes part. *Own*: each client's, from when it last took part; in the first table those of four
clients, tried on all nine. These lines were made by a predecessor of the script, with the same
arithmetic; the script itself was run with tiny sizes.
What they are worth: [docs/reproducing.md](../docs/reproducing.md)."""


if __name__ == "__main__":
    play_or_table(__doc__, WAYS, play, table)
