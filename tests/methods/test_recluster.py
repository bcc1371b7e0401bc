import numpy as np

from flameche.methods.flameche import worst_cluster


def test_the_worst_cluster_has_the_highest_mean_error_not_the_highest_sum():
    error_sum, count = np.array([4.0, 3.0, 0.0]), np.array([8.0, 2.0, 0.0])
    assert worst_cluster(error_sum, count, np.array([2])) == 1


def test_a_cluster_that_counts_as_empty_is_never_the_worst():
    # Its members are absent this round, so under the participants' rule it is among the empty ones.
    assert worst_cluster(np.array([1.0, 9.0]), np.array([2.0, 2.0]), np.array([1])) == 0
