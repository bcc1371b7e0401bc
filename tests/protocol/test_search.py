"""The phases of the search: each against the formula it stands for, and as a sum."""

from dataclasses import replace

import numpy as np
import pytest

from flameche.em import spherical, splitmerge
from flameche.em.spherical import Centroids
from flameche.em.splitmerge import Options
from flameche.protocol.search import PairedTest, Statistics, Turn
from tests.conftest import planted_metadata

CLIENTS, BLOCKS, FEATURES = 24, 5, 6


def cohort(seed=0, missing=0.2):
    """Metadata as robust mode has them: of length one class by class, and weighted."""
    rng = np.random.default_rng(seed)
    phi = spherical.class_norm(planted_metadata(CLIENTS, 3, noise=0.4, seed=seed)[0].phi)
    weight = rng.uniform(0.2, 1, (CLIENTS, BLOCKS)) * (rng.random((CLIENTS, BLOCKS)) >= missing)
    return phi, weight


def centroids(seed=0, clusters=3):
    phi, _ = cohort(seed)
    picked = np.random.default_rng(seed + 1).choice(CLIENTS, clusters, replace=False)
    return Centroids(phi[picked], np.ones((clusters, BLOCKS)))


def plain_distance(phi, weight, theta):
    """1 - cosine to the nearest centroid, client by client."""
    found = []
    for x, w in zip(phi, weight, strict=True):
        a = (np.sqrt(w)[:, None] * x).ravel()
        others = [(np.sqrt(w)[:, None] * t).ravel() for t in theta]
        found.append(min(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in others))
    return np.array(found)


def paired(current, *candidates):
    """A test of moves from some centroids to others."""
    every = [current, *candidates]
    row = np.repeat(np.arange(len(every)), [len(each) for each in every])
    theta, mass = (np.concatenate([getattr(each, name) for each in every]) for name in ("theta", "mass"))
    after = np.stack([row == n for n in range(1, len(every))])
    return PairedTest(Options(Centroids(theta, mass), row == 0, after))


PHASES = {
    "turn": Turn(centroids().theta[0], np.random.default_rng(3).standard_normal(BLOCKS * FEATURES)),
    "statistics": Statistics(),
    "paired test": paired(centroids(), centroids(seed=4), centroids(seed=5)),
}


@pytest.mark.parametrize("name", PHASES)
def test_the_sums_of_two_halves_are_the_sum_over_all(name):
    phase, (phi, weight), k = PHASES[name], cohort(), np.zeros(CLIENTS, np.int64)

    def total(who):
        return phase.absorb(phase.contribute(phi[who], weight[who], k[who]).sum(axis=0, keepdims=True))

    every = np.arange(CLIENTS)
    halves = total(every[::2]) + total(every[1::2])
    assert np.allclose(halves, total(every), rtol=0, atol=1e-12)
    assert np.abs(total(every)).sum() > 0
    alone = [total(every[i : i + 1]) for i in range(CLIENTS)]  # C = n equals n times C = 1
    assert np.allclose(sum(alone), total(every), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in PHASES if n != "statistics"])
def test_sums_over_clusters_are_joined_and_a_missing_one_counts_as_nothing(name):
    phase = PHASES[name]
    totals = np.random.default_rng(1).random((3, 4))
    totals[1] = 0
    assert np.allclose(phase.absorb(totals), totals[0] + totals[2])


def test_a_turn_is_the_covariance_times_the_direction():
    (phi, weight), phase = cohort(), PHASES["turn"]
    x = (np.sqrt(weight)[:, :, None] * (phi - phase.centre)).reshape(CLIENTS, -1)
    terms = phase.contribute(phi, weight, np.zeros(CLIENTS, np.int64))
    assert np.allclose(terms.sum(axis=0), x.T @ x @ phase.direction)


def test_statistics_stay_apart_by_cluster():
    phi, weight = cohort()
    terms = Statistics().contribute(phi, weight, np.zeros(CLIENTS, np.int64))
    assert np.array_equal(terms, spherical.statistics(phi, weight))
    assert np.array_equal(Statistics().absorb(terms[:3]), terms[:3])


# The paired test


def at(*degrees):
    """Clients of one block at these angles."""
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None, :]


def one_block(theta):
    return Centroids(theta, np.ones((len(theta), 1)))


