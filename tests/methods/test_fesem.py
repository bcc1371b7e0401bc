"""FeSEM: the nearest centre by hand, the first training of a newcomer, and its three ways to begin."""

import numpy as np
import pytest
import torch

from flameche.methods.base import UNSEEN
from flameche.methods.fesem import Fesem
from tests.methods.worlds import paper_world, partition, play

FAR = [[0.0, 0.0], [10.0, 0.0]]  # two centres


def apart(targets, **options):
    """A method whose two centres begin at FAR. At share 1 a first model is the target, from any centre."""
    trainer = {key: options.pop(key) for key in ("share", "layers", "starts", "seed") if key in options}
    world = paper_world(targets, **{"starts": FAR, **trainer})
    return Fesem(world, **{"clusters": 2, "start": "different", **options}), world.trainer


def test_a_client_joins_the_centre_nearest_to_its_weights():
    # By angle or by length (4.9 0.1) and (5.1 9) would go elsewhere.
    method, _ = apart([[4.9, 0.1], [5.1, 9], [-3, 0], [30, 0]])
    assert method.round(1, np.arange(4)) is False
    assert method.assignment.tolist() == [0, 1, 0, 1]
    expected = torch.tensor([[0.95, 0.05], [17.55, 4.5]]).double()
    assert torch.allclose(method.models.params, expected, atol=1e-12)


def test_distances_are_euclidean():
    # (5 3) is 5.8, 6 and 6.4 away from these; the sum of differences would choose the second, their
    # maximum the third.
    method, _ = apart([[5, 3]], starts=[[0, 0], [5, 9], [0.5, 7.5]], clusters=3)
    method.round(1, np.array([0]))
    assert method.assignment.tolist() == [0]


def test_first_time_clients_train_once_more_and_are_charged_for_it():
    method, trainer = apart([[1, 0], [2, 0], [9, 0]])
    play(method, [[0, 1], [1, 2]])
    assert trainer.trained(1) == [[0, 1]] * 2 and trainer.trained(2) == [[2], [1, 2]]
    size = 24  # two weights and a buffer, of eight bytes
    assert method.world.ledger.per_client("up").tolist() == [2 * size, 3 * size, 2 * size]
    assert method.world.ledger.per_client("down").tolist() == [2 * size, 3 * size, 2 * size]


def test_the_first_training_decides_the_centre_and_moves_none():
    method, trainer = apart([[1, 0], [9, 0]], share=0.5)
    method.round(1, np.array([0, 1]))
    (_, _, begun, _), (_, _, again, _) = trainer.calls
    # Each first trains from its drawn centre; then from the nearest one, and only that is averaged.
    halfway = (np.array(begun) + np.array([[1, 0], [9, 0]])) / 2
    nearest = np.linalg.norm(halfway[:, None] - np.array(FAR), axis=2).argmin(axis=1)
    assert method.assignment.tolist() == nearest.tolist()
    assert again == np.array(FAR)[nearest].tolist()
    assert method.local.params.tolist() == ((np.array(again) + np.array([[1, 0], [9, 0]])) / 2).tolist()


def test_the_drawn_centre_is_the_clients_own_and_serves_it_until_it_comes():
    method, trainer = apart(np.zeros((30, 2)), share=0.0)
    assert set(method.first.tolist()) == {0, 1} and np.array_equal(method.serving(), method.first)
    method.round(1, np.array([7, 3, 20]))
    assert trainer.calls[0][2] == np.array(FAR)[method.first[[7, 3, 20]]].tolist()
    # At share 0 nobody moves, so the centre one trained from is the nearest.
    assert np.array_equal(method.assignment[[7, 3, 20]], method.first[[7, 3, 20]])
    other, _ = apart(np.zeros((30, 2)), seed=1)
    assert not np.array_equal(other.first, method.first)


def test_a_client_is_judged_by_the_weights_it_last_sent():
    method, trainer = apart([[1, 0], [9, 0]])
    method.round(1, np.array([0, 1]))
    trainer.targets[0] = torch.tensor([8.0, 0.0])
    method.round(2, np.array([0]))  # still known by (1 0); trains to (8 0) and drags its centre there
    assert method.assignment.tolist() == [0, 1] and method.models.params.tolist() == [[8, 0], [9, 0]]
    method.models = method.models.pick(np.array([1, 0]))  # the centres change places, and so do clients
    method.round(3, np.array([0, 1]))
    assert method.assignment.tolist() == [1, 0]


def test_a_centre_that_nobody_chose_keeps_its_place():
    method, _ = apart([[1, 0], [9, 0]])
    method.round(1, np.array([0]))
    assert method.models.params.tolist() == [[1, 0], [10, 0]]
    method.round(2, np.array([1]))
    assert method.models.params.tolist() == [[1, 0], [9, 0]]


