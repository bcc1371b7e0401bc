import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.em import splitmerge
from flameche.em.spherical import Centroids, m_step, statistics

laws = settings(max_examples=60, deadline=None, derandomize=True)


def drawn(seed, clients=30, clusters=5, missing=0.0, blocks=3, features=4):
    """Clients, their clusters, and the centroids of these."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(clients, blocks, features))
    weight = rng.uniform(0.2, 1, (clients, blocks)) * (rng.random((clients, blocks)) >= missing)
    k = np.concatenate([np.arange(clusters), rng.integers(0, clusters, clients - clusters)])
    return phi, weight, k, centroids_of(phi, weight, k, clusters)


def centroids_of(phi, weight, k, clusters):
    terms = statistics(phi, weight)
    totals = np.stack([terms[k == j].sum(axis=0) for j in range(clusters)])
    blank = Centroids(np.zeros((clusters, *phi.shape[1:])), np.zeros((clusters, phi.shape[1])))
    return m_step(totals, blank)


def scatter(phi, theta):
    return ((phi - theta) ** 2).sum()


# The pair


@laws
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_the_pair_is_that_whose_merger_adds_least_scatter(seed, spared):
    phi, _, k, _ = drawn(seed)
    centroids = centroids_of(phi, np.ones(phi.shape[:2]), k, 5)

    def added(i, j):  # by joining the members themselves
        mine, yours = phi[k == i], phi[k == j]
        both = np.concatenate([mine, yours])
        apart = scatter(mine, mine.mean(axis=0)) + scatter(yours, yours.mean(axis=0))
        return scatter(both, both.mean(axis=0)) - apart

    pairs = [p for p in itertools.combinations(range(5), 2) if spared not in p]
    sizes = np.bincount(k, minlength=5).astype(float)
    assert splitmerge.closest_pair(centroids, sizes, spared) == min(pairs, key=lambda p: added(*p))


@laws
@given(st.integers(0, 10**6), st.integers(3, 6))
def test_the_spared_cluster_is_never_merged_however_close_it_is(seed, clusters):
    *_, k, centroids = drawn(seed, clusters=clusters, missing=0.2)
    theta = centroids.theta.copy()
    theta[0] = theta[1]
    pair = splitmerge.closest_pair(Centroids(theta, centroids.mass), np.bincount(k).astype(float), 0)
    assert pair is not None and 0 < pair[0] < pair[1] < clusters


def test_two_clusters_of_which_one_is_spared_have_no_pair():
    *_, centroids = drawn(0, clusters=2)
    assert splitmerge.closest_pair(centroids, np.array([15.0, 15.0]), 1) is None


def test_an_empty_cluster_is_merged_before_any_other():
    *_, centroids = drawn(0, clusters=4)
    assert 2 in splitmerge.closest_pair(centroids, np.array([9.0, 9.0, 0.0, 9.0]), 0)
    assert splitmerge.closest_pair(centroids, np.zeros(4), 3) == (0, 1)


def test_only_blocks_that_both_have_are_compared():
    theta = np.array([[[0.0], [0.0]], [[1.0], [9.0]], [[2.0], [0.0]]])
    mass = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])  # the second cluster lacks the second block
    one = np.ones(3)
    assert splitmerge.closest_pair(Centroids(theta, mass), one, spared=2) == (0, 1)
    four = np.concatenate([theta, [[[50.0], [50.0]]]])
    full = Centroids(four, np.ones((4, 2)))
    lacking = Centroids(four, np.concatenate([mass, np.ones((1, 2))]))
    assert splitmerge.closest_pair(full, np.ones(4), 3) == (0, 2)
    assert splitmerge.closest_pair(lacking, np.ones(4), 3) == (0, 1)


# The merger


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.6))
def test_the_merged_centroid_is_that_of_the_joined_members(seed, missing):
    phi, weight, k, centroids = drawn(seed, missing=missing)
    sizes = np.bincount(k, minlength=5).astype(float)
    theta, mass = splitmerge.merged(centroids, 1, 3, sizes)
    joined = centroids_of(phi, weight, np.where(k == 3, 1, k), 5)
    assert np.allclose(theta, joined.theta[1], atol=1e-12) and np.allclose(mass, joined.mass[1], atol=1e-12)


def test_a_block_that_only_one_of_two_has_is_taken_from_it_and_one_that_none_has_is_zero():
    theta = np.array([[[4.0], [0.0], [7.0]], [[1.0], [3.0], [7.0]]])
    mass = np.array([[1.0, 0.0, 0.0], [2.0, 5.0, 0.0]])
    found = splitmerge.merged(Centroids(theta, mass), 0, 1, np.array([3.0, 3.0]))
    assert found[0].ravel().tolist() == [2.0, 3.0, 0.0] and found[1].tolist() == [3.0, 5.0, 0.0]


@pytest.mark.parametrize(("empty", "full"), [(0, 1), (1, 0)])
def test_the_centroid_that_an_emptied_cluster_has_left_pulls_at_nobody(empty, full):
    *_, centroids = drawn(1, clusters=2)
    sizes = np.where(np.arange(2) == empty, 0.0, 9.0)
    theta, mass = splitmerge.merged(centroids, 0, 1, sizes)
    assert np.array_equal(theta, centroids.theta[full]) and np.array_equal(mass, centroids.mass[full])


# The direction


def power(phi, weight, centre, turns, seed=0):
    v = np.random.default_rng(seed).standard_normal(centre.size)
    for _ in range(turns):
        total = splitmerge.turn_terms(phi, weight, centre, v).sum(axis=0)
        v = total / np.linalg.norm(total)
    return v


def oval(seed, clients=60, missing=0.0):
    """A cloud that is three times as wide in one direction as in any other."""
    rng = np.random.default_rng(seed)
    axis = rng.standard_normal(12)
    cloud = rng.normal(size=(clients, 12)) + 3 * rng.normal(size=(clients, 1)) * axis / np.linalg.norm(axis)
    weight = rng.uniform(0.2, 1, (clients, 3)) * (rng.random((clients, 3)) >= missing)
    return cloud.reshape(clients, 3, 4), weight


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_power_iterations_turn_to_the_first_principal_axis(seed, missing):
    phi, weight = oval(seed, missing=missing)
    centre = centroids_of(phi, weight, np.zeros(60, int), 1).theta[0]
    x = (np.sqrt(weight)[:, :, None] * (phi - centre)).reshape(60, 12)
    first = np.linalg.svd(x)[2][0]
    assert abs(power(phi, weight, centre, 60) @ first) > 1 - 1e-9
    assert abs(power(phi, weight, centre, 10) @ first) > 0.99  # as many as a round has


def test_the_sum_of_two_parts_turns_as_everybody_together():
    phi, weight = oval(0)
    centre, v = phi.mean(axis=0), np.ones(12)
    halves = np.split(np.arange(60), 2)
    parts = [splitmerge.turn_terms(phi[i], weight[i], centre, v).sum(axis=0) for i in halves]
    assert np.allclose(sum(parts), splitmerge.turn_terms(phi, weight, centre, v).sum(axis=0))


def test_a_turn_can_be_worked_out_on_paper():
    phi, centre = np.array([[[3.0], [1.0]], [[1.0], [1.0]]]), np.array([[2.0], [0.0]])
    weight = np.array([[1.0, 0.25], [0.0, 1.0]])  # the second client lacks the first block
    assert splitmerge.offsets(phi, weight, centre).tolist() == [[1.0, 0.5], [0.0, 1.0]]
    terms = splitmerge.turn_terms(phi, weight, centre, np.array([1.0, 2.0]))
    assert terms.tolist() == [[2.0, 1.0], [0.0, 2.0]]


def test_a_missing_block_moves_nothing_whatever_stands_in_it():
    phi, weight = oval(1, missing=0.4)
    other = np.where((weight == 0)[:, :, None], 77.0, phi)
    v = np.arange(12.0)
    for function in (splitmerge.turn_terms, splitmerge.sides):
        assert np.array_equal(function(phi, weight, phi[0], v), function(other, weight, phi[0], v))


def test_sides_part_a_cloud_where_its_two_heaps_meet():
    rng = np.random.default_rng(2)
    heap = np.arange(40) % 2
    phi = 0.2 * rng.normal(size=(40, 3, 4)) + heap[:, None, None]
    weight, centre = np.ones((40, 3)), phi.mean(axis=0)
    side = splitmerge.sides(phi, weight, centre, power(phi, weight, centre, 10))
    assert set(side.tolist()) == {0, 1} and len({*zip(side.tolist(), heap.tolist(), strict=True)}) == 2
    backwards = splitmerge.sides(phi, weight, centre, -power(phi, weight, centre, 10))
    assert np.array_equal(backwards, 1 - side)


def test_who_stands_at_the_centre_is_on_the_first_side():
    phi = np.ones((1, 2, 2))
    assert splitmerge.sides(phi, np.ones((1, 2)), phi[0], np.ones(4)).tolist() == [0]


# The verdict


@pytest.mark.parametrize(
    ("gains", "heard", "so"),
    [
        ([1.0] * 5, 40, True),  # 5 > 2 * sqrt(5); the other 35 neither gain nor lose
        ([1.0] * 4, 40, False),  # 4 = 2 * sqrt(4): not more
        ([1.0] * 4, 400, False),  # more than enough are no better than enough
        ([8.0], 40, False),  # one alone convinces nobody
        ([1.0] * 10 + [-1.0] * 2, 40, True),  # 8 > 2 * sqrt(12) = 6.9
        ([1.0] * 10 + [-1.0] * 3, 40, False),  # 7 < 2 * sqrt(13) = 7.2
        ([1.0] * 2, 10, True),  # of ten, a quarter of forty, half as much is asked: 2 > 1 * sqrt(2)
        ([1.0] * 1, 10, False),  # 1 = 1 * sqrt(1)
        ([1.0] * 4 + [-1.0], 10, True),  # 3 > sqrt(5)
        ([1.0] * 4 + [-1.0] * 2, 10, False),  # 2 < sqrt(6)
        ([-1.0] * 9, 40, False),
        ([-1.0] * 9, 9, False),
        ([0.0] * 9, 40, False),
        ([], 0, False),
    ],
)
def test_a_move_must_pay_by_two_standard_errors_or_less_where_few_are_heard(gains, heard, so):
    gain = np.array(gains)
    for unit in (1.0, 2.0**-10):  # in whatever unit
        assert splitmerge.convincing(unit * gain.sum(), unit**2 * (gain**2).sum(), heard) == so


def test_a_centroid_is_parted_half_way_towards_its_halves_and_their_common_part_is_left_out():
    centroids = Centroids(np.array([[[9.0], [9.0]], [[1.0], [5.0]]]), np.array([[1.0, 1.0], [10.0, 10.0]]))
    # Halves of two and one clients, S = [w phi | w | 1]; the second lacks the second class.
    halves = np.array([[8.0, 6.0, 2.0, 2.0, 2.0], [1.0, 0.0, 1.0, 0.0, 1.0]])
    two = splitmerge.moved_apart(centroids, 1, halves)
    # Means 4 and 1 around 3 (all three), so the centroid 1 becomes 1.5 and 0; the class that one lacks stays.
    np.testing.assert_allclose(two.theta, [[[1.5], [5.0]], [[0.0], [5.0]]])
    same = splitmerge.moved_apart(centroids, 1, np.repeat(halves[:1], 2, axis=0))
    np.testing.assert_allclose(same.theta, centroids.theta[[1, 1]])
