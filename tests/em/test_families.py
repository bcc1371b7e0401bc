"""Mixtures of exponential families from totals alone: laws of EM, and each family against its own oracle."""

import itertools
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.mixture import GaussianMixture

from flameche.em import bessel, mixture
from flameche.em.families import make_family
from flameche.em.gaussian import FARTHEST, FLOOR, NARROWEST, Full, Gaussian, deviation
from flameche.em.leaves import read_leaves
from flameche.em.mixture import KNOWN, Blocks, e_step, log_mixing, m_step
from flameche.em.multinomial import PRIOR, UNIT, Multinomial
from flameche.em.sketch import moment_terms, projection, sketch_from
from flameche.em.spherical import Centroids, class_norm, sample_weight
from flameche.em.spherical import m_step as hard_m_step
from flameche.em.spherical import statistics as hard_statistics
from flameche.em.vmf import CLOSEST, Spherical, Vmf

NAMES = ["vmf", "gaussian", "multinomial", "spherical", "full"]
TIED = ["vmf, tied", "gaussian, tied"]
B, F = 4, 5


def family(name, blocks=B, features=F):
    if name == "full":
        return full(blocks, features)
    made = make_family(name.partition(",")[0], blocks, features)
    return made.alike() if "tied" in name else made


def full(blocks=B, features=F, strength=2.0):
    """A family of sketches of these clients' metadata, with a shared covariance that is not round."""
    rng = np.random.default_rng(0)
    matrix = projection(rng, blocks, features)
    phi, counts = clients(0, blocks=blocks, features=features)
    sketch = sketch_from(moment_terms(class_norm(phi), sample_weight(counts), matrix).sum(axis=0), matrix, 3)
    turn = np.linalg.qr(rng.normal(size=(sketch.size, sketch.size)))[0]
    return Full(sketch, turn * [0.1, 0.4, 0.9][: sketch.size] @ turn.T, strength)


def clients(seed, n=30, groups=3, missing=0.0, noise=0.4, blocks=B, features=F):
    """Metadata phi [n B F] of overlapping groups with counts [n B], classes missing at random."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, blocks, features)) + 1.0
    group = rng.integers(groups, size=n)
    phi = centres[group] + noise * rng.normal(size=(n, blocks, features))
    odds = rng.dirichlet(np.ones(blocks), groups)
    counts = np.stack([rng.multinomial(100, odds[g]) for g in group]) + 1
    counts[rng.random((n, blocks)) < missing] = 0
    return phi * (counts > 0)[:, :, None], counts


def soft_start(seed, n, k):
    return np.random.default_rng(seed).dirichlet(np.ones(k), n)


def total(fam, own, resp):
    """Sum what clients contribute to each component, r_ik [t(x_i), 1]: [K S+1]."""
    return resp.T @ np.column_stack([fam.statistics(own), np.ones(len(own))])


def some(own, clients):
    return Blocks(own.x[clients], own.weight[clients])


def objective(fam, own, totals):
    """What EM climbs: the log-likelihood, with the prior's part where there is one."""
    return e_step(fam, own, totals)[1].sum() + fam.log_prior(totals)


# Laws


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("name", [*NAMES, *TIED])
def test_no_step_lowers_the_likelihood(name, missing):
    for seed in range(12):
        fam = family(name)
        own = fam.prepare(*clients(seed, missing=missing))
        resp = soft_start(seed, len(own), 3)
        totals = total(fam, own, np.eye(3)[resp.argmax(axis=1)] if fam.hard else resp)
        before = objective(fam, own, totals)
        for _ in range(25):
            totals = m_step(total(fam, own, e_step(fam, own, totals)[0]), totals)
            after = objective(fam, own, totals)
            assert after >= before - 1e-9 * abs(before), (seed, before, after)
            before = after


@pytest.mark.parametrize("name", [*NAMES, *TIED])
def test_responsibilities_are_shares_that_sum_to_one(name):
    fam = family(name)
    own = fam.prepare(*clients(1, missing=0.4))
    resp, likelihood = e_step(fam, own, total(fam, own, soft_start(1, len(own), 4)))
    assert resp.min() >= 0 and np.allclose(resp.sum(axis=1), 1, atol=1e-15)
    assert np.isfinite(likelihood).all()
    assert ((resp == 0) | (resp == 1)).all() == fam.hard


