import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from flameche.em.spherical import Centroids, cosine, e_step, m_step, reach, statistics, unit_norm


def random_metadata(rng, clients=12, blocks=3, features=4, missing=0.0):
    weight = (rng.random((clients, blocks)) >= missing).astype(float)
    phi = rng.normal(size=(clients, blocks, features)) * weight[:, :, None]
    return phi, weight


def blank(clusters, blocks, features):
    return Centroids(np.zeros((clusters, blocks, features)), np.zeros((clusters, blocks)))


def sums(terms, assignment, clusters):
    return np.array([terms[assignment == k].sum(axis=0) for k in range(clusters)])


def test_cosine_by_hand():
    phi = np.array([[[3.0, 4.0]]])
    centroids = Centroids(np.array([[[1.0, 0.0]], [[4.0, 3.0]], [[-3.0, -4.0]]]), np.ones((3, 1)))
    assert cosine(phi, np.ones((1, 1)), centroids)[0] == pytest.approx([0.6, 0.96, -1.0])


def test_a_missing_class_is_left_out_of_the_cosine():
    # Over the first class alone the client is parallel to centroid 0; the second class would say otherwise.
    phi = np.array([[[1.0, 0.0], [0.0, 0.0]]])
    centroids = Centroids(np.array([[[2.0, 0.0], [0.0, 9.0]], [[1.0, 1.0], [0.0, 0.0]]]), np.ones((2, 2)))
    similarity = cosine(phi, np.array([[1.0, 0.0]]), centroids)[0]
    assert similarity == pytest.approx([1.0, np.sqrt(0.5)])


def test_a_class_that_a_centroid_lacks_is_left_out_too():
    phi = np.array([[[1.0, 0.0], [5.0, 5.0]]])
    centroids = Centroids(np.array([[[2.0, 0.0], [0.0, 0.0]]]), np.array([[3.0, 0.0]]))
    assert cosine(phi, np.ones((1, 2)), centroids)[0, 0] == pytest.approx(1.0)


def test_a_client_and_a_centroid_without_a_common_class_are_orthogonal():
    phi = np.array([[[1.0], [0.0]]])
    centroids = Centroids(np.array([[[0.0], [1.0]]]), np.array([[0.0, 1.0]]))
    assert cosine(phi, np.array([[1.0, 0.0]]), centroids)[0, 0] == 0.0


def test_ties_go_to_the_lower_index():
    centroids = Centroids(np.array([[[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]]), np.ones((3, 1)))
    assignment, error = e_step(np.array([[[2.0, 0.0]]]), np.ones((1, 1)), centroids)
    assert assignment[0] == 1 and error[0] == pytest.approx(0.0)


def test_the_m_step_by_hand():
    phi = np.array([[[2.0], [0.0]], [[4.0], [6.0]], [[9.0], [9.0]]])
    weight = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    totals = sums(statistics(phi, weight), np.array([0, 0, 1]), 2)
    found = m_step(totals, blank(2, 2, 1))
    assert found.theta[:, :, 0].tolist() == [[3.0, 6.0], [9.0, 9.0]]
    assert found.mass.tolist() == [[2.0, 1.0], [1.0, 1.0]]


def test_an_empty_cluster_keeps_its_centroid():
    previous = Centroids(np.full((2, 1, 1), 7.0), np.full((2, 1), 5.0))
    totals = np.array([[3.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    found = m_step(totals, previous)
    assert found.theta[:, 0, 0].tolist() == [3.0, 7.0] and found.mass[1, 0] == 5.0


def test_a_class_that_no_member_has_keeps_its_previous_value():
    previous = Centroids(np.array([[[5.0], [7.0]]]), np.array([[2.0, 3.0]]))
    found = m_step(statistics(np.array([[[1.0], [0.0]]]), np.array([[1.0, 0.0]])), previous)
    assert found.theta[0, :, 0].tolist() == [1.0, 7.0] and found.mass[0].tolist() == [1.0, 3.0]


def test_a_class_that_nobody_ever_had_carries_no_mass():
    phi, weight = np.array([[[1.0], [0.0]]]), np.array([[1.0, 0.0]])
    found = m_step(statistics(phi, weight), blank(1, 2, 1))
    assert found.mass[0].tolist() == [1.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.4]))
def test_permuting_clients_permutes_assignments_and_changes_no_centroid(seed, missing):
    rng = np.random.default_rng(seed)
    phi, weight = random_metadata(rng, missing=missing)
    centroids = Centroids(rng.normal(size=(3, 3, 4)), np.ones((3, 3)))
    order = rng.permutation(len(phi))
    k, e = e_step(phi, weight, centroids)
    k2, e2 = e_step(phi[order], weight[order], centroids)
    assert np.array_equal(k[order], k2) and np.allclose(e[order], e2)
    first = m_step(sums(statistics(phi, weight), k, 3), centroids)
    second = m_step(sums(statistics(phi[order], weight[order]), k2, 3), centroids)
    assert np.allclose(first.theta, second.theta)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_many_clients_at_once_equal_one_client_at_a_time(seed):
    rng = np.random.default_rng(seed)
    phi, weight = random_metadata(rng, missing=0.3)
    centroids = Centroids(rng.normal(size=(4, 3, 4)), (rng.random((4, 3)) > 0.2).astype(float))
    together, _ = e_step(phi, weight, centroids)
    alone = [e_step(phi[i : i + 1], weight[i : i + 1], centroids)[0][0] for i in range(len(phi))]
    assert together.tolist() == alone
    each = np.concatenate([statistics(phi[i : i + 1], weight[i : i + 1]) for i in range(len(phi))])
    assert np.array_equal(statistics(phi, weight), each)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_the_total_similarity_never_falls_with_unit_norm_metadata(seed):
    # Spherical k-means ascends sum_i <phi_i, theta_k / |theta_k|>.
    rng = np.random.default_rng(seed)
    phi = unit_norm(rng.normal(size=(40, 2, 3)) + 1.0)
    weight = np.ones((40, 2))
    centroids = Centroids(rng.normal(size=(4, 2, 3)), np.ones((4, 2)))
    before = -np.inf
    for _ in range(8):
        k, e = e_step(phi, weight, centroids)
        now = (1 - e).sum()
        assert now >= before - 1e-9
        before = now
        centroids = m_step(sums(statistics(phi, weight), k, 4), centroids)


def test_rounds_of_e_and_m_agree_with_scikit_learns_k_means_on_separated_groups():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8))
    phi = unit_norm((np.repeat(centres, 10, axis=0) + 0.05 * rng.normal(size=(30, 8)))[:, None, :])
    start = phi[[0, 10, 20]]
    centroids = Centroids(start, np.ones((3, 1)))
    for _ in range(10):
        k, _ = e_step(phi, np.ones((30, 1)), centroids)
        centroids = m_step(sums(statistics(phi, np.ones((30, 1))), k, 3), centroids)
    reference = KMeans(3, init=start[:, 0], n_init=1).fit(phi[:, 0])
    assert np.array_equal(k, reference.labels_)
    assert np.allclose(centroids.theta[:, 0], reference.cluster_centers_)


