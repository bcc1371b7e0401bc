import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.em import others, spherical
from flameche.em.spherical import Centroids, class_norm, filled, m_step, statistics

laws = settings(max_examples=60, deadline=None, derandomize=True)


def drawn(seed, clients=30, clusters=5, missing=0.5, blocks=4, features=5):
    """Clients that lack classes, the cluster of each, and the sums of these."""
    rng = np.random.default_rng(seed)
    phi = rng.random((clients, blocks, features))
    weight = rng.uniform(0.2, 1, (clients, blocks)) * (rng.random((clients, blocks)) >= missing)
    row = rng.integers(0, clusters, clients)
    terms = statistics(phi, weight)
    return phi, weight, row, terms, np.stack([terms[row == k].sum(axis=0) for k in range(clusters)])


def centroids_of(totals, blocks=4, features=5):
    shape = (len(totals), blocks, features)
    return filled(m_step(totals, Centroids(np.zeros(shape), np.zeros(shape[:2]))))


# Without the own part


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.8), st.sampled_from([1.0, 0.5]))
def test_it_is_the_cosine_to_the_centroids_of_the_others_sums(seed, missing, part):
    phi, weight, row, terms, totals = drawn(seed, missing=missing)
    own = np.eye(5)[row]
    totals = totals - np.stack([(1 - part) * terms[row == k].sum(axis=0) for k in range(5)])
    found = others.cosine(phi, weight, centroids_of(totals), part * own)
    for i in range(30):
        left = totals.copy()
        left[row[i]] -= part * terms[i]
        expected = spherical.cosine(phi[i : i + 1], weight[i : i + 1], centroids_of(left))
        if left[row[i], 20:24].max() < 1e-9:  # nobody else is there
            found[i, row[i]] = expected[0, row[i]]
        assert np.allclose(found[i], expected, atol=1e-9)


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.8))
def test_who_is_in_no_sum_is_compared_with_the_sums_as_they_are(seed, missing):
    phi, weight, _, _, totals = drawn(seed, missing=missing)
    centroids = centroids_of(totals)
    nothing = np.zeros((30, 5))
    expected = spherical.cosine(phi, weight, centroids)
    assert np.allclose(others.cosine(phi, weight, centroids, nothing), expected, atol=1e-12)


def test_who_is_held_by_its_own_part_alone_is_nearer_to_the_others_elsewhere():
    angle = np.radians([0.0, 30.0, 50.0, 60.0])
    phi = np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None, :]
    weight, row = np.ones((4, 1)), np.array([0, 0, 1, 1])
    terms = statistics(phi, weight)
    centroids = centroids_of(np.stack([terms[row == k].sum(axis=0) for k in range(2)]), 1, 2)  # at 15 and 55
    assert spherical.e_step(phi, weight, centroids)[0].tolist() == [0, 0, 1, 1]
    near = others.cosine(phi, weight, centroids, np.eye(2)[row])
    assert near[1] == pytest.approx(
        np.cos(np.radians([30.0, 25.0]))
    )  # the second is at 30: nearer to 55 than to 0
    assert spherical.nearest(near)[0].tolist() == [0, 1, 1, 1]


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.6), st.booleans())
def test_who_is_alone_in_a_cluster_stays_there(seed, missing, shared):
    phi, weight, row, terms, _ = drawn(seed, missing=missing)
    weight[0, 0] = 1.0
    row = np.where(np.arange(30) == 0, 4, row % 4)
    terms = statistics(phi, weight)
    centroids = centroids_of(np.stack([terms[row == k].sum(axis=0) for k in range(5)]))
    same = others.alike(centroids, 30) if shared else None
    near = others.cosine(phi, weight, Centroids(centroids.theta, centroids.mass, None, same), np.eye(5)[row])
    assert near[0].argmax() == 4 and (shared or near[0, 4] == pytest.approx(1.0))