@pytest.mark.parametrize("name", NAMES)
def test_the_totals_of_all_are_those_of_two_halves_added(name):
    fam = family(name)
    own, resp = fam.prepare(*clients(2, missing=0.3)), soft_start(2, 30, 3)
    half = np.arange(0, 30, 2), np.arange(1, 30, 2)
    parts = [total(fam, some(own, part), resp[part]) for part in half]
    assert np.allclose(parts[0] + parts[1], total(fam, own, resp), rtol=1e-13)
    assert parts[0].shape == (3, fam.size + 1)
    assert np.allclose(total(fam, own, resp)[:, -1], resp.sum(axis=0))


@pytest.mark.parametrize("name", [*NAMES, *TIED])
def test_permuting_clients_or_components_permutes_responsibilities(name):
    fam, rng = family(name), np.random.default_rng(3)
    own = fam.prepare(*clients(3, missing=0.3))
    totals = total(fam, own, soft_start(3, 30, 3))
    resp, likelihood = e_step(fam, own, totals)
    order, turn = rng.permutation(30), np.array([2, 0, 1])
    assert np.allclose(e_step(fam, some(own, order), totals)[0], resp[order], atol=1e-12)
    turned, same = e_step(fam, own, totals[turn])
    assert np.allclose(turned, resp[:, turn], atol=1e-9) and np.allclose(same, likelihood)


@pytest.mark.parametrize("name", [*NAMES, *TIED])
def test_what_a_client_lacks_takes_no_part(name):
    fam = family(name)
    phi, counts = clients(5, missing=0.4)
    own = fam.prepare(phi, counts)
    totals = total(fam, own, soft_start(5, 30, 3))
    other = np.where((counts > 0)[:, :, None], phi, 7.0)
    changed = fam.prepare(other, counts)
    assert np.array_equal(fam.statistics(changed), fam.statistics(own))
    assert np.allclose(fam.log_density(changed, totals), fam.log_density(own, totals))


@pytest.mark.parametrize("name", ["vmf", "gaussian", "vmf, tied", "gaussian, tied"])
def test_a_density_over_some_classes_is_that_of_a_smaller_family(name):
    phi, counts = clients(6)
    counts[:, 2] = 0  # nobody has class 2
    whole, less = family(name), family(name, blocks=B - 1)
    rest = [0, 1, 3]
    own, small = whole.prepare(phi, counts), less.prepare(phi[:, rest], counts[:, rest])
    resp = soft_start(6, 30, 3)
    found, expected = (e_step(f, o, total(f, o, resp)) for f, o in ((whole, own), (less, small)))
    assert np.allclose(found[0], expected[0], atol=1e-12) and np.allclose(found[1], expected[1])


@pytest.mark.parametrize("name", ["vmf", "gaussian"])
def test_without_a_common_class_mixing_weights_decide(name):
    phi, counts = clients(7, n=6)
    counts[:4, 2:], counts[4:, :2] = 0, 0  # the last two share no class with the others
    fam = family(name)
    own = fam.prepare(phi, counts)
    totals = total(fam, some(own, np.arange(4)), np.eye(2)[[0, 0, 0, 1]])
    resp, likelihood = e_step(fam, some(own, np.array([4, 5])), totals)
    assert np.allclose(resp, [[0.75, 0.25]] * 2) and np.allclose(likelihood, 0.0)


@pytest.mark.parametrize("name", ["vmf", "gaussian"])
def test_of_a_class_that_a_component_does_not_know_it_says_what_all_say(name):
    phi, counts = clients(8, n=8)
    counts[:4, 3] = 0  # component 0 knows nothing of class 3
    fam, alone = family(name), family(name, blocks=1)
    own, hot = fam.prepare(phi, counts), np.eye(2)[np.repeat([0, 1], 4)]
    one = alone.prepare(phi[4:, [3]], counts[4:, [3]])
    pooled = alone.log_density(one, total(alone, one, np.ones((4, 1))))[:, 0]
    seen, unseen = (
        fam.log_density(fam.prepare(phi[4:], c), total(fam, own, hot))[:, 0]
        for c in (counts[4:], counts[4:] * [1, 1, 1, 0])
    )
    assert np.allclose(seen - unseen, pooled)


