"""FedGroup on updates of two or three numbers, whose groups can be seen by eye."""

import numpy as np
import pytest
import torch

from flameche.methods.base import UNSEEN
from flameche.methods.fedgroup import FedGroup, edc
from flameche.training.models import Models
from tests.methods.worlds import paper_world, partition, play


def updates(rows):
    params = torch.tensor(np.array(rows), dtype=torch.float64)
    return Models(params, torch.zeros(len(params), 0, dtype=torch.float64))


def grouped(targets, *, cold=((0, 1, 2, 3),), **options):
    """Play a cold start in a world of two groups."""
    trainer = {key: options.pop(key) for key in ("starts", "share") if key in options}
    world = paper_world(targets, **trainer)
    method = FedGroup(world, **{"clusters": 2, "cold_rounds": len(cold), **options})
    play(method, cold)
    return method, world.trainer


# Two clients along the first axis, two along the second; what the others do is each test's own.
CROSS = [[2, 0], [4, 0], [0, 2], [0, 6]]


# The decomposed cosine features


def test_edc_by_hand_with_updates_along_the_axes():
    # The longest direction of all updates is the first axis (lengths 1 and 2), then the second (length 1).
    found = edc(updates([[1, 0], [2, 0], [0, 1]]), 2)
    assert found == pytest.approx(np.array([[1, 0], [1, 0], [0, 1]]))


def test_edc_by_hand_with_updates_beside_a_diagonal():
    # (3 4) and (4 3) have the directions (1 1) and (1 -1): cosines 7 / (5 sqrt 2) and 1 / (5 sqrt 2).
    found = np.abs(edc(updates([[3, 4], [4, 3]]), 2))
    assert found == pytest.approx(np.array([[7, 1], [7, 1]]) / (5 * np.sqrt(2)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_edc_is_what_numpys_svd_gives(count):
    rows = np.array([[1.0, 2.0, 0.5], [1.5, 1.8, 0.0], [-2.0, 0.3, 1.0], [-1.0, 0.5, 0.7], [0.2, -3.0, 1.0]])
    axes = np.linalg.svd(rows.T, full_matrices=False)[0][:, :count]
    expected = rows @ axes / np.linalg.norm(rows, axis=1, keepdims=True)
    found = edc(updates(rows), count)
    assert found.shape == (5, count)
    assert np.abs(found) == pytest.approx(np.abs(expected), abs=1e-10)
    assert found @ found.T == pytest.approx(expected @ expected.T, abs=1e-10)  # signs are free


# The cold start


def test_a_groups_model_is_the_mean_of_its_members_models_and_the_last_row_their_mean():
    method, _ = grouped(CROSS)
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2, 3})}
    x, y = method.assignment[[0, 2]]
    assert method.models.params[x].tolist() == [3, 0] and method.models.params[y].tolist() == [0, 4]
    assert method.models.params[2].tolist() == [1.5, 2] and len(method.models) == 3


def test_a_groups_direction_is_the_mean_of_its_members_updates():
    method, _ = grouped([[12, 7], [14, 7], [10, 9], [10, 13]], starts=[[10, 7]])
    x, y = method.assignment[[0, 2]]
    assert method.direction.params[x].tolist() == [3, 0] and method.direction.params[y].tolist() == [0, 4]


def test_groups_go_by_direction_not_by_length():
    # In length, 0 belongs to 2 and 1 to 3.
    method, _ = grouped([[1, 0], [100, 0], [0, 1], [0, 100]])
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2, 3})}


def test_the_cold_start_takes_two_rounds_and_each_client_trains_once_from_the_initial_model():
    world = paper_world(CROSS, starts=[[1, 1]])
    method = FedGroup(world, clusters=2)
    assert method.round(1, np.array([0, 2])) is False
    assert (method.assignment == UNSEEN).all()
    assert method.models.params.tolist() == [[1, 1]] * 3  # nothing is averaged yet
    assert method.round(2, np.array([2, 3, 1])) is True
    assert world.trainer.trained(1) == [[0, 2]] and world.trainer.trained(2) == [[1, 3]]
    assert all(begin == [[1, 1]] * 2 for _, _, begin, _ in world.trainer.calls)
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2, 3})}


