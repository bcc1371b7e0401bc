import pickle

import numpy as np
import pytest

from flameche.crypto.plain import Plain
from flameche.em.spherical import Centroids
from flameche.metadata.extractors import Metadata
from flameche.protocol.client import Cohort
from flameche.protocol.ledger import Ledger
from flameche.protocol.phases import MStep, Spread, UnitMeans
from flameche.protocol.server import AdditiveServer
from flameche.protocol.sums import StoredSums
from flameche.protocol.vault import Vault
from tests.conftest import planted_metadata
from tests.crypto.test_lattice import negated, scheme, vectors_of


def blank(metadata, clusters):
    return Centroids(
        np.zeros((clusters, *metadata.phi.shape[1:])), np.zeros((clusters, metadata.phi.shape[1]))
    )


def plain_sums(metadata, clusters, least=1, ledger=None):
    ledger = ledger or Ledger(len(metadata))
    cohort = Cohort(metadata, Plain(), ledger)
    return StoredSums(cohort, Plain(), clusters, least, ledger)


def test_contribute_add_absorb_gives_the_cluster_means():
    metadata, group = planted_metadata()
    start = blank(metadata, 4)
    found = plain_sums(metadata, 4).once(MStep(start), np.arange(40), group, start)
    for k in range(4):
        assert np.allclose(found.theta[k], metadata.phi[group == k].mean(axis=0), atol=1e-6)


def test_one_cohort_of_many_equals_many_cohorts_of_one():
    metadata, _ = planted_metadata(clients=12)
    centroids = Centroids(metadata.phi[[0, 4, 8]], np.ones((3, 5)))
    whole = Cohort(metadata, Plain(), Ledger(12))
    k, e = whole.e_step(np.arange(12), centroids)
    for i in range(12):
        one = Cohort(metadata.of(np.array([i])), Plain(), Ledger(1))
        k1, e1 = one.e_step(np.array([0]), centroids)
        assert k1[0] == k[i] and e1[0] == pytest.approx(e[i], abs=1e-12)