@pytest.mark.parametrize("name", [*NAMES, *TIED])
def test_extreme_values_neither_overflow_nor_fail(name):
    for blocks, features, size in ((10, 512, 1e-12), (10, 512, 0.0), (2, 1, 1.0), (1, 3, 1e6)):
        rng = np.random.default_rng(9)
        phi = np.ones((6, blocks, features)) + size * rng.normal(size=(6, blocks, features))
        counts = np.where(np.arange(6)[:, None] < 3, 1, 60_000) * np.ones((6, blocks), np.int64)
        fam = family(name, blocks, features)
        own = fam.prepare(phi, counts)
        for resp in (np.eye(3)[[0, 0, 0, 0, 0, 1]], np.full((6, 3), 1 / 3), np.eye(3)[np.arange(6) % 3]):
            totals = total(fam, own, resp)
            with np.errstate(over="raise", invalid="raise"):
                found, likelihood = e_step(fam, own, totals)
            assert np.isfinite(found).all() and np.isfinite(likelihood).all()


@pytest.mark.parametrize("name", NAMES)
def test_statistics_fit_the_default_bound_of_sealed_sums(name):
    fam = family(name, 3, 1 if name == "gaussian" else 6)  # all of a block in one number: the worst
    phi, counts = clients(10, blocks=3, features=1 if name == "gaussian" else 6)
    assert np.abs(fam.statistics(fam.prepare(1e3 * phi, counts * 600))).max() <= 64


def test_a_component_without_mass_keeps_its_totals_and_gets_nobody():
    fam = family("vmf")
    own = fam.prepare(*clients(11))
    previous = total(fam, own, soft_start(11, 30, 3))
    sums = total(fam, own, np.eye(3)[np.arange(30) % 2])
    assert np.array_equal(m_step(sums, previous)[2], previous[2])
    assert np.array_equal(m_step(sums, previous)[:2], sums[:2])
    assert e_step(fam, own, sums)[0][:, 2].max() == 0
    assert np.allclose(log_mixing(np.zeros((4, 3))), -np.log(4))


# Spherical


def test_spherical_components_are_the_centroids_of_the_hard_m_step():
    fam = family("spherical")
    phi, counts = clients(12, missing=0.3)
    own = fam.prepare(phi, counts)
    part = np.arange(30) % 3
    totals = total(fam, own, np.eye(3)[part])
    hard = np.stack([hard_statistics(own.x, own.weight)[part == k].sum(axis=0) for k in range(3)])
    expected = hard_m_step(hard, Centroids(np.zeros((3, B, F)), np.zeros((3, B))))
    for same in (fam, family("vmf")):
        assert np.allclose(same.start(expected, hard[:, -1]), totals)


def test_a_spherical_client_is_where_its_weighted_cosines_are_largest():
    x = np.array([[[1.0, 0], [0, 1]], [[0, 1.0], [1, 0]]])
    fam, own = Spherical(2, 2), Blocks(x, np.ones((2, 2)))
    totals = total(fam, own, np.eye(2))
    third = Blocks(np.array([[[0.6, 0.8], [0.6, 0.8]]]), np.array([[1.0, 0.5]]))
    assert np.allclose(fam.log_density(third, totals), [[0.6 + 0.4, 0.8 + 0.3]])
    assert e_step(fam, third, totals)[0].tolist() == [[0, 1]]


def test_vmf_with_one_large_kappa_assigns_as_spherical_does():
    phi, counts = clients(13, n=60, noise=0.02)
    soft, hard = family("vmf, tied"), family("spherical")
    own = soft.prepare(phi, counts)
    totals = total(
        soft, own, np.eye(3)[e_step(hard, own, total(hard, own, soft_start(0, 60, 3)))[0].argmax(1)]
    )
    assert (e_step(soft, own, totals)[0].argmax(1) == e_step(hard, own, totals)[0].argmax(1)).all()


# Von Mises-Fisher


@pytest.mark.parametrize("kappa", [1e-3, 0.1, 2.0, 50.0, 1e4, 1e6])
def test_in_three_dimensions_the_mean_length_is_coth_minus_inverse(kappa):
    k = np.array([kappa])
    closed = float(mpmath.coth(kappa) - 1 / mpmath.mpf(kappa))
    assert bessel.mean_length(3, k)[0] == pytest.approx(closed, rel=1e-12)
    assert bessel.concentration(3, np.array([closed]))[0] == pytest.approx(kappa, rel=1e-9)


