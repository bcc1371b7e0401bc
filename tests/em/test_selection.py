"""How many clusters: the sums that decide it, and the decision."""

import numpy as np
import pytest

from flameche.em.criteria import silhouette_terms
from flameche.em.selection import AGREED, SURE, Merger, clearness, merger_terms, mergers, recommend
from flameche.em.spherical import Centroids


def merger(k, growth):
    """The merger to k clusters that costs clients these amounts."""
    g = np.array(growth, float)
    return Merger(k, g.sum(), (g**2).sum(), np.abs(g).sum())


def test_terms_add_up_to_what_each_merger_costs():
    errors = np.array([[0.1, 0.1, 0.3], [0.2, 0.1, 0.2]])  # with 3, 2 and 1 clusters
    terms = merger_terms(errors, scale=1.0, cut=10.0)
    to_two, to_one = mergers(terms.sum(axis=0), [3, 2, 1])
    assert (to_two.k, to_one.k) == (2, 1)
    assert to_two.gain == pytest.approx(-0.1) and to_one.gain == pytest.approx(0.3)
    assert to_two.squares == pytest.approx(0.01) and to_one.squares == pytest.approx(0.05)
    assert to_two.absolute == pytest.approx(0.1) and to_one.absolute == pytest.approx(0.3)
    assert to_one.sureness == pytest.approx(0.3 / np.sqrt(0.05)) and to_one.agreement == pytest.approx(1.0)


def test_terms_are_additive_and_the_scale_changes_no_decision_until_it_cuts():
    errors = np.random.default_rng(0).random((30, 5)) * 0.02
    whole = merger_terms(errors, 1.0, 1e9).sum(axis=0)
    halves = merger_terms(errors[:11], 1.0, 1e9).sum(axis=0) + merger_terms(errors[11:], 1.0, 1e9).sum(axis=0)
    np.testing.assert_allclose(whole, halves, rtol=1e-12)
    for a, b in zip(
        mergers(whole, range(5, 0, -1)),
        mergers(merger_terms(errors, 12.5, 1.0).sum(axis=0), range(5, 0, -1)),
        strict=True,
    ):
        assert a.sureness == pytest.approx(b.sureness) and a.agreement == pytest.approx(b.agreement)
    assert np.abs(merger_terms(errors * 1e6, 12.5, 1.0)).max() == 1.0


def test_a_merger_is_refused_when_many_lose_and_nearly_all_do():
    assert merger(3, [0.1] * 9).refused  # sureness 3
    assert not merger(3, [0.1] * 4).refused  # exactly SURE, which is not above it
    assert not merger(3, [0.1] * 60 + [-0.1] * 10).refused  # sure enough, but a seventh of them win
    assert merger(3, [0.1] * 60 + [-0.001] * 40).refused  # those who win hardly win
    assert not merger(3, [-0.1] * 60).refused
    assert not merger(3, [0.0] * 60).refused  # nobody is touched
    edge = Merger(1, AGREED, 1e-6, 1.0)
    assert edge.sureness > SURE and not edge.refused


def test_the_first_refusal_from_the_most_clusters_down_decides():
    lose, win = [0.1] * 20, [-0.1] * 20
    assert recommend([merger(4, win), merger(3, lose), merger(2, win), merger(1, lose)]) == 4
    assert recommend([merger(1, lose), merger(2, win)]) == 2
    assert recommend([merger(k, win) for k in range(1, 8)]) == 1
    assert recommend([]) == 1


def test_a_choice_is_clear_when_no_merger_is_near_the_border():
    lose, win, torn = [0.1] * 30, [-0.1] * 30, [0.1] * 30 + [-0.1] * 3
    assert clearness([merger(2, win), merger(1, lose)], 2) == "clear"
    assert clearness([merger(2, torn), merger(1, lose)], 2) == "close"  # K = 3 was nearly taken
    assert clearness([merger(2, win), merger(1, [0.1] * 5)], 2) == "close"  # K = 1 nearly was
    assert clearness([merger(2, win), merger(1, win)], 1) == "no structure"
    assert clearness([merger(1, torn)], 1) == "close"


def test_the_silhouette_by_hand_and_of_a_lone_cluster():
    phi = np.array([[[0.0]], [[1.0]], [[4.0]]])
    means = Centroids(np.array([[[0.0]], [[4.0]], [[9.0]]]), np.array([[1.0], [1.0], [0.0]]))
    weight, own = np.ones((3, 1)), np.array([0, 0, 1])
    terms = silhouette_terms(phi, weight, own, means)
    np.testing.assert_allclose(terms, [[1.0, 1.0], [(3 - 1) / 3, 1.0], [1.0, 1.0]])
    lone = Centroids(means.theta[:1], means.mass[:1])
    np.testing.assert_allclose(silhouette_terms(phi, weight, np.zeros(3, int), lone)[:, 0], 0.0)


def test_a_step_that_loses_two_clusters_speaks_for_the_number_it_began_with():
    errors = np.tile([0.1, 0.3, 0.3, 0.3], (20, 1))  # with 6, 4, 2 and 1 clusters: only the first step hurts
    found = mergers(merger_terms(errors, 1.0, 1.0).sum(axis=0), [6, 4, 2, 1])
    assert [m.k for m in found] == [5, 3, 1] and recommend(found) == 6
