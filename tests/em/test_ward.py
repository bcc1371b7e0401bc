"""Ward's merging from sums: against scipy's, and what it promises."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from flameche.em import ward
from flameche.em.spherical import Centroids


def small(rows=9, blocks=3, features=4, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    mass = rng.uniform(1, 3, (rows, blocks)) * (rng.random((rows, blocks)) >= missing)
    return Centroids(rng.standard_normal((rows, blocks, features)) * (mass > 0)[:, :, None], mass)


def same(a, b):
    return np.array_equal(a[:, None] == a[None], b[:, None] == b[None])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 2, 4, 8, 9])
def test_with_equal_weights_it_is_the_ward_of_scipy(seed, count):
    theta = small(seed=seed).theta
    label = ward.merge_down(Centroids(theta, np.ones(theta.shape[:2])), count)
    tree = linkage(theta.reshape(len(theta), -1), "ward")
    assert same(label, fcluster(tree, count, "maxclust")) and set(label.tolist()) == set(range(count))


def test_a_worked_cost():
    two = Centroids(np.array([[[0.0]], [[2.0]]]), np.array([[1.0], [3.0]]))
    assert ward.merge_cost(two)[0, 1] == pytest.approx(4 * 3 / 4)  # |a - b|^2 m n / (m + n)
    assert np.isinf(ward.merge_cost(two)[0, 0])


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_is_what_the_squares_within_grow_by(seed):
    both = small(2, seed=seed, missing=0.3)
    joined = ward.join(both, np.zeros(2, np.int64), 1)
    grown = sum((both.mass[r][:, None] * (both.theta[r] - joined.theta[0]) ** 2).sum() for r in range(2))
    assert ward.merge_cost(both)[0, 1] == pytest.approx(grown)


def test_joining_is_adding_sums():
    many, label = small(missing=0.4), np.array([0, 1, 2, 0, 1, 2, 0, 1, 1])
    joined = ward.join(many, label, 4)
    for k in range(3):
        mine = label == k
        mass = many.mass[mine].sum(axis=0)
        total = (many.theta[mine] * many.mass[mine][:, :, None]).sum(axis=0)
        assert np.allclose(joined.mass[k], mass) and np.allclose(joined.theta[k] * mass[:, None], total)
    assert not joined.mass[3].any()


def test_empty_clusters_go_first():
    many = small(6)
    many.mass[[1, 4]] = 0
    many.theta[[1, 4]] = 0
    label = ward.merge_down(many, 4)
    assert len(set(label[[0, 2, 3, 5]].tolist())) == 4


@pytest.mark.parametrize("seed", range(20))
def test_every_merger_is_the_cheapest_of_the_sums_that_are_left(seed):
    many = small(12, seed=seed, missing=(seed % 4) / 5)
    label = np.arange(12)
    for count in range(11, 0, -1):
        kept, label = np.unique(label, return_inverse=True)
        i, j = divmod(int(ward.merge_cost(ward.join(many, label, len(kept))).argmin()), len(kept))
        label[label == max(i, j)] = min(i, j)
        assert np.array_equal(ward.merge_down(many, count), np.unique(label, return_inverse=True)[1])


def test_names_stay_with_most_of_the_members():
    before, sizes = np.array([0, 0, 1, 1, 2]), np.array([5.0, 1, 4, 4, 3])
    assert ward.keep_names(np.array([2, 2, 0, 0, 1]), before, sizes).tolist() == [0, 0, 1, 1, 2]
    assert ward.keep_names(np.array([1, 0, 0, 0, 2]), before, sizes).tolist() == [0, 1, 1, 1, 2]