@pytest.mark.parametrize("dimension", [2, 3, 10, 84, 512, 2048])
@pytest.mark.parametrize("kappa", [1e-6, 1e-2, 1.0, 40.0, 1e3, 6e5, 1e7])
def test_bessel_functions_agree_with_forty_digits(dimension, kappa):
    k, order = np.array([kappa]), dimension / 2 - 1
    with mpmath.workdps(40):
        exact, above = mpmath.besseli(order, kappa), mpmath.besseli(order + 1, kappa)
        assert bessel.log_i(order, k)[0] == pytest.approx(float(mpmath.log(exact)), rel=1e-12, abs=1e-12)
        length = float(above / exact)
    assert bessel.mean_length(dimension, k)[0] == pytest.approx(length, rel=1e-10)
    assert bessel.concentration(dimension, np.array([length]))[0] == pytest.approx(kappa, rel=1e-7)


@pytest.mark.parametrize("features", [2, 3, 7, 84])
def test_kappa_is_that_of_maximum_likelihood(features):
    rng = np.random.default_rng(features)
    x = class_norm(rng.normal(size=(40, 1, features)) + 1.5)
    fam, own = Vmf(1, features), Blocks(x, rng.uniform(0.2, 1, (40, 1)))
    totals = total(fam, own, np.ones((40, 1)))
    mu = totals[0, :features] / np.linalg.norm(totals[0, :features])

    def loss(log_kappa):
        kappa = np.exp(log_kappa)
        logs = bessel.log_normaliser(features, np.array([kappa])) + kappa * x[:, 0] @ mu
        return -(own.weight[:, 0] * logs).sum()

    best = minimize_scalar(loss, bounds=(-4, 12), method="bounded", options={"xatol": 1e-10})
    assert fam.kappa(totals)[0, 0] == pytest.approx(np.exp(best.x), rel=1e-6)


@pytest.mark.parametrize("features", [2, 3, 20])
def test_the_density_is_scipys(features):
    rng = np.random.default_rng(0)
    x = class_norm(rng.normal(size=(25, 1, features)) + 1.0)
    fam, own = Vmf(1, features), Blocks(x, np.ones((25, 1)))
    totals = total(fam, own, np.ones((25, 1)))
    mu = totals[0, :features] / np.linalg.norm(totals[0, :features])
    oracle = stats.vonmises_fisher(mu, fam.kappa(totals)[0, 0])
    assert np.allclose(fam.log_density(own, totals)[:, 0], oracle.logpdf(x[:, 0]), rtol=1e-10)
    assert np.allclose(
        [fam.kappa(totals)[0, 0], *mu],
        [stats.vonmises_fisher.fit(x[:, 0])[1], *stats.vonmises_fisher.fit(x[:, 0])[0]],
        rtol=1e-5,
    )


@pytest.mark.parametrize("kappa", [1e-3, 3.0, 200.0])
def test_a_density_on_the_sphere_integrates_to_one(kappa):
    logs = bessel.log_normaliser(3, np.array([kappa]))[0]
    whole, _ = quad(lambda t: 2 * np.pi * np.exp(logs + kappa * t), -1, 1)
    assert whole == pytest.approx(1, rel=1e-8)


def test_classes_multiply_each_to_the_power_of_its_weight():
    fam, one = Vmf(2, 3), Vmf(1, 3)
    x = class_norm(np.random.default_rng(1).normal(size=(9, 2, 3)) + 1)
    weight = np.random.default_rng(2).uniform(0.1, 1, (9, 2))
    own, parts = Blocks(x, weight), [Blocks(x[:, [b]], weight[:, [b]]) for b in (0, 1)]
    whole = fam.log_density(own, total(fam, own, np.ones((9, 1))))
    each = [one.log_density(p, total(one, p, np.ones((9, 1)))) for p in parts]
    assert np.allclose(whole, each[0] + each[1])


def test_a_lone_client_has_the_largest_kappa_there_is():
    fam, x = Vmf(1, 4), class_norm(np.ones((1, 1, 4)))
    totals = total(fam, Blocks(x, np.ones((1, 1))), np.ones((1, 1)))
    assert fam.kappa(totals)[0, 0] == pytest.approx(3 / (2 * CLOSEST), rel=1e-2)
    assert np.isfinite(fam.log_density(Blocks(-x, np.ones((1, 1))), totals)).all()


