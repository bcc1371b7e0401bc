"""K-Fed: farthest-first seeds by hand, Lloyd against a plain loop, and the one shot in its round."""

import numpy as np
import pytest
import torch

from flameche.methods.base import UNSEEN
from flameche.methods.fedavg import FedAvg
from flameche.methods.kfed import KFed, farthest_first
from tests.methods.worlds import GROUP, SCHEDULE, paper_world, partition, pixel_samples, planted_world, play

POINTS = np.array([[0, 0], [1, 0], [10, 0], [10, 1], [0, 6]], float)


def world_of(points, **options):
    """A client for every point, its class mean; targets 0, 1, 2, ..."""
    samples = pixel_samples([[(0, point)] for point in points], 1)
    return paper_world(np.arange(float(len(points)))[:, None], samples=samples, **options)


def lloyd(points, seeds):
    """Iterate k-means until nothing moves, the plain way."""
    centres = points[seeds]
    while True:
        label = np.linalg.norm(points[:, None] - centres, axis=2).argmin(axis=1)
        new = np.stack([points[label == k].mean(axis=0) for k in range(len(centres))])
        if np.array_equal(new, centres):
            return label
        centres = new


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (1, [0]),
        (2, [0, 3]),  # (10 1) is a little farther than (10 0)
        (3, [0, 3, 4]),  # (0 6) is 6 from the first; (10 0) is 1 from the second
        (4, [0, 3, 4, 1]),  # (1 0) and (10 0) are 1 away: the lower index
    ],
)
def test_seeds_are_the_first_point_and_then_always_the_farthest_from_all_chosen(count, chosen):
    assert farthest_first(POINTS, count).tolist() == chosen


def test_clusters_by_hand():
    method = KFed(world_of(10 * POINTS), clusters=3)
    assert partition(method.partition()) == {frozenset({0, 1}), frozenset({2, 3}), frozenset({4})}
    method = KFed(world_of(10 * POINTS), clusters=2)
    assert partition(method.partition()) == {frozenset({0, 1, 4}), frozenset({2, 3})}


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_of_plain_lloyd_from_the_same_seeds(seed):
    points = np.random.default_rng(seed).integers(0, 256, (40, 3)).astype(float)
    found = KFed(world_of(points), clusters=4).partition()
    assert np.array_equal(found, lloyd(points, farthest_first(points, 4)))


def test_a_summary_is_all_class_means_side_by_side_and_zeros_for_a_class_one_lacks():
    own = [[(0, [0, 51]), (0, [102, 51]), (1, [255, 255])], [(1, [51, 0])]]
    method = KFed(paper_world([[0.0], [1.0]], samples=pixel_samples(own, 2)))
    assert method.points == pytest.approx(np.array([[0.2, 0.2, 1, 1], [0, 0, 0.2, 0]]))
    assert (method.summary_numbers() == 4).all()


def test_the_shot_falls_in_the_round_in_which_the_last_client_is_seen():
    method = KFed(planted_world(), clusters=3)
    assert play(method, SCHEDULE[:3]) == [False] * 3
    assert (method.assignment == UNSEEN).all() and method.clusters == 1
    assert set(method.serving().tolist()) == {0}
    assert play(method, SCHEDULE[3:4], first=4) == [True]
    assert partition(method.assignment) == partition(GROUP)
    assert play(method, SCHEDULE[4:], first=5) == [False] * 2
    assert partition(method.assignment) == partition(GROUP)


def test_every_cluster_starts_from_the_model_that_fedavg_trained_until_then():
    method, fedavg = KFed(planted_world(), clusters=3), FedAvg(planted_world())
    for r, clients in enumerate(SCHEDULE[:4], 1):
        method.round(r, np.array(clients))
        fedavg.round(r, np.array(clients))
        assert torch.equal(method.models.params, fedavg.models.params.expand(method.clusters, -1))
    assert method.clusters == 3


def test_inside_clusters_models_are_averaged_by_hand():
    method = KFed(world_of(10 * POINTS), clusters=2)
    method.round(1, np.arange(5))
    assert method.models.params.tolist() == [[2], [2]]  # the mean of targets 0 to 4
    method.round(2, np.array([4, 1]))
    left, right = method.assignment[[0, 2]]
    assert method.models.params[left].item() == 2.5 and method.models.params[right].item() == 2
    method.round(3, np.array([2, 3, 0]))
    assert method.models.params[left].item() == 0 and method.models.params[right].item() == 2.5


def test_one_cluster_is_one_shot_too():
    method = KFed(world_of(10 * POINTS), clusters=1)
    assert play(method, [[0, 1, 2], [3, 4], [0, 1]]) == [False, True, False]
    assert set(method.assignment.tolist()) == {0} and method.finish().assignment is None


def test_a_summary_goes_up_once_when_a_client_first_takes_part():
    world = planted_world()
    method = KFed(world, clusters=3)
    sent = []
    for r, clients in enumerate(SCHEDULE, 1):
        method.round(r, np.array(clients))
        sent.append((world.ledger.up["metadata"] // (4 * 12)).tolist())  # two classes of six pixels
    assert sent[0] == [1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    assert sent[1] == [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0]
    assert sent[3] == sent[5] == [1] * 12


def test_a_client_that_never_comes_holds_up_the_shot():
    method = KFed(world_of(10 * POINTS), clusters=2)
    assert play(method, [[0, 1, 2, 3]] * 5) == [False] * 5
    assert method.clusters == 1 and method.finish().assignment is None
