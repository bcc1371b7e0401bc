import numpy as np
import pytest
import torch
from torch import nn

from flameche.training.models import Models, average, read_module, write_module


def models(params, buffers=None):
    params = torch.tensor(params, dtype=torch.float64)
    return Models(
        params, torch.zeros(len(params), 1).double() if buffers is None else torch.tensor(buffers).double()
    )


def test_average_by_hand_and_nobodys_cluster_keeps_its_model():
    previous = models([[9.0], [9.0], [9.0]])
    trained = models([[1.0], [3.0], [5.0]])
    found = average(previous, trained, np.array([0, 0, 2]))
    assert found.params[:, 0].tolist() == [2.0, 9.0, 5.0]


def test_weights_count_samples():
    found = average(models([[0.0]]), models([[1.0], [4.0]]), np.array([0, 0]), weight=np.array([30.0, 10.0]))
    assert found.params[0, 0].item() == pytest.approx(1.75)


def test_equal_weights_are_no_weights():
    rng = np.random.default_rng(0)
    trained = models(rng.normal(size=(6, 4)).tolist())
    previous, cluster = models(np.zeros((2, 4)).tolist()), np.array([0, 1, 0, 1, 1, 0])
    plain = average(previous, trained, cluster)
    weighted = average(previous, trained, cluster, weight=np.full(6, 7.0))
    assert torch.allclose(plain.params, weighted.params, rtol=1e-14)


@pytest.mark.parametrize(("rule", "expected"), [("mean", 3.0), ("first", 2.0), ("local", 8.0)])
def test_buffers_follow_their_rule(rule, expected):
    previous = models([[0.0]], [[8.0]])
    trained = models([[1.0], [1.0]], [[2.0], [4.0]])
    found = average(previous, trained, np.array([0, 0]), buffers=rule)
    assert found.buffers[0, 0].item() == expected


@pytest.mark.parametrize(("holder", "expected"), [(1, 4.0), (0, 2.0), (-1, 8.0)])
def test_a_members_buffers_are_taken_where_it_is_there(holder, expected):
    previous = models([[0.0]], [[8.0]])
    trained = models([[1.0], [3.0]], [[2.0], [4.0]])
    found = average(previous, trained, np.array([0, 0]), buffers="member", holder=np.array([holder]))
    assert found.buffers[0, 0].item() == expected and found.params[0, 0].item() == 2.0


def test_permuting_clients_changes_no_average():
    rng = np.random.default_rng(0)
    params, cluster, order = rng.normal(size=(8, 3)), np.arange(8) % 3, rng.permutation(8)
    previous = models(np.zeros((3, 3)).tolist())
    first = average(previous, models(params.tolist()), cluster)
    second = average(previous, models(params[order].tolist()), cluster[order])
    assert torch.allclose(first.params, second.params, rtol=1e-14)


def test_a_module_is_read_and_written_back_but_for_its_count_of_batches():
    source, target = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    source(torch.randn(5, 3))
    write_module(target, *read_module(source))
    for (name, a), b in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        assert torch.equal(a, b) != name.endswith("num_batches_tracked"), name


def test_arrays_bring_models_back():
    first = models([[1.0, 2.0]], [[3.0]])
    again = first.from_arrays(first.to_arrays())
    assert torch.equal(first.params, again.params) and torch.equal(first.buffers, again.buffers)


def test_one_hot_shares_are_clusters():
    rng = np.random.default_rng(6)
    previous, trained = models(rng.normal(size=(3, 4)).tolist()), models(rng.normal(size=(6, 4)).tolist())
    cluster, weight = np.array([0, 2, 0, 0, 2, 2]), rng.uniform(1, 5, 6)
    for rule in ("mean", "first", "local"):
        plain = average(previous, trained, cluster, weight=weight, buffers=rule)
        shared = average(previous, trained, cluster, weight=weight, buffers=rule, share=np.eye(3)[cluster])
        assert torch.equal(plain.params, shared.params) and torch.equal(plain.buffers, shared.buffers)


def test_shares_weigh_and_less_than_one_client_goes_only_so_far():
    previous, trained = models([[0.0], [8.0], [5.0]]), models([[2.0], [6.0]])
    share = np.array([[0.5, 0.25, 0.0], [1.0, 0.25, 0.0]])
    found = average(previous, trained, np.array([0, 0]), share=share)
    assert torch.allclose(found.params, torch.tensor([[7 / 1.5], [8 - 0.5 * 4], [5.0]]).to(found.params))


@pytest.mark.parametrize(("with_buffers", "stats"), [(True, 1.0), (False, 4.0)])
def test_all_rows_go_part_of_the_way_and_those_that_are_there_stay(with_buffers, stats):
    start, goal = (
        models([[0.0, 4.0], [1.0, 0.1]], [[0.0], [4.0]]),
        models([[4.0, 0.0], [1.0, 0.1]], [[4.0], [4.0]]),
    )
    found = start.towards(goal, np.full(2, 0.25), with_buffers)
    assert found.params.tolist() == [[1.0, 3.0], [1.0, 0.1]]
    assert found.buffers.tolist() == [[stats], [4.0]]
    assert start.towards(goal, np.ones(2), with_buffers).params is goal.params
    other = models([[0.0, 4.0], [3.0, 0.1]], [[0.0], [0.0]]).towards(goal, np.array([1.0, 0.5]), with_buffers)
    assert other.params.tolist() == [[4.0, 0.0], [2.0, 0.1]]
    assert other.buffers.tolist() == [[4.0], [2.0 if with_buffers else 4.0]]


def test_moving_a_row_part_of_the_way_leaves_the_others():
    start = models([[0.0, 4.0], [1.0, 1.0]])
    moved = start.moved(0, np.array([4.0, 0.0]), 0.25)
    assert moved.params.tolist() == [[1.0, 3.0], [1.0, 1.0]]
    assert start.moved(0, np.array([4.0, 0.0]), 1.0).params.tolist() == [[4.0, 0.0], [1.0, 1.0]]