def test_tied_kappas_are_that_of_the_mean_length():
    fam = Vmf(1, 3, tied=True)
    sums = np.array([[0.9, 0, 0, 1, 1], [0, 1.2, 0, 2, 2]])  # lengths 0.9 of 1 and 1.2 of 2
    assert np.allclose(fam.kappa(sums), bessel.concentration(3, np.array([2.1 / 3])))


# Gaussian


def test_every_iteration_is_scikit_learns():
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(m, s, (40, 6)) for m, s in ((0, 1), (1.5, 0.5), (-1, 2))])
    fam, own = Gaussian(2, 3), Blocks(x.reshape(-1, 2, 3), np.ones((120, 2)))
    totals = total(fam, own, soft_start(4, 120, 3))
    for _ in range(15):
        mean, variance, _ = fam.parameters(totals)
        oracle = GaussianMixture(
            3,
            covariance_type="diag",
            reg_covar=1e-15,
            max_iter=1,
            tol=0,
            weights_init=totals[:, -1] / totals[:, -1].sum(),
            means_init=mean.reshape(3, -1),
            precisions_init=1 / variance.reshape(3, -1),
        )
        with pytest.warns(match="did not converge"):
            oracle.fit(x)
        resp, likelihood = e_step(fam, own, totals)
        assert likelihood.mean() == pytest.approx(oracle.lower_bound_, rel=1e-9)
        totals = total(fam, own, resp)
        mean, variance, _ = fam.parameters(totals)
        assert np.allclose(mean.reshape(3, -1), oracle.means_, atol=1e-8)
        assert np.allclose(variance.reshape(3, -1), oracle.covariances_, atol=1e-8)
        assert np.allclose(totals[:, -1] / 120, oracle.weights_, atol=1e-8)
        assert np.allclose(e_step(fam, own, totals)[0], oracle.predict_proba(x), atol=1e-7)


def test_a_variance_below_the_floor_is_the_floor_and_one_above_is_untouched():
    x = np.array([[[0.0, 1.0]], [[0.0, 3.0]]])
    fam, own = Gaussian(1, 2), Blocks(x, np.ones((2, 1)))
    mean, variance, _ = fam.parameters(total(fam, own, np.ones((2, 1))))
    assert mean.tolist() == [[[0, 2]]] and variance.tolist() == [[[FLOOR, 1]]]


def test_tied_variances_are_those_within_components():
    x = np.array([0.0, 2.0, 10.0, 10.0, 16.0])[:, None, None]
    fam, own = Gaussian(1, 1, tied=True), Blocks(x, np.ones((5, 1)))
    _, variance, _ = fam.parameters(total(fam, own, np.eye(2)[[0, 0, 1, 1, 1]]))
    assert np.allclose(variance, (1 + 1 + 4 + 4 + 16) / 5)


# Full covariances


def sketched(y):
    """Clients with these sketches, in standard deviations."""
    return Blocks(y[:, None, :], np.ones((len(y), 1)))


def test_every_iteration_with_full_covariances_is_scikit_learns():
    rng = np.random.default_rng(4)
    turn = rng.normal(size=(3, 3, 3))
    y = np.concatenate([rng.normal(size=(40, 3)) @ turn[k] + 2 * rng.normal(size=3) for k in range(3)])
    fam, own = full(strength=0.0), sketched(y)
    totals = total(fam, own, soft_start(4, 120, 3))
    for _ in range(15):
        mean, covariance = fam.parameters(totals)
        oracle = GaussianMixture(
            3,
            reg_covar=1e-15,
            max_iter=1,
            tol=0,
            weights_init=totals[:, -1] / totals[:, -1].sum(),
            means_init=mean,
            precisions_init=np.linalg.inv(covariance),
        )
        with pytest.warns(match="did not converge"):
            oracle.fit(y)
        resp, likelihood = e_step(fam, own, totals)
        assert likelihood.mean() == pytest.approx(oracle.lower_bound_, rel=1e-9)
        totals = total(fam, own, resp)
        mean, covariance = fam.parameters(totals)
        assert np.allclose(mean, oracle.means_, atol=1e-8)
        assert np.allclose(covariance, oracle.covariances_, atol=1e-8)
        assert np.allclose(e_step(fam, own, totals)[0], oracle.predict_proba(y), atol=1e-7)


