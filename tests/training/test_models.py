import numpy as np
import pytest
import torch
from torch import nn

from flameche.training.models import (
    Models,
    average,
    coordinates,
    cosines,
    directions,
    distances,
    read_module,
    write_module,
)


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


def flat(params, dtype=torch.float64):
    params = torch.tensor(np.array(params), dtype=dtype)
    return Models(params, torch.zeros(len(params), 2, dtype=dtype))


def drawn(count, size=7, seed=0, dtype=torch.float64):
    return flat(np.random.default_rng(seed).normal(size=(count, size)), dtype)


def test_distances_by_hand():
    found = distances(flat([[0, 0], [3, 0]]), flat([[0, 0], [3, 4], [0, -1]]))
    assert found == pytest.approx(np.array([[0, 5, 1], [3, 4, np.sqrt(10)]]))


@pytest.mark.parametrize("part", [slice(None), slice(2, 5)])
def test_distances_are_numpys_over_all_parameters_or_a_part(part):
    a, b = drawn(4), drawn(3, seed=1)
    expected = np.linalg.norm(a.params.numpy()[:, None, part] - b.params.numpy()[None, :, part], axis=2)
    assert distances(a, b, part) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("part", [slice(None), slice(2, 5)])
@pytest.mark.parametrize("piece", [2, 100])
def test_coordinates_keep_every_distance(part, piece, monkeypatch):
    monkeypatch.setattr("flameche.training.models.CHUNK", piece)
    a = flat(drawn(5).params.numpy() + 100)  # far from zero, as weights of one beginning are
    placed = coordinates(a, part)
    assert placed.shape == (5, 5)
    kept = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    assert kept == pytest.approx(distances(a, a, part), abs=1e-7)


def test_one_model_is_placed_at_zero():
    assert coordinates(drawn(1)).tolist() == [[0.0]]


def test_cosines_by_hand():
    found = cosines(flat([[1, 0], [-2, 0], [1, 1]]), flat([[5, 0], [0, 3]]))
    assert found == pytest.approx(np.array([[1, 0], [-1, 0], [np.sqrt(0.5), np.sqrt(0.5)]]))


def test_cosines_are_numpys_and_length_does_not_matter():
    a, b = drawn(4), drawn(3, seed=1)
    x, y = a.params.numpy(), b.params.numpy()
    expected = x @ y.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1))
    assert cosines(a, b) == pytest.approx(expected, rel=1e-12)
    longer = Models(a.params * 1e6, a.buffers)
    assert cosines(longer, b) == pytest.approx(expected, rel=1e-12)


def test_a_cosine_never_leaves_its_range():
    rows = drawn(50, size=1000, dtype=torch.float32)
    found = cosines(rows, rows)
    assert found.max() <= 1.0 and found.min() >= -1.0


def test_a_model_of_zeros_has_cosine_zero_and_a_distance():
    zero, other = flat([[0, 0]]), flat([[3, 4], [0, 0]])
    assert cosines(zero, other).tolist() == [[0, 0]] and cosines(other, zero).tolist() == [[0], [0]]
    assert distances(zero, other).tolist() == [[5, 0]]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_directions_are_numpys_right_singular_vectors_longest_first(count):
    rows = drawn(5)
    axes = np.linalg.svd(rows.params.numpy(), full_matrices=False)[2][:count]
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[np.arange(count), largest])[:, None]  # the largest entry is positive
    found = directions(rows, count)
    assert found.params.numpy() == pytest.approx(axes, abs=1e-10)
    assert found.buffers.shape == (count, 2)


def test_directions_do_not_depend_on_the_order_of_updates():
    rows, order = drawn(6), np.array([3, 0, 5, 1, 4, 2])
    assert torch.allclose(directions(rows, 3).params, directions(rows.pick(order), 3).params, atol=1e-10)


def test_there_are_no_more_directions_than_the_updates_span():
    assert directions(flat([[1, 0, 0], [2, 0, 0], [0, 0, -3]]), 3).params.abs().tolist() == [
        [0, 0, 1],
        [1, 0, 0],
    ]
    assert len(directions(drawn(2), 4)) == 2
    assert len(directions(flat([[0, 0], [0, 0]]), 2)) == 0


def test_rounding_makes_no_directions_of_its_own():
    rng = np.random.default_rng(0)
    one, two = 1e-3 * rng.normal(size=(2, 20_000))
    updates = flat([one, 0.3 * one, 0.7 * one, 2 * two, -two, 0.9 * two], torch.float32)
    found = directions(updates, 4)
    assert len(found) == 2
    assert np.abs(cosines(found, found) - np.eye(2)).max() < 1e-5
