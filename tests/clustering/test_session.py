"""A clustering session: few exchanges, right clusters, from whatever scheme adds the terms."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from flameche.clustering.session import Session
from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.plain import Plain
from flameche.crypto.registry import make_scheme
from flameche.em import spherical
from flameche.em.hartigan import joining_cost
from flameche.privacy.guard import Guard
from flameche.protocol.exchange import Exchange
from flameche.protocol.ledger import Ledger

SPLITS = [(3, 3), (4, 4), (4, 12), (7, 9), (12, 12), (3, 3, 3), (10, 6, 4), (4, 4, 4, 4), (25, 25, 25, 25)]


def federation(sizes, *, noise=0.1, seed=0, blocks=6, features=40, missing=0):
    """Metadata [n B F] of groups in a narrow cone, prepared as a cohort does, and the groups."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    common, own = rng.random((blocks, features)), rng.standard_normal((len(sizes), blocks, features))
    phi = common + 0.1 * own[group] + noise * rng.standard_normal((len(group), blocks, features))
    counts = np.full((len(group), blocks), 50)
    for i in range(len(group)):
        counts[i, rng.permutation(blocks)[:missing]] = 0
    phi[counts == 0] = 0.0
    order = rng.permutation(len(group))
    return spherical.class_norm(phi)[order], spherical.sample_weight(counts)[order], group[order]


def play(phi, weight, clusters, *, least=3, scheme=None, clients=None, seed=0):
    ledger, clients = Ledger(1000), np.arange(len(phi)) if clients is None else clients
    exchange = Exchange(scheme or Plain(), Guard(1000, least), ledger)
    session = Session(exchange, clients, phi, weight, clusters, least)
    return session.run(np.random.default_rng(seed)), ledger, exchange


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_three_and_more_are_found(sizes, seed):
    phi, weight, group = federation(sizes, seed=seed)
    found, _, _ = play(phi, weight, len(sizes), seed=seed)
    assert adjusted_rand_score(group, found.label) == 1.0


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_found_where_clients_lack_classes(missing, seed):
    phi, weight, group = federation((10, 10, 10), seed=seed, missing=missing)
    found, _, _ = play(phi, weight, 3, seed=seed)
    assert adjusted_rand_score(group, found.label) == 1.0


@pytest.mark.parametrize("kind", ["bfv", "ckks", "paillier", "secagg"])
def test_sealed_clustering_is_the_one_in_the_clear(kind):
    pytest.importorskip({"bfv": "tenseal", "ckks": "tenseal", "paillier": "gmpy2"}.get(kind, "cryptography"))
    phi, weight, _ = federation((4, 5), features=8, blocks=3)
    options = {"key_bits": 2048} if kind == "paillier" else {}
    scheme = SecAgg(exact_codec(64.0, 9)[0]) if kind == "secagg" else make_scheme(kind, clients=9, **options)
    clear, _, _ = play(phi, weight, 2)
    sealed, _, _ = play(phi, weight, 2, scheme=scheme)
    assert (sealed.label == clear.label).all()
    assert sealed.centroids.theta == pytest.approx(clear.centroids.theta, abs=1e-3)
    assert sealed.spread == pytest.approx(clear.spread, abs=1e-2)


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_at_most_eight_exchanges_and_no_sum_over_fewer_than_the_guard_says(sizes):
    phi, weight, _ = federation(sizes)
    _, ledger, exchange = play(phi, weight, len(sizes))
    kinds = [opening.what for opening in ledger.openings]
    assert min(len(opening.clients) for opening in ledger.openings) >= 3
    runs = 1 + sum(a != b for a, b in itertools.pairwise(kinds))
    assert kinds[0] == "second moments" and runs <= 8
    assert exchange.guard.leverage().max() < 1 - 1e-6


def test_directions_do_not_depend_on_the_order_of_clients():
    phi, weight, _ = federation((6, 6, 6))
    order = np.random.default_rng(5).permutation(18)
    one, _, _ = play(phi, weight, 3)
    other, _, _ = play(phi[order], weight[order], 3)
    assert adjusted_rand_score(one.label[order], other.label) == 1.0


def test_fewer_clusters_than_asked_for_where_the_guard_allows_no_more():
    phi, weight, _ = federation((3, 3))
    found, _, _ = play(phi, weight, 4)
    assert len(found.centroids) == 2


def test_too_few_clients_for_a_sum_of_second_moments_are_not_clustered():
    phi, weight, _ = federation((3, 2))
    found, ledger, _ = play(phi, weight, 2)
    assert found is None and ledger.openings == []


def test_clients_that_are_all_alike_are_clustered_somehow_and_nothing_is_nan():
    phi, weight, _ = federation((12,), noise=0.0)
    found, _, _ = play(phi, weight, 2)
    assert np.isfinite(found.centroids.theta).all() and np.isfinite(found.spread).all()


def test_joining_costs_what_the_sum_of_squares_within_clusters_grows_by():
    rng = np.random.default_rng(0)
    phi, weight = rng.standard_normal((9, 1, 4)), np.ones((9, 1))
    label = np.arange(9) % 3
    inside = np.eye(3)[label]
    theta = np.stack([phi[label == k].mean(axis=0) for k in range(3)])
    centroids = spherical.Centroids(theta, np.full((3, 1), 3.0))

    def within(labels):
        return sum(((phi[labels == k] - phi[labels == k].mean(axis=0)) ** 2).sum() for k in range(3))

    cost = joining_cost(phi, weight, centroids, inside)
    for i in range(9):
        alone = within(np.where(np.arange(9) == i, -1, label))
        for k in range(3):
            assert cost[i, k] == pytest.approx(within(np.where(np.arange(9) == i, k, label)) - alone)