def test_one_layer_alone_can_decide():
    # All parameters say the first centre; the last one, the "head", says the second.
    starts, layers = [[0, 0, 0], [10, 0, 1]], {"head": slice(2, 3)}
    for layer, expected in (("", 0), ("head", 1)):
        method, _ = apart([[1, 0, 0.9]], starts=starts, layers=layers, layer=layer)
        method.round(1, np.array([0]))
        assert method.assignment.tolist() == [expected]
        assert method.models.params[expected].tolist() == [1, 0, 0.9]  # the whole model is averaged


# The start

PAIRS = [[1, 0], [3, 0], [0, 20], [0, 24]]


def begun(targets=PAIRS, first=(0, 1, 2, 3), **options):
    share = options.pop("share", 1.0)
    world = paper_world(targets, share=share, starts=options.pop("starts", [[0, 0]]))
    method = Fesem(world, **{"clusters": 2, **options})
    method.round(1, np.array(first))
    return method, world.trainer


def test_kmeans_over_the_first_weights_gives_the_centres_by_default():
    method, trainer = begun(share=0.5)
    (_, who, start, _), (_, again, centres, _) = trainer.calls
    assert who == again == [0, 1, 2, 3] and start == [[0, 0]] * 4
    # First weights (0.5 0) (1.5 0) (0 10) (0 12): the centres are their means, from which all train.
    assert centres == [[1, 0], [1, 0], [0, 11], [0, 11]]
    left, right = method.assignment[[0, 2]]
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2, 3})}
    assert method.models.params[left].tolist() == [1.5, 0]  # 1 -> 1 and 2
    assert method.models.params[right].tolist() == [0, 16.5]  # 11 -> 15.5 and 17.5


def test_after_a_kmeans_start_newcomers_first_train_from_the_initial_model():
    method, trainer = begun([*PAIRS, [0, 19]], starts=[[7, 7]])
    method.round(2, np.array([4, 0]))
    assert trainer.calls[2][1:3] == ([4], [[7, 7]])
    assert method.assignment[4] == method.assignment[2]


def test_newcomers_may_be_compared_with_the_centres_as_they_first_were():
    # Centres begin at (2 0) and (0 22); the second goes on to (0 90), and (0 12) is nearer to the first then.
    for newcomers, joined in (("moved", 0), ("first", 2)):
        method, trainer = begun([*PAIRS, [0, 12]], newcomers=newcomers)
        trainer.targets[2:4] = torch.tensor([[0.0, 90.0], [0.0, 90.0]])
        method.round(2, np.array([2, 3]))
        method.round(3, np.array([4]))
        assert method.assignment[4] == method.assignment[joined]
        method.round(4, np.array([4]))  # it is known now, and stays with the centre that it moved to itself
        assert method.assignment[4] == method.assignment[joined]


def test_kmeans_looks_at_the_named_layer_only():
    targets = [[0, 0], [0, 5], [90, 0], [90, 5]]
    world = paper_world(targets, layers={"head": slice(1, 2)})
    method = Fesem(world, clusters=2, layer="head")
    method.round(1, np.arange(4))
    assert partition(method.assignment) == {frozenset({0, 2}), frozenset({1, 3})}


def test_fewer_first_clients_than_centres_leave_the_others_at_the_initial_model():
    method, _ = begun(first=(0, 2), clusters=3, starts=[[9, 9]])
    assert sorted(method.models.params.tolist()) == [[0, 20], [1, 0], [9, 9]]


def test_different_centres_are_different_initial_models():
    method, trainer = begun(start="different", starts=[[2, 2], [0, 30]])
    assert sorted(trainer.calls[1][2]) == [[0, 30], [0, 30], [2, 2], [2, 2]]
    assert method.assignment.tolist() == [0, 0, 1, 1]


def test_equal_centres_are_no_choice_so_in_the_first_round_all_are_with_the_first():
    """`start = "shared"`: K copies are equally near and ties go to the first."""
    method, trainer = begun(start="shared", starts=[[5, 5]])
    assert all(start == [[5, 5]] * 4 for _, _, start, _ in trainer.calls)
    assert method.assignment.tolist() == [0] * 4
    assert method.models.params.tolist() == [[1, 11], [5, 5]]  # the mean of all, and a copy that nobody chose
    method.round(2, np.arange(4))
    # (1 0) and (3 0) are nearer to the copy that stayed: the clusters part after all.
    assert method.assignment.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("start", ["kmeans", "different", "shared"])
def test_one_never_seen_has_no_cluster_but_is_served(start):
    method, _ = begun(first=(0, 2), start=start, starts=FAR)
    assert method.assignment[[1, 3]].tolist() == [UNSEEN] * 2
    assert np.array_equal(method.serving()[[1, 3]], method.first[[1, 3]])
    assert np.array_equal(method.serving()[[0, 2]], method.assignment[[0, 2]])
