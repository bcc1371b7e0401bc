"""Distances, coordinates, cosines and directions of models, against numpy and by hand."""

import numpy as np
import pytest
import torch

from flameche.training.geometry import coordinates, cosines, directions, distances
from flameche.training.models import Models


def models(params, dtype=torch.float64):
    params = torch.tensor(np.array(params), dtype=dtype)
    return Models(params, torch.zeros(len(params), 2, dtype=dtype))


def drawn(count, size=7, seed=0, dtype=torch.float64):
    return models(np.random.default_rng(seed).normal(size=(count, size)), dtype)


def test_distances_by_hand():
    found = distances(models([[0, 0], [3, 0]]), models([[0, 0], [3, 4], [0, -1]]))
    assert found == pytest.approx(np.array([[0, 5, 1], [3, 4, np.sqrt(10)]]))


@pytest.mark.parametrize("part", [slice(None), slice(2, 5)])
def test_distances_are_numpys_over_all_parameters_or_a_part(part):
    a, b = drawn(4), drawn(3, seed=1)
    expected = np.linalg.norm(a.params.numpy()[:, None, part] - b.params.numpy()[None, :, part], axis=2)
    assert distances(a, b, part) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("part", [slice(None), slice(2, 5)])
@pytest.mark.parametrize("piece", [2, 100])
def test_coordinates_keep_every_distance(part, piece, monkeypatch):
    monkeypatch.setattr("flameche.training.geometry.PIECE", piece)
    a = models(drawn(5).params.numpy() + 100)  # far from zero, as weights of one beginning are
    placed = coordinates(a, part)
    assert placed.shape == (5, 5)
    kept = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    assert kept == pytest.approx(distances(a, a, part), abs=1e-7)


def test_one_model_is_placed_at_zero():
    assert coordinates(drawn(1)).tolist() == [[0.0]]


def test_cosines_by_hand():
    found = cosines(models([[1, 0], [-2, 0], [1, 1]]), models([[5, 0], [0, 3]]))
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
    zero, other = models([[0, 0]]), models([[3, 4], [0, 0]])
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
    assert directions(models([[1, 0, 0], [2, 0, 0], [0, 0, -3]]), 3).params.abs().tolist() == [
        [0, 0, 1],
        [1, 0, 0],
    ]
    assert len(directions(drawn(2), 4)) == 2
    assert len(directions(models([[0, 0], [0, 0]]), 2)) == 0


def test_rounding_makes_no_directions_of_its_own():
    rng = np.random.default_rng(0)
    one, two = 1e-3 * rng.normal(size=(2, 20_000))
    updates = models([one, 0.3 * one, 0.7 * one, 2 * two, -two, 0.9 * two], torch.float32)
    found = directions(updates, 4)
    assert len(found) == 2
    assert np.abs(cosines(found, found) - np.eye(2)).max() < 1e-5
