"""Worlds in which training can be done on paper: every client moves a model towards a target of its own."""

import numpy as np
import torch

from flameche.crypto.plain import Plain
from flameche.crypto.secagg.driver import Costs
from flameche.metadata.extractors import ClientSamples, Metadata
from flameche.methods.base import World
from flameche.protocol.ledger import Ledger
from flameche.training.models import Models
from flameche.training.trainer import TrainingPlan
from tests.conftest import no_samples, planted_metadata


class TargetTrainer:
    """Client i takes a model a `share` of the way to targets[i]; its loss is half the squared distance left.

    With a pull of strength mu towards g it heads for (target + mu g) / (1 + mu), where the loss and the
    pull together are smallest. The only buffer counts trainings. Initial model number n is starts[n].
    Held-back samples lie at `held`, if there are any. `calls` remembers (round, clients, models they began
    from, mu).
    """

    def __init__(self, targets, *, starts=None, share=1.0, held=None, layers=None):
        self.targets = torch.tensor(np.array(targets), dtype=torch.float64)
        zeros = torch.zeros(1, self.targets.shape[1], dtype=torch.float64)
        self.starts = zeros if starts is None else torch.tensor(np.array(starts), dtype=torch.float64)
        self.held = None if held is None else torch.tensor(np.array(held), dtype=torch.float64)
        self.share, self.layers, self.calls = share, layers or {}, []
        self.sizes, self.plan = np.full(len(self.targets), 10), TrainingPlan()

    def initial(self, number=0):
        return Models(self.starts[[number]].clone(), torch.zeros(1, 1, dtype=torch.float64))

    def train(self, models, pick, clients, round, pull=None, sgd=None):
        assert len(clients), "the real trainers have nothing to stack when nobody trains"
        begin, mu = models.pick(pick), pull.strength if pull else 0.0
        self.calls.append((round, clients.tolist(), begin.params.tolist(), mu))
        goal = self.targets[torch.from_numpy(clients)]
        if pull:
            goal = (goal + mu * pull.target.params[0]) / (1 + mu)
        return Models(begin.params + self.share * (goal - begin.params), begin.buffers + 1)

    def judge(self, models, pick, clients, part):
        where = self.held if part == "held" else self.targets
        if where is None:
            return np.full(len(pick), np.nan), np.full(len(pick), np.nan)
        away = (models.pick(pick).params - where[torch.from_numpy(clients)]).norm(dim=1).numpy()
        return away**2 / 2, 1 / (1 + away)

    def accuracy(self, models, pick):
        return self.judge(models, pick, np.arange(len(pick)), "test")[1]

    def layer(self, name):
        return self.layers[name]

    def state(self):
        return {}

    def restore(self, arrays):
        pass

    def trained(self, round):
        """List who trained in a round, call after call."""
        return [clients for r, clients, _, _ in self.calls if r == round]


def paper_world(targets, *, rounds=10, seed=0, group=None, samples=None, metadata=None, **trainer):
    """A world of a TargetTrainer."""
    clients = len(targets)
    return World(
        clients=clients,
        rounds=rounds,
        seed=seed,
        trainer=TargetTrainer(targets, **trainer),
        ledger=Ledger(clients),
        scheme=Plain(),
        extract=lambda: metadata,
        samples=no_samples if samples is None else lambda: samples,
        group=np.zeros(clients, np.int64) if group is None else np.asarray(group),
    )


def pixel_samples(clients, classes):
    """Samples from one list of (label, pixels) per client."""
    flat = [(label, pixels) for own in clients for label, pixels in own]
    x = np.array([pixels for _, pixels in flat], np.uint8)[:, None, None, :]
    offsets = np.cumsum([0, *(len(own) for own in clients)])
    return ClientSamples(x, np.array([label for label, _ in flat]), offsets, classes)


# Twelve clients in three groups, all seen in round 4 and not before; groups 1 and 2 rest in round 5.
GROUP = np.repeat([0, 1, 2], 4)
SCHEDULE = [
    [0, 4, 8, 1, 5],
    [4, 8, 9, 2, 6],
    [0, 2, 6, 10, 3],
    [7, 11, 1, 9, 5],
    [3, 0, 1],
    [11, 10, 7, 5, 0, 2],
]


def planted_world(order=None, *, seed=0, noise=0.3, share=0.5, one_group=False):
    """Three groups that every method can find in its own way; `order` says who stands at each place."""
    order = np.arange(12) if order is None else order
    rng = np.random.default_rng(5)
    targets = 4.0 * np.eye(4)[GROUP] + noise * rng.normal(size=(12, 4))
    starts = np.concatenate([np.zeros((1, 4)), 2 * rng.normal(size=(11, 4))])
    metadata, _ = planted_metadata(clients=12, groups=3, noise=0.4)
    # Class c of group g lights pixel 2 g + c, so that class means and subspaces tell groups apart.
    images = 200 * np.eye(6)[2 * GROUP[:, None] + np.arange(2)] + rng.integers(0, 40, (12, 2, 6))
    samples = pixel_samples([list(enumerate(images[i])) for i in order], 2)
    return paper_world(
        targets[order],
        rounds=len(SCHEDULE),
        seed=seed,
        group=np.zeros(12, np.int64) if one_group else GROUP[order],
        samples=samples,
        metadata=metadata.of(order),
        starts=starts,
        share=share,
        held=targets[order] + 0.1,
        layers={"head": slice(1, 3)},
    )


def play(method, schedule=SCHEDULE, first=1):
    """Play rounds with these clients; give what each round said."""
    return [method.round(r, np.array(clients)) for r, clients in enumerate(schedule, first)]


def partition(assignment):
    """Give the sets of clients that are together, whatever their numbers."""
    known = np.unique(assignment[assignment >= 0])
    return {frozenset(np.flatnonzero(assignment == k).tolist()) for k in known}


def in_the_clear(vectors, **_):
    """A session's result without its cryptography, which has tests of its own."""
    costs = np.zeros(len(vectors), np.int64)
    return vectors.sum(axis=0), list(range(len(vectors))), Costs(costs, costs, 0.0, 0.0)


def missing_labels(metadata, labels=1, seed=0):
    rng, counts = np.random.default_rng(seed), metadata.counts.copy()
    for own in counts:
        own[rng.choice(counts.shape[1], labels, replace=False)] = 0
    return Metadata(metadata.phi * (counts > 0)[:, :, None], counts)


def draw(r, clients, count):
    """Draw a round's participants."""
    return np.sort(np.random.default_rng([7, r]).permutation(clients)[:count])


def live(method, metadata, late, rounds):
    """Play rounds of 24 of the clients there; from round 3 on some that were late, in round 4 one drifts."""
    for r in rounds:
        if r == 3:
            method.join(late)
        if r == 4:
            method.drift(np.array([1]), metadata.of(np.array([0])))
        method.round(r, np.setdiff1d(draw(r, len(metadata), 24), np.flatnonzero(method.left)))
