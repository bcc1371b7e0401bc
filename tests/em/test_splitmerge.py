import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.em import others, splitmerge
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


def halved(phi, weight, k, cluster, clusters=5):
    """The sums of a cluster's members, every other one in each half."""
    members, terms = np.flatnonzero(k == cluster), statistics(phi, weight)
    return np.stack([terms[members[half::2]].sum(axis=0) for half in range(2)])


# The pairs


@laws
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_of_other_clusters_the_cheapest_pair_adds_least_scatter_and_comes_first(seed, spared):
    phi, _, k, _ = drawn(seed)
    weight = np.ones(phi.shape[:2])
    centroids = centroids_of(phi, weight, k, 5)

    def added(i, j):  # by joining the members themselves
        mine, yours = phi[k == i], phi[k == j]
        both = np.concatenate([mine, yours])
        apart = scatter(mine, mine.mean(axis=0)) + scatter(yours, yours.mean(axis=0))
        return scatter(both, both.mean(axis=0)) - apart

    some = [p for p in itertools.combinations(range(5), 2) if spared not in p]
    sizes = np.bincount(k, minlength=5).astype(float)
    halves = np.ones((2, 3 * 4 + 3 + 1))
    found = splitmerge.pairs(centroids, spared, halves, sizes).tolist()
    assert found[: len(some)] == [list(p) for p in sorted(some, key=lambda p: added(*p))]


@laws
@given(st.integers(0, 10**6), st.integers(3, 6), st.floats(0, 0.4))
def test_all_pairs_of_few_clusters_are_named_but_never_that_of_both_halves(seed, clusters, missing):
    phi, weight, k, centroids = drawn(seed, clusters=clusters, missing=missing)
    sizes = np.bincount(k, minlength=clusters).astype(float)
    found = splitmerge.pairs(centroids, 1, halved(phi, weight, k, 1), sizes).tolist()
    assert len({tuple(p) for p in found}) == len(found) and all(0 <= a < b <= clusters for a, b in found)
    others = sum(1 not in p and clusters not in p for p in found)
    assert others == min(splitmerge.PAIRS, (clusters - 1) * (clusters - 2) // 2)
    for half in (1, clusters):
        assert sum(half in p for p in found) == min(splitmerge.HALF_PAIRS, clusters - 1)
    assert [1, clusters] not in found


def test_two_clusters_have_no_pair_of_others():
    phi, weight, k, centroids = drawn(0, clusters=2)
    found = splitmerge.pairs(centroids, 1, halved(phi, weight, k, 1), np.array([15.0, 15.0]))
    assert found.tolist() == [[0, 1], [0, 2]]


def test_an_empty_cluster_is_merged_before_any_other():
    phi, weight, k, centroids = drawn(0, clusters=4)
    halves = halved(phi, weight, k, 0)
    assert 2 in splitmerge.pairs(centroids, 0, halves, np.array([9.0, 9.0, 0.0, 9.0]))[0]
    assert splitmerge.pairs(centroids, 3, halves, np.zeros(4))[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("pair", "kept", "halves"),
    [((0, 1), 0, [2, 1]), ((1, 3), 1, [2, 3]), ((0, 2), 0, [0, 2]), ((2, 3), 3, [3, 2]), ((1, 4), 1, [2, 1])],
)
def test_every_cluster_has_a_place_after_a_move(pair, kept, halves):
    found = splitmerge.places(4, 2, *pair)
    assert found[0] == kept and found[1].tolist() == halves


# The options


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.6))
def test_a_merged_centroid_is_that_of_the_joined_members(seed, missing):
    phi, weight, k, centroids = drawn(seed, missing=missing)
    sizes = np.bincount(k, minlength=5).astype(float)
    rows = splitmerge.options(centroids, 2, halved(phi, weight, k, 2), np.array([[1, 3]]), sizes).rows
    joined = centroids_of(phi, weight, np.where(k == 3, 1, k), 5)
    held = joined.mass[1] > 0
    assert np.allclose(rows.theta[7][held], joined.theta[1][held], atol=1e-12)
    assert np.allclose(rows.mass[7], joined.mass[1], atol=1e-12)


@laws
@given(st.integers(0, 10**6), st.integers(0, 1))
def test_a_half_of_all_members_merged_with_a_cluster_makes_the_centroid_of_both(seed, half):
    phi, weight, k, centroids = drawn(seed)
    sizes, halves = np.bincount(k, minlength=5).astype(float), halved(phi, weight, k, 2)
    if halves[:, -1].min() < 1:
        return
    pair = [0, 2] if half == 0 else [0, 5]
    rows = splitmerge.options(centroids, 2, halves, np.array([pair]), sizes).rows
    members, moved = np.flatnonzero(k == 2), k.copy()
    moved[members[half::2]] = 0
    assert np.allclose(rows.theta[7], centroids_of(phi, weight, moved, 5).theta[0], atol=1e-12)


def test_each_option_has_as_many_centroids_as_there_were_and_knows_who_is_in_them():
    phi, weight, k, plain = drawn(0)
    centroids = Centroids(plain.theta, plain.mass, np.eye(5)[k])
    sizes, some = np.bincount(k, minlength=5).astype(float), np.array([[0, 1], [1, 2], [3, 5]])
    found = splitmerge.options(centroids, 2, halved(phi, weight, k, 2), some, sizes)
    assert found.before.tolist() == [True] * 5 + [False] * 5
    after = [np.flatnonzero(row).tolist() for row in found.after]  # 5 and 6 are the halves, then the merged
    assert after == [[3, 4, 5, 6, 7], [0, 3, 4, 6, 8], [0, 1, 4, 5, 9]]
    own, held = found.rows.own, found.held
    assert np.array_equal(own[:, :5], np.eye(5)[k]) and np.array_equal(held[:, :5], np.eye(5)[k])
    assert (
        np.array_equal(own[:, 5:7], np.repeat(1.0 * (k == 2)[:, None], 2, axis=1)) and not held[:, 5:7].any()
    )
    assert np.array_equal(held[:, 7], 1.0 * np.isin(k, [0, 1])) and np.array_equal(held[:, 8], 1.0 * (k == 1))
    assert np.array_equal(own[:, 7], held[:, 7]) and np.all(own[k == 2, 8] > 0) and np.all(own[k == 2, 8] < 1)


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.4))
def test_halves_that_do_not_differ_are_no_nearer_than_their_cluster_was(seed, missing):
    phi, weight, k, plain = drawn(seed, clusters=4, missing=missing)
    centroids = Centroids(plain.theta, plain.mass, np.eye(4)[k])
    alike = np.repeat(statistics(phi, weight)[k == 2].sum(axis=0, keepdims=True) / 2, 2, axis=0)
    rows = splitmerge.options(centroids, 2, alike, np.array([[0, 1]]), np.bincount(k, minlength=4)).rows
    near = others.cosine(phi, weight, rows, rows.own)
    assert np.allclose(near[:, 4], near[:, 2], atol=1e-9) and np.allclose(near[:, 5], near[:, 2], atol=1e-9)


@pytest.mark.parametrize("empty", [0, 1])
def test_the_centroid_that_an_emptied_cluster_has_left_pulls_at_nobody(empty):
    phi, weight, k, centroids = drawn(1, clusters=3)
    sizes = np.where(np.arange(3) == empty, 0.0, 9.0)
    rows = splitmerge.options(centroids, 2, halved(phi, weight, k, 2), np.array([[0, 1]]), sizes).rows
    assert np.allclose(rows.theta[5], centroids.theta[1 - empty])
    assert np.allclose(rows.mass[5], centroids.mass[1 - empty])


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