def test_many_clients_are_compared_in_parts(monkeypatch):
    phi, weight, row, _, totals = drawn(0)
    centroids = centroids_of(totals)
    shared = Centroids(centroids.theta, centroids.mass, None, others.alike(centroids, 30))
    whole, sizes, matmul = others.cosine(phi, weight, shared, np.eye(5)[row]), [], np.matmul
    monkeypatch.setattr(others, "AT_ONCE", 7 * 5 * 4)
    monkeypatch.setattr(np, "matmul", lambda a, b: sizes.append(len(a[0])) or matmul(a, b))
    assert np.allclose(others.cosine(phi, weight, shared, np.eye(5)[row]), whole, rtol=0, atol=1e-12)
    assert max(sizes) == 7 and len(sizes) == 2 * 5


# Blocks that clusters share


def groups(seed=0, members=25, clusters=3, noise=0.3, blocks=5, features=40, missing=0.0):
    """Clients of groups that differ in one block each: group k in block k."""
    rng = np.random.default_rng(seed)
    base, other = rng.random((blocks, features)), rng.random((blocks, features))
    row = np.repeat(np.arange(clusters), members)
    mean = np.repeat(base[None], len(row), axis=0)
    mean[np.arange(len(row)), row] = other[row]
    phi = class_norm(mean + noise * rng.standard_normal((len(row), blocks, features)))
    weight = 1.0 * (rng.random((len(row), blocks)) >= missing)
    terms = statistics(phi, weight)
    totals = np.stack([terms[row == k].sum(axis=0) for k in range(clusters)])
    return phi, weight, row, totals


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_clusters_share_the_blocks_in_which_their_groups_do_not_differ(seed, missing):
    *_, totals = groups(seed, missing=missing)
    same = others.alike(centroids_of(totals, 5, 40), 75)
    expected = np.ones((3, 3, 5), bool)
    for k in range(3):
        expected[k, :, k] = expected[:, k, k] = np.arange(3) == k
    assert np.array_equal(same, expected)


def test_clusters_of_one_group_share_nothing_since_they_would_become_one():
    phi, weight, row, _ = groups(clusters=2)
    part = np.where(row == 1, 2, np.arange(50) % 2)
    totals = np.stack([statistics(phi, weight)[part == k].sum(axis=0) for k in range(3)])
    same = others.alike(centroids_of(totals, 5, 40), 50)
    assert not same[0, 1].any() and not same[1, 0].any() and same[0, 2, 2:].all()


def test_sums_that_hold_nobody_change_nothing():
    *_, totals = groups(0, noise=0.6, members=4)
    more = np.concatenate([totals, np.zeros((20, totals.shape[1]))])
    same = others.alike(centroids_of(totals, 5, 40), 12)
    assert np.array_equal(others.alike(centroids_of(more, 5, 40), 12)[:3, :3], same)


def test_shared_blocks_are_those_of_the_joined_sums():
    phi, weight, row, terms, totals = drawn(3, missing=0.2)
    same = np.random.default_rng(0).random((5, 5, 4)) < 0.4
    same = same | same.transpose(1, 0, 2) | np.eye(5, dtype=bool)[:, :, None]
    centroids = centroids_of(totals)
    shared = Centroids(centroids.theta, centroids.mass, None, same)
    found = others.cosine(phi, weight, shared, np.eye(5)[row])
    for i in range(30):
        left = totals.copy()
        left[row[i]] -= terms[i]
        joined = np.zeros((5, 25))
        for k in range(5):
            for b in range(4):
                mine = left[same[k, :, b]].sum(axis=0)
                joined[k, 5 * b : 5 * b + 5], joined[k, 20 + b] = mine[5 * b : 5 * b + 5], mine[20 + b]
        expected = spherical.cosine(phi[i : i + 1], weight[i : i + 1], centroids_of(joined))
        assert np.allclose(found[i], expected, atol=1e-9)


def test_sharing_leaves_fewer_clients_in_the_wrong_group_where_they_lack_classes():
    wrong = np.zeros(2)
    for seed in range(6):
        phi, weight, row, totals = groups(seed, noise=0.9, missing=0.4)
        centroids, own = centroids_of(totals, 5, 40), np.eye(3)[row]
        differ = weight[np.arange(75), row] > 0  # who has its own group's class
        shared = Centroids(centroids.theta, centroids.mass, None, others.alike(centroids, 75))
        for n, each in enumerate((centroids, shared)):
            wrong[n] += ((others.cosine(phi, weight, each, own).argmax(axis=1) != row) & differ).sum()
    assert wrong[1] < 0.8 * wrong[0]