def test_criteria_come_from_two_exchanges_of_sums():
    metadata, group = planted_metadata(noise=0.3)
    start, every, sums = blank(metadata, 4), np.arange(40), plain_sums(metadata, 4)
    means = sums.once(UnitMeans(start), every, group, start)
    dbi, ch = sums.once(Spread(means), every, group, start)
    from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score

    flat = metadata.phi.reshape(40, -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    assert dbi == pytest.approx(davies_bouldin_score(flat, group), rel=1e-4)
    assert ch == pytest.approx(calinski_harabasz_score(flat, group), rel=1e-4)


def stored(metadata, clusters, server):
    cohort, every = Cohort(metadata, Plain(), Ledger(len(metadata))), np.arange(len(metadata))
    start = blank(metadata, clusters)
    server.store(every, cohort.seal(cohort.terms(MStep(start), every, np.zeros_like(every), start)))


def opened(totals):
    key = Plain().client_key()
    return [None if total is None else key.open(total) for total in totals]


def test_stored_terms_are_replaced_not_added_twice():
    metadata, _ = planted_metadata(clients=4)
    server = AdditiveServer(Plain().adder(), Ledger(4), 1)
    clients, together = np.arange(4), np.zeros(4, np.int64)
    for _ in range(2):
        stored(metadata, 1, server)
        (total,) = server.sums_of_stored(clients, together)
    assert Plain().adder().load(total).terms == 4


def test_a_running_sum_equals_one_added_afresh_whatever_moved():
    metadata, _ = planted_metadata(clients=20)
    server, rng = AdditiveServer(Plain().adder(), Ledger(20), 4), np.random.default_rng(0)
    stored(metadata, 4, server)
    for _ in range(50):
        members = np.sort(rng.choice(20, rng.integers(1, 21), replace=False))
        cluster = rng.integers(0, 4, len(members))
        totals = opened(server.sums_of_stored(members, cluster))
        for k in range(4):
            mine = members[cluster == k]
            if len(mine) == 0:
                assert totals[k] is None
            else:
                expected = metadata.phi[mine].sum(axis=0).ravel()
                assert np.allclose(totals[k][: expected.size], expected, atol=1e-5)
                assert totals[k][-1] == pytest.approx(len(mine))


def test_a_group_of_nobody_has_no_sum():
    metadata, _ = planted_metadata(clients=4)
    cohort, server = Cohort(metadata, Plain(), Ledger(4)), AdditiveServer(Plain().adder(), Ledger(4), 3)
    start, cluster = blank(metadata, 3), np.array([0, 0, 2, 2])
    terms = cohort.seal(cohort.terms(MStep(start), np.arange(4), cluster, start))
    assert [total is None for total in server.sums(terms, cluster)] == [False, True, False]


def test_a_servers_state_brings_its_terms_and_sums_back():
    metadata, group = planted_metadata(clients=8, groups=2)
    server, again = (AdditiveServer(Plain().adder(), Ledger(8), 2) for _ in range(2))
    stored(metadata, 2, server)
    server.sums_of_stored(np.arange(5), group[:5])
    again.restore(server.state())
    first, second = (s.sums_of_stored(np.arange(8), group) for s in (server, again))
    assert first == second
    assert again.holds(np.array([0, 7])).all()


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_a_sum_whose_ciphertexts_cancel_is_left_out_until_it_can_be_formed(kind):
    own, ledger = scheme(kind), Ledger(4)
    vectors = vectors_of(3, 5)
    a, b, c = (own.client_key().seal(vector) for vector in vectors)
    server = AdditiveServer(own.adder(), ledger, 2)
    server.store(np.arange(4), [a, negated(own, a), b, c])
    ledger.round = 1
    first, second = server.sums_of_stored(np.arange(4), np.array([0, 0, 1, 1]))
    assert first is None and server.cancelled == {0} and ledger.cancelled == [1]
    found = own.client_key().open(second)
    assert np.allclose(found, vectors[1] + vectors[2], atol=1e-4)

    ledger.round = 2
    server.drop(np.arange(4))
    server.store(np.arange(3), [a, b, negated(own, a)])  # added in this order, each step is sealed
    assert server.sums_of_stored(np.arange(3), np.zeros(3, np.int64))[0] is not None
    assert server.sums_of_stored(np.array([0, 2]), np.zeros(2, np.int64)) == [None, None]
    assert ledger.cancelled == [1, 2]

    again = AdditiveServer(own.adder(), ledger, 2)
    again.restore(server.state())
    assert again.cancelled == {0}
    for one in (server, again):
        one.drop(np.array([2]))
        (left, _) = one.sums_of_stored(np.array([0]), np.array([0]))
        assert np.allclose(own.client_key().open(left), vectors[0], atol=1e-4)
        assert not one.cancelled


def test_the_guard_does_not_count_a_sum_as_opened_that_cancelled():
    own, ledger = scheme("bfv"), Ledger(4)
    a, b, c = (own.client_key().seal(vector) for vector in vectors_of(3, 5))
    vault = Vault(own.adder(), 4, 2, 2, ledger)
    vault.store(np.arange(4), [a, negated(own, a), b, c])
    assert [total is None for total in vault.totals(np.arange(4), np.array([0, 0, 1, 1]))] == [True, False]
    assert vault.guard.leverage() == pytest.approx([0, 0, 0.5, 0.5])
    assert vault.once([a, negated(own, a), b, c], np.array([0, 0, 1, 1]))[0] is None
    assert vault.guard.refused == 0 and len(ledger.cancelled) == 2


def test_the_server_has_no_key_and_no_way_to_open():
    server = AdditiveServer(Plain().adder(), Ledger(1), 2)
    names = {name for name in dir(server) if not name.startswith("__")}
    assert not {name for name in names if "open" in name or "key" in name or "secret" in name}
    assert b"PlainKey" not in pickle.dumps(server)


def test_imputation_fills_missing_blocks_from_the_clients_centroid():
    metadata = Metadata(np.array([[[1.0, 1.0], [0.0, 0.0]]]), np.array([[5, 0]]))
    centroids = Centroids(np.array([[[9.0, 9.0], [2.0, 4.0]]]), np.ones((1, 2)))
    who = np.array([0])
    imputing = Cohort(metadata, Plain(), Ledger(1), missing="impute")
    (term,) = imputing.seal(imputing.terms(MStep(centroids), who, who, centroids))
    assert imputing.imputes
    assert Plain().client_key().open(term).tolist() == [1, 1, 2, 4, 1, 1, 1]
    counting = Cohort(metadata, Plain(), Ledger(1))
    (term,) = counting.seal(counting.terms(MStep(centroids), who, who, centroids))
    assert Plain().client_key().open(term).tolist() == [1, 1, 0, 0, 1, 0, 1]
    zeroing = Cohort(metadata, Plain(), Ledger(1), missing="zero")
    (term,) = zeroing.seal(zeroing.terms(MStep(centroids), who, who, centroids))
    assert Plain().client_key().open(term).tolist() == [1, 1, 0, 0, 1, 1, 1]


def test_the_ledger_counts_bytes_per_client_and_comes_back_from_its_state():
    ledger = Ledger(3)
    ledger.sent("metadata", np.array([0, 2]), 100)
    ledger.sent("model", np.array([2]), 7)
    ledger.received("model", np.array([1]), 9)
    with ledger.clock("server", "clustering"):
        pass
    with ledger.clock("client", "clustering"):
        pass
    assert ledger.per_client("up").tolist() == [100, 0, 107]
    assert ledger.summary()["up"] == {"metadata": 200, "model": 7}
    assert set(ledger.summary()["server_seconds"]) == {"clustering"}
    assert ledger.seconds_by_part()["clustering"] == pytest.approx(sum(ledger.seconds.values()))
    again = Ledger(3)
    again.restore(ledger.state())
    assert again.summary() == ledger.summary()


def test_an_empty_ledger_counts_nothing():
    assert Ledger(2).per_client("up").tolist() == [0, 0]


def test_of_nested_clocks_only_the_outermost_counts():
    ledger = Ledger(1)
    with ledger.clock("client", "evaluation"), ledger.clock("client", "clustering"):
        pass
    assert set(ledger.seconds) == {"client/evaluation"}
    with ledger.clock("client", "clustering"):
        pass
    assert set(ledger.seconds) == {"client/evaluation", "client/clustering"}