def test_unit_norm_has_length_one_and_leaves_zero_alone():
    phi = np.array([[[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert unit_norm(phi)[0].tolist() == [[0.6, 0.0], [0.0, 0.8]]
    assert not unit_norm(phi)[1].any()


def test_a_weight_that_is_only_noise_makes_no_block():
    totals = np.array([[3.0, 1e-9, 2.0, 2e-9, 1.0]])  # two blocks of one feature; nobody has the second
    found = m_step(totals, blank(1, 2, 1))
    assert found.theta[0, 0, 0] == 1.5 and found.mass[0, 1] == 0 and found.theta[0, 1, 0] == 0


def test_how_far_a_client_may_be_grows_as_clients_are_few():
    few, many = reach(np.array([[5.0, 0.1, 0.01], [1e9, 0.1, 0.01]]))
    assert few == pytest.approx((0.1 + 4 * 1.2533 * 0.01) * 6 / 4)
    assert many == pytest.approx(0.1 + 4 * 1.2533 * 0.01)


def test_how_far_from_a_single_client_is_told_by_the_other_clusters():
    spread = np.array([[4.0, 0.03, 0.005], [6.0, 0.05, 0.005], [1.0, 0.0, 0.005], [3.0, np.nan, 0.005]])
    scatter = (4 * 0.03 + 6 * 0.05) / (3 + 5)
    alone = 2 * (scatter + 4 * 1.2533 * 0.005)
    assert reach(spread)[2:] == pytest.approx([alone, alone])


@pytest.mark.parametrize("spread", [[0.0, np.nan, np.nan], [1.0, 0.0, 0.01], [5.0, 0.1, np.nan]], ids=str)
def test_where_nobody_tells_how_far_clients_are_nobody_is_far(spread):
    assert np.isinf(reach(np.array([spread]))).all()


def test_single_clients_of_a_cloud_are_within_reach_of_one_another():
    rng = np.random.default_rng(0)
    phi = unit_norm(rng.normal(size=(1, 1, 16)) + 0.1 * rng.normal(size=(400, 1, 16)))
    centre = Centroids(phi[:50].mean(axis=0)[None], np.full((1, 1), 50.0))
    error = 1 - cosine(phi[:50], np.ones((50, 1)), centre)[:, 0]
    spread = np.array([[50.0, error.mean(), np.abs(error - error.mean()).mean()], [1.0, 0.0, 0.0]])
    apart = 1 - cosine(phi[101:], np.ones((299, 1)), Centroids(phi[100:101], np.ones((1, 1))))[:, 0]
    assert (apart > reach(spread)[1]).mean() < 0.02 and (apart > spread[0, 1]).mean() > 0.5