def test_a_covariance_is_that_of_the_clients_and_of_some_more_that_lie_as_all_do():
    fam, y = full(), np.random.default_rng(5).normal(size=(6, 3))
    _, (covariance,) = fam.parameters(total(fam, sketched(y), np.ones((6, 1))))
    assert np.allclose(covariance, (6 * np.cov(y.T, bias=True) + 2 * fam.shared) / 8)
    _, (nobody,) = fam.parameters(np.zeros((1, fam.size + 1)))
    assert np.allclose(nobody, fam.shared)


def test_components_start_at_the_means_as_wide_as_clusters_and_round():
    sketch, label = full().sketch, np.arange(30) % 3
    y = (np.random.default_rng(6).normal(size=(30, 3)) + 3 * np.eye(3)[label]) * deviation(sketch)
    y -= y.mean(axis=0)
    sums = np.stack([y[label == k].sum(axis=0) for k in range(3)])
    clusters = read_leaves(sums, np.full(3, 10.0), y.T @ y)
    fam = Full.within(sketch, clusters)
    mean, covariance = fam.parameters(fam.start(clusters.as_centroids(), clusters.count))
    width = np.mean([y[label == k].var(axis=0).sum() for k in range(3)]) / 3
    scale = np.outer(deviation(sketch), deviation(sketch))
    assert np.allclose(covariance * scale, width * np.eye(3), atol=1e-9 * width)
    assert np.allclose(mean * deviation(sketch), [y[label == k].mean(axis=0) for k in range(3)])
    nothing = read_leaves(sums, np.full(3, 10.0), np.zeros((3, 3)))  # less than nothing is left within
    assert np.allclose(
        np.diag(Full.within(sketch, nothing).shared * scale), NARROWEST * sketch.variance.mean()
    )


@pytest.mark.parametrize("name", NAMES)
def test_means_without_the_clients_own_part_are_those_of_the_others(name):
    fam, resp = family(name), soft_start(8, 12, 2)
    if fam.hard:
        resp = np.eye(2)[resp.argmax(axis=1)]
    own = fam.prepare(*clients(8, n=12))
    totals = total(fam, own, resp)
    found = fam.log_density(own, totals, resp)
    others = np.arange(12) != np.arange(12)[:, None]
    left = np.stack([total(fam, some(own, np.flatnonzero(o)), resp[o]) for o in others])
    for i in range(12):
        mine, rest = some(own, np.array([i])), left[i]
        if name in ("vmf", "full", "gaussian"):  # only means are without it, spreads are as they were
            rest = swapped(name, fam, totals, rest)
        assert np.allclose(found[i], fam.log_density(mine, rest)[0], rtol=1e-6), i
    assert not np.allclose(found, fam.log_density(own, totals))


def swapped(name, fam, totals, rest):
    """Give totals with the means of `rest` and the spreads of `totals`."""
    if name == "full":
        mean, (_, covariance) = fam.parameters(rest)[0], fam.parameters(totals)
        n = totals[:, [-1]]
        scatter = (n[:, :, None] + fam.strength) * covariance - fam.strength * fam.shared
        second = scatter + n[:, :, None] * mean[:, :, None] * mean[:, None, :]
        rows, columns = np.triu_indices(3)
        return np.column_stack([n * mean, second[:, rows, columns], n])
    if name == "gaussian":
        _, variance, _ = fam.parameters(totals)
        mean, mass = fam.parameters(rest)[0], totals[:, -1 - B : -1, None]
        many = (len(totals), -1)
        second = ((variance + mean**2) * mass).reshape(many)
        return np.column_stack([(mean * mass).reshape(many), second, mass[:, :, 0], totals[:, -1]])
    mu, length = fam.means(rest)[0], fam.means(totals)[1]
    mass = totals[:, -1 - B : -1]
    return np.column_stack([(mu * (length * mass)[:, :, None]).reshape(len(mu), -1), mass, totals[:, -1]])