def test_a_cold_round_in_which_nobody_is_new_trains_nobody():
    world = paper_world(CROSS)
    method = FedGroup(world, clusters=2)
    assert play(method, [[0, 1, 2, 3], [3, 1]]) == [False, True]
    assert world.trainer.trained(2) == []
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2, 3})}
    assert world.ledger.per_client("up").tolist() == [24] * 4  # one model of two weights and a buffer


def test_a_run_shorter_than_the_cold_start_still_ends_with_groups():
    method = FedGroup(paper_world(CROSS, rounds=1), clusters=2)
    assert method.round(1, np.array([0, 1, 2, 3])) is True
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2, 3})}


def test_a_group_that_the_cold_start_left_empty_keeps_the_initial_model():
    method, _ = grouped(CROSS, cold=([0, 2],), clusters=3, starts=[[1, 1]])
    assert sorted(method.models.params[:3].tolist()) == [[0, 2], [1, 1], [2, 0]]
    assert method.models.params[3].tolist() == [1, 1]


# Newcomers


def test_a_newcomer_joins_the_group_with_the_smallest_angle_to_its_first_update():
    # (5 1) lies by the first axis; (-3 1) turns its back on the first and still leans to the second.
    method, trainer = grouped([*CROSS, [5, 1], [-3, 1]])
    method.round(2, np.array([4, 5, 0]))
    assert method.assignment[4] == method.assignment[0] and method.assignment[5] == method.assignment[2]
    first, inside = trainer.calls[1:]
    assert first[1] == [4, 5] and first[2] == [[0, 0]] * 2  # from the initial model, once
    assert inside[1] == [4, 5, 0] and inside[2] == [[3, 0], [0, 4], [3, 0]]  # then from the groups' own


def test_updates_and_weights_can_disagree_about_a_newcomer():
    # Its update (0.2 0.4) is nearer to (0 1), its weights (10.2 0.4) are nearer to (11 0) than to (10 1).
    targets, starts = [[11, 0], [10, 1], [10.2, 0.4]], [[10, 0]]
    for newcomers, like in (("updates", 1), ("weights", 0)):
        method, _ = grouped(targets, cold=([0, 1],), starts=starts, newcomers=newcomers)
        method.round(2, np.array([2]))
        assert method.assignment[2] == method.assignment[like]


def test_once_in_a_group_always_in_that_group():
    method, trainer = grouped([*CROSS, [5, 1]])
    method.round(2, np.array([4]))
    before = method.assignment.copy()
    trainer.targets[4] = torch.tensor([0.0, 9.0])  # its data change; nobody looks again
    trainer.targets[0] = torch.tensor([0.0, 9.0])
    method.round(3, np.array([4, 0]))
    assert np.array_equal(method.assignment, before)
    assert trainer.trained(3) == [[4, 0]]  # no second first training


# Training and serving


def test_inside_groups_fedavg_goes_on_and_a_resting_group_keeps_its_model():
    method, _ = grouped(CROSS, share=0.5)
    x, y = method.assignment[[0, 2]]
    assert method.models.params[x].tolist() == [1.5, 0] and method.models.params[y].tolist() == [0, 2]
    method.round(2, np.array([0, 1]))  # 1.5 -> 1.75 and 2.75, halfway to 2 and 4
    assert method.models.params[x].tolist() == [2.25, 0] and method.models.params[y].tolist() == [0, 2]
    assert method.models.params[2].tolist() == [1.125, 1]


def test_who_has_no_group_is_served_the_mean_of_the_groups_models():
    method, _ = grouped([*CROSS, [5, 1]])
    assert method.serving().tolist() == [*method.assignment[:4].tolist(), 2]
    assert method.models.pick(method.serving()).params[4].tolist() == [1.5, 2]
