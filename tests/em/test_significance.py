"""How many clusters there are: histograms say whether two halves are two clusters."""

import itertools

import numpy as np
import pytest

from flameche.clustering.session import Session
from flameche.crypto.plain import Plain
from flameche.em import leaves as splitting
from flameche.em.significance import choose_clusters, merged
from flameche.privacy.guard import Guard
from flameche.protocol.exchange import Exchange
from flameche.protocol.ledger import Ledger
from tests.clustering.test_session import federation


def chosen(phi, weight, *, least=1, seed=0):
    ledger = Ledger(1000)
    exchange = Exchange(Plain(), Guard(1000, least), ledger)
    session = Session(exchange, np.arange(len(phi)), phi, weight, 8, least, choose=True)
    return session.run(np.random.default_rng(seed)), ledger, session


def histograms(tree, leaf, y):
    """Take the histograms of the suspected mergers from sketches [n q] and leaves [n]."""
    found = []
    for j, at in enumerate(tree.suspected):
        inside = np.isin(leaf, tree.mergers[at].leaves)
        cuts = tree.cuts()
        terms = splitting.histogram_terms(cuts, y[inside], np.full(inside.sum(), j))
        found.append(terms.sum(axis=0)[: cuts.bins[j]])
    return found


def read(y, leaf):
    """Sum sketches [n q] by leaf, as a session does."""
    count = np.bincount(leaf).astype(float)
    sums = np.zeros((len(count), y.shape[1]))
    np.add.at(sums, leaf, y)
    centred = y - y.mean(axis=0)
    return splitting.read_leaves(sums, count, centred.T @ centred)


@pytest.mark.parametrize("seed", range(5))
def test_the_share_that_two_means_explain_is_the_best_of_all_cuts(seed):
    n = np.random.default_rng(seed).integers(0, 6, 12).astype(float)
    places = np.repeat(np.linspace(-1, 1, 12), n.astype(int))
    shares = [
        1 - sum(half.var() * len(half) for half in (places[:i], places[i:])) / (places.var() * len(places))
        for i in range(2, len(places) - 1)
        if places[i] > places[i - 1]
    ]
    assert splitting.best_share(n, 2) == pytest.approx(max(shares))
    assert splitting.best_share(n[::-1], 2) == pytest.approx(max(shares))


def test_a_histogram_with_clients_in_one_bin_alone_explains_nothing():
    assert splitting.best_share(np.array([0.0, 9.0, 0.0, 0.0]), 1) == 0.0
    assert splitting.best_share(np.array([1.0, 0.0, 0.0, 1.0]), 2) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_group_that_is_wider_than_the_others_stays_one_cluster(seed):
    rng = np.random.default_rng(seed)
    width, centre = np.array([0.05, 0.05, 1.0]), np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    group = np.repeat(np.arange(3), 20)
    y = centre[group] + width[group][:, None] * rng.standard_normal((60, 2))
    y -= y.mean(axis=0)
    leaf = np.where(group == 2, 2 + (y[:, 0] > np.median(y[group == 2, 0])), group)
    tree = merged(read(y, leaf), 3, rng)
    assert len(tree.suspected) == 3  # leaves alone take the halves of the wide group for two clusters
    choice = choose_clusters(tree, histograms(tree, leaf, y), 8, 3)
    assert choice.k == 3 and (choice.label[leaf][group == 2] == choice.label[2]).all()


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_differ_by_chance_alone_are_one_cluster(seed):
    phi, weight, _ = federation((40,), seed=seed)
    assert chosen(phi, weight, seed=seed)[0].choice.k == 1


@pytest.mark.parametrize("sizes", [(4, 4), (7, 9), (6, 6, 6), (10,) * 6, (10,) * 8], ids=str)
@pytest.mark.parametrize("least", [1, 3])
def test_as_many_groups_as_there_are_in_at_most_eight_exchanges(sizes, least):
    phi, weight, group = federation(sizes, noise=0.03)
    found, ledger, _ = chosen(phi, weight, least=least)
    assert found.choice.k == len(sizes)
    assert len({(k, g) for k, g in zip(found.label, group, strict=True)}) == len(sizes)
    kinds = [opening.what for opening in ledger.openings]
    assert 1 + sum(a != b for a, b in itertools.pairwise(kinds)) <= 8


def test_choosing_opens_sums_over_unions_of_leaves_alone():
    phi, weight, _ = federation((10, 10, 10), noise=0.03)
    found, ledger, session = chosen(phi, weight, least=3)
    leaf = session.cut[0]
    late = [opening for opening in ledger.openings if opening.what == "histograms"][-len(found.choice.made) :]
    for opening in late:
        assert set(leaf[list(opening.clients)]).isdisjoint(np.delete(leaf, list(opening.clients)))
        assert len(opening.clients) >= 6