def test_a_sketch_far_from_all_counts_as_less_far():
    fam = full()
    phi, counts = clients(0)
    fam = replace(fam, sketch=replace(fam.sketch, variance=1e-6 * fam.sketch.variance))
    x = fam.prepare(phi, counts).x
    assert np.abs(x).max() == FARTHEST and np.abs(fam.statistics(fam.prepare(phi, counts))).max() <= 64


# Multinomial


def test_the_probability_of_counts_is_scipys():
    counts = np.array([[3, 0, 7], [1, 1, 0], [0, 0, 0], [500, 20, 1]])
    fam = Multinomial(3)
    own = fam.prepare(np.zeros((4, 3, 2)), counts)
    totals = total(fam, own, np.array([[1, 0.5], [0.2, 1], [1, 1], [0, 1.0]]))
    p = fam.probabilities(totals)
    for i, k in itertools.product(range(4), range(2)):
        expected = stats.multinomial(counts[i].sum(), p[k] / p[k].sum()).logpmf(counts[i])
        assert fam.log_density(own, totals)[i, k] == pytest.approx(expected, abs=1e-8)


def test_probabilities_are_shares_of_counts_and_a_touch_of_the_prior():
    fam = Multinomial(3)
    own = fam.prepare(np.zeros((2, 3, 1)), np.array([[6, 2, 0], [0, 4, 0]]))
    p = fam.probabilities(total(fam, own, np.ones((2, 1))))
    assert np.allclose(p, np.array([[6, 6, 0]]) / 12, atol=2 * PRIOR / 12)
    assert np.allclose(p, (np.array([[6, 6, 0]]) + PRIOR) / (12 + 3 * PRIOR))


def test_label_counts_given_as_metadata_are_the_counts():
    counts = np.array([[6, 2, 0], [0, 4, 1]])
    as_metadata = counts[:, None, :].astype(float), counts.sum(axis=1, keepdims=True)
    fam = make_family("multinomial", 1, 3)
    assert fam == make_family("multinomial", 3, 84) == Multinomial(3)
    own, same = fam.prepare(*as_metadata), fam.prepare(np.zeros((2, 3, 84)), counts)
    assert np.array_equal(own.x, same.x) and np.array_equal(fam.statistics(own), counts / UNIT)
    one = Centroids(np.array([[[0.6, 0.2, 0.0]]]), np.ones((1, 1)))
    two = Centroids(np.zeros((1, 3, 84)), np.array([[1.5, 0.5, 0.0]]))
    for centroids in (one, two):
        assert np.allclose(fam.start(centroids, np.array([4.0])), [[3, 1, 0, 4]])


def test_two_kinds_of_labels_are_told_apart():
    rng = np.random.default_rng(6)
    group = np.arange(40) % 2
    odds = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    counts = np.stack([rng.multinomial(60, odds[g]) for g in group])
    fam = Multinomial(4)
    own = fam.prepare(np.zeros((40, 4, 1)), counts)
    totals = total(fam, own, soft_start(1, 40, 2))
    for _ in range(50):
        totals = total(fam, own, e_step(fam, own, totals)[0])
    found = e_step(fam, own, totals)[0].argmax(axis=1)
    assert max((found == group).mean(), (found != group).mean()) > 0.95
    p = fam.probabilities(totals)
    assert np.allclose(np.sort(p, axis=0), np.sort(odds, axis=0), atol=0.05)


# The E-step


def test_responsibilities_are_bayes_rule():
    class Given:
        hard = False

        def log_density(self, own, totals, inside=None):
            return np.array([[-1000.0, -1001.0], [5.0, -np.inf]])

    resp, likelihood = e_step(Given(), None, np.array([[0, 3.0], [0, 1.0]]))
    assert np.allclose(resp[0], [3 * np.e / (3 * np.e + 1), 1 / (3 * np.e + 1)]) and resp[1].tolist() == [
        1,
        0,
    ]
    expected = [logsumexp([np.log(0.75) - 1000, np.log(0.25) - 1001]), np.log(0.75) + 5]
    assert np.allclose(likelihood, expected)


def test_mass_below_what_sealed_sums_round_is_none():
    assert np.isneginf(log_mixing(np.array([[1.0], [KNOWN / 2]]))[1])
    sums, mass = mixture.borrowed(np.array([[[2.0]], [[9.0]]]), np.array([[1.0], [KNOWN / 2]]))
    assert sums.ravel().tolist() == [2, 2] and mass.ravel().tolist() == [1, 1]
