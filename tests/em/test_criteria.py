import numpy as np
import pytest
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score

from flameche.em.criteria import from_spread, spread_terms
from flameche.em.spherical import Centroids, m_step, statistics


def criteria_from_sums(phi, weight, assignment, clusters):
    def total(terms):
        return np.array([terms[assignment == k].sum(axis=0) for k in range(clusters)])

    empty = Centroids(np.zeros((clusters, *phi.shape[1:])), np.zeros((clusters, phi.shape[1])))
    means = m_step(total(statistics(phi, weight)), empty)
    spread = total(spread_terms(phi, weight, assignment, means))
    return from_spread(means, spread)


@pytest.mark.parametrize("seed", range(5))
def test_both_equal_scikit_learns_although_only_sums_are_used(seed):
    rng = np.random.default_rng(seed)
    phi, assignment = rng.normal(size=(40, 2, 3)), np.arange(40) % 4
    dbi, ch = criteria_from_sums(phi, np.ones((40, 2)), assignment, 4)
    flat = phi.reshape(40, -1)
    assert dbi == pytest.approx(davies_bouldin_score(flat, assignment), rel=1e-12)
    assert ch == pytest.approx(calinski_harabasz_score(flat, assignment), rel=1e-12)


def test_empty_clusters_do_not_count():
    rng = np.random.default_rng(0)
    phi, assignment = rng.normal(size=(20, 1, 3)), np.arange(20) % 2 * 3
    with_gaps = criteria_from_sums(phi, np.ones((20, 1)), assignment, 6)
    without = criteria_from_sums(phi, np.ones((20, 1)), assignment // 3, 2)
    assert with_gaps == pytest.approx(without)


def test_a_worked_example():
    # Two pairs on a line, centres 1 and 11, widths 1: DBI = (1 + 1) / 10; CH = 100 / (4 / 2).
    phi = np.array([0.0, 2.0, 10.0, 12.0]).reshape(4, 1, 1)
    dbi, ch = criteria_from_sums(phi, np.ones((4, 1)), np.array([0, 0, 1, 1]), 2)
    assert (dbi, ch) == pytest.approx((0.2, 50.0))


def test_one_cluster_has_no_criteria():
    phi = np.arange(4.0).reshape(4, 1, 1)
    assert np.isnan(criteria_from_sums(phi, np.ones((4, 1)), np.zeros(4, int), 2)).all()


def test_singletons_have_no_calinski_harabasz():
    phi = np.arange(3.0).reshape(3, 1, 1)
    dbi, ch = criteria_from_sums(phi, np.ones((3, 1)), np.arange(3), 3)
    assert dbi == 0.0 and np.isnan(ch)
