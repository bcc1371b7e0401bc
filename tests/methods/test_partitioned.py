from dataclasses import replace

import numpy as np
import torch

from flameche.methods import METHODS
from flameche.methods.base import DIVERGED
from flameche.methods.fedavg import FedAvg
from flameche.methods.flameche import Flameche
from flameche.methods.oracle import Oracle
from flameche.models.build import build_model
from flameche.simulation.engine import simulate
from flameche.training.loop import LoopTrainer
from flameche.training.trainer import TrainingPlan
from tests.conftest import clustering_world, planted_metadata, tiny_federation


def training_world(group, model="small-cnn", **plan):
    federation = tiny_federation(sizes=(6, 9, 5, 8))
    module = build_model(model, federation.shape, federation.classes, seed=0)
    how = TrainingPlan(epochs=1, batch=4, **plan)
    trainer = LoopTrainer(module, federation, how, seed=0, dtype=torch.float64)
    metadata, _ = planted_metadata(clients=4, groups=2)
    return clustering_world(metadata, group, rounds=3, trainer=trainer)


def play(kind, group, **options):
    world = training_world(group)
    method = METHODS[kind](world, **options)
    simulate(method, world, 4)
    return method


def test_with_one_group_every_method_is_fedavg():
    nobody = np.zeros(4, np.int64)
    fedavg, oracle = play("fedavg", nobody), play("oracle", nobody)
    flameche = play("flameche", nobody, clusters=1)
    assert torch.equal(fedavg.models.params, oracle.models.params)
    assert torch.equal(fedavg.models.params, flameche.models.params)


def test_flameche_with_the_right_clusters_trains_oracles_models():
    group = np.array([0, 0, 1, 1])
    world = training_world(group)
    flameche = Flameche(world, clusters=2, tau=0)
    flameche._partition(np.arange(4))
    flameche.centroids = replace(flameche.centroids, theta=world.metadata.phi[[0, 2]])  # the right ones
    oracle = Oracle(training_world(group))
    for r in (1, 2):
        flameche.init = "given"
        flameche.round(r, np.arange(4))
        oracle.round(r, np.arange(4))
    assert flameche.assignment.tolist() == group.tolist()
    assert torch.equal(flameche.models.params, oracle.models.params)


def test_fedavg_averages_all_participants_by_hand():
    world = training_world(np.zeros(4, np.int64))
    method = FedAvg(world)
    start = method.models
    method.round(1, np.array([0, 2]))
    trained = world.trainer.train(start, np.zeros(2, np.int64), np.array([0, 2]), 1)
    assert torch.allclose(method.models.params[0], trained.params.mean(0), rtol=1e-12)


def test_samples_weigh_where_asked():
    world = training_world(np.zeros(4, np.int64))
    world.weighting = "samples"
    method = FedAvg(world)
    start = method.models
    method.round(1, np.array([0, 1]))
    trained = world.trainer.train(start, np.zeros(2, np.int64), np.array([0, 1]), 1).params
    assert torch.allclose(method.models.params[0], (6 * trained[0] + 9 * trained[1]) / 15, rtol=1e-12)


def test_so_far_towards_the_average_is_the_average_with_absent_members_as_they_were():
    world = training_world(np.zeros(4, np.int64))
    world.server_lr = 0.5
    method = FedAvg(world)
    start = method.models
    method.round(1, np.array([0, 2]))
    trained = world.trainer.train(start, np.zeros(2, np.int64), np.array([0, 2]), 1)
    everybody = torch.cat([trained.params, start.params, start.params])
    assert torch.allclose(method.models.params[0], everybody.mean(0), rtol=1e-12)


def test_absent_members_that_stay_count_with_the_model_as_it_was():
    world = training_world(np.array([0, 0, 0, 1]))
    world.absent = "stay"
    method = Oracle(world)
    method.round(1, np.arange(4))  # who has never taken part is no member
    start = method.models
    method.round(2, np.array([0, 2, 3]))
    trained = world.trainer.train(start, np.array([0, 0, 1]), np.array([0, 2, 3]), 2)
    first = torch.cat([trained.params[:2], start.params[:1]])  # client 1 is absent
    assert torch.allclose(method.models.params[0], first.mean(0), rtol=1e-12)
    assert torch.equal(method.models.params[1], trained.params[2])  # all of its group is there


def test_the_first_members_statistics_change_when_it_takes_part():
    world = training_world(np.zeros(4, np.int64), "tests.nets:normed", bn_buffers="member")
    method = FedAvg(world)

    def trained(r, *clients):
        start = method.models
        method.round(r, np.array(clients))
        return world.trainer.train(start, np.zeros(len(clients), np.int64), np.array(clients), r).buffers

    first = trained(1, 1, 3)  # of those who came, 1 is the first
    assert torch.equal(method.models.buffers[0], first[0]) and not torch.equal(*first)
    assert torch.equal(trained(2, 0, 2)[0], method.models.buffers[0])
    before = method.models.buffers
    trained(3, 1, 2)
    assert torch.equal(method.models.buffers, before)  # 0 is absent
    trained(4, 2, 3)
    assert torch.equal(method.models.buffers, before)


def test_the_first_members_of_several_starts_are_told_apart():
    world = training_world(np.zeros(4, np.int64))
    members = np.array([0, 1, 0, -1, 3, 2, 2, -1])  # clusters 0 and 1 of a start, 2 and 3 of another
    places = world._holders(4, np.array([0, 1, 2, 2]), np.array([2, 1, 1, 2]), members)
    assert places.tolist() == [-1, 1, 2, -1]  # client 0 is the first of cluster 0, and absent
    alone = world._holders(1, np.array([0, 0]), np.array([2, 3]), None)
    assert alone.tolist() == [0]


def test_oracle_confesses_that_it_knows_the_truth():
    world = training_world(np.array([0, 0, 1, 1]))
    Oracle(world)
    assert world.ledger.oracle_knowledge == ["the true groups"]
    world = training_world(np.array([0, 0, 1, 1]))
    Flameche(world, clusters=2)
    assert world.ledger.oracle_knowledge == []


def test_local_batchnorm_statistics_are_not_sent():
    world = training_world(np.zeros(4, np.int64))
    models = world.trainer.initial()
    both = models.nbytes()
    assert models.nbytes(with_buffers=False) == both - models.buffers.shape[1] * 8


def test_model_bytes_are_counted_both_ways():
    world = training_world(np.zeros(4, np.int64))
    FedAvg(world).round(1, np.array([1, 3]))
    size = world.trainer.initial().nbytes()
    assert world.ledger.per_client("up").tolist() == [0, size, 0, size]
    assert world.ledger.per_client("down").tolist() == [0, size, 0, size]


def test_a_model_that_diverges_is_noted():
    world = training_world(np.zeros(4, np.int64))
    method = FedAvg(world)
    method.models = type(method.models)(method.models.params * float("nan"), method.models.buffers)
    method.round(1, np.array([0, 1]))
    method.round(2, np.array([0, 1]))
    assert [note for note in world.notes if "diverged" in note] == [DIVERGED]
