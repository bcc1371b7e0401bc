"""Aligned ranks, by hand and by their laws; tests of ranks against scipy."""

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from flameche_reproduction.tables.ranks import aligned_ranks, aligned_test, friedman, indistinct_ranges, rank


def scores(blocks=12, methods=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(blocks, methods)) + 10 * rng.normal(size=(blocks, 1)) + np.arange(methods)


def test_adding_a_constant_to_a_block_changes_nothing():
    values = scores()
    moved = values.copy()
    moved[3] += 1234.5
    moved[7] -= 0.1
    before, after = rank(values), rank(moved)
    assert (before.aligned == after.aligned).all() and before.aligned_test == after.aligned_test
    assert before.friedman == after.friedman


def test_a_constant_keeps_ties_that_rounding_would_break():
    values = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    for constant in (0.1, 0.3, 1e5):
        moved = values + np.array([[0.0], [constant]])
        assert (aligned_ranks(moved) == aligned_ranks(values)).all()


def test_the_order_of_blocks_and_of_methods_does_not_matter():
    values, turn = scores(), np.array([2, 0, 4, 1, 3])
    ours, turned = rank(values), rank(values[::-1, turn])
    np.testing.assert_allclose(turned.aligned, ours.aligned[turn])
    assert turned.aligned_test.statistic == pytest.approx(ours.aligned_test.statistic)


def test_aligned_ranks_of_a_small_example_by_hand():
    # Means 80 and 60; aligned +10 0 -10 and +4 +1 -5. In order: 10, 4, 1, 0, -5, -10.
    ranks = aligned_ranks(np.array([[90.0, 80.0, 70.0], [64.0, 61.0, 55.0]]))
    assert ranks.tolist() == [[1, 4, 6], [2, 3, 5]]
    # Sums of methods 3, 7, 11: (k-1)(179 - 3*4/4*49) = 2*32; below 6*7*13/6 - (121+100)/3 = 91 - 73.667.
    assert aligned_test(ranks).statistic == pytest.approx(64 / (91 - 221 / 3))


def test_the_sum_of_all_ranks_is_that_of_the_numbers_from_one():
    ranks = aligned_ranks(scores())
    assert ranks.sum() == 60 * 61 / 2


@pytest.mark.parametrize("digits", [6, 0], ids=["no ties", "ties"])
def test_friedman_agrees_with_scipy(digits):
    values = np.round(scores(), digits)
    ours, theirs = rank(values).friedman, friedmanchisquare(*values.T)
    assert ours.statistic == pytest.approx(theirs.statistic) and ours.p == pytest.approx(theirs.pvalue)


def test_methods_that_are_all_alike_are_not_told_apart():
    same = np.ones((4, 3))
    ranking = rank(same)
    assert ranking.friedman.p == 1 and ranking.aligned_test.p == 1
    assert friedman(np.full((4, 3), 2.0)).statistic == 0


def test_the_critical_difference_is_nemenyis():
    # 9 methods: q at 5% is 3.102 (Demsar, 2006); the standard error of aligned ranks is sqrt(k (n + 1) / 6).
    assert rank(scores(blocks=20, methods=9)).difference == pytest.approx(
        3.102 * np.sqrt(9 * 21 / 6), rel=1e-3
    )


def test_bars_join_methods_that_are_close_and_are_as_long_as_can_be():
    ranks = np.array([5.0, 1.0, 2.0, 9.0, 3.5])  # in order 1 2 3.5 5 9
    assert indistinct_ranges(ranks, 2.0) == [(0, 1), (1, 2), (2, 3)]
    assert indistinct_ranges(ranks, 100.0) == [(0, 4)]
    assert indistinct_ranges(ranks, 0.5) == []