def test_a_gain_is_the_distance_before_less_that_after_scaled_and_cut():
    phi, weight = at(0, 10, 20, 60), np.ones((4, 1))
    test = paired(one_block(at(0)), one_block(at(0, 60)))
    gain, square, one = test.contribute(phi, weight, np.zeros(4, np.int64)).T
    cosines = np.cos(np.radians([0, 10, 20, 60]))
    exact = np.maximum.reduce([cosines, np.cos(np.radians([60, 50, 40, 0]))]) - cosines
    assert gain == pytest.approx(np.minimum(exact / 0.08, 1), abs=1e-12)  # 0.08 and more count in full
    assert gain[3] == 1.0 and square == pytest.approx(gain**2) and one.tolist() == [1, 1, 1, 1]


def test_a_loss_is_as_large_as_the_gain_of_the_opposite_move():
    (phi, weight), nowhere = cohort(), np.zeros(CLIENTS, np.int64)
    a, b = centroids(), centroids(seed=4)
    forth, back = (paired(*pair).contribute(phi, weight, nowhere) for pair in ((a, b), (b, a)))
    assert np.array_equal(forth[:, 0], -back[:, 0]) and np.array_equal(forth[:, 1:], back[:, 1:])
    assert (forth[:, 0] > 0).any() and (forth[:, 0] < 0).any()
    same = paired(a, a).contribute(phi, weight, nowhere)
    assert not same[:, :2].any() and same[:, 2].sum() == CLIENTS


def test_no_term_is_larger_than_a_bound_of_one_allows():
    """Whatever scheme.bound is, it is at least what a count of one client needs."""
    phi, weight = at(*range(0, 360, 15)), np.ones((24, 1))
    test = paired(one_block(at(0)), one_block(at(180)))
    terms = test.contribute(phi, weight, np.zeros(24, np.int64))
    assert np.abs(terms).max() == 1.0
    assert set(np.sign(terms[:, 0])) == {-1, 0, 1}


def test_the_verdict_of_sums_is_that_of_the_gains_themselves():
    phi, weight = at(*range(0, 40, 2), *range(60, 100, 2)), np.ones((40, 1))
    for theta, so in ((at(19, 79), True), (at(19, 50), True), (at(49, 200), False), (at(48, 52), True)):
        test = paired(one_block(at(50)), one_block(theta))
        terms = test.contribute(phi, weight, np.zeros(40, np.int64))
        gain, squares, heard = test.absorb(terms.sum(axis=0, keepdims=True))
        z = terms[:, 0].sum() / np.sqrt((terms[:, 0] ** 2).sum())
        assert splitmerge.convincing(gain, squares, heard) == (z > 2) == so and heard == 40


def test_several_moves_are_judged_at_once_as_one_by_one():
    (phi, weight), nowhere = cohort(), np.zeros(CLIENTS, np.int64)
    now, some = centroids(), [centroids(seed=4), centroids(seed=5), centroids(seed=6)]
    together = paired(now, *some).contribute(phi, weight, nowhere)
    for n, each in enumerate(some):
        gain, square, one = paired(now, each).contribute(phi, weight, nowhere).T
        assert np.allclose(together[:, n], gain) and np.allclose(together[:, 3 + n], square)
        assert np.array_equal(together[:, -1], one)


def test_who_judges_a_move_leaves_its_own_part_out():
    """Two clients at 0 and 30 degrees make a cluster; that the second is in it is no reason to keep it."""
    phi, weight = at(0, 30), np.ones((2, 1))
    middle = phi.mean(axis=0, keepdims=True)
    rows = Centroids(np.concatenate([middle, at(45)]), np.array([[2.0], [1.0]]), np.array([[1.0, 0], [1, 0]]))
    test = PairedTest(Options(rows, np.array([True, False]), np.array([[False, True]])))
    own = replace(test, options=replace(test.options, rows=replace(rows, own=None)))
    stays, goes = (p.contribute(phi, weight, np.zeros(2, np.int64))[1, 0] for p in (own, test))
    assert (
        stays == pytest.approx(0.0, abs=1e-12) and goes > 0.1
    )  # 15 degrees from both, but 30 from the other client
    second = test.of(np.array([1])).contribute(phi[1:], weight[1:], np.zeros(1, np.int64))
    assert second[0, 0] == goes
