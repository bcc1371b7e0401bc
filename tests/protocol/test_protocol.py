import pickle

import numpy as np
import pytest

from flameche.crypto.plain import Plain
from flameche.em.spherical import Centroids
from flameche.metadata.extractors import Metadata
from flameche.protocol.client import Cohort, wire_size
from flameche.protocol.ledger import Ledger
from flameche.protocol.phases import MStep, Spread, UnitMeans
from flameche.protocol.server import AdditiveServer
from tests.conftest import planted_metadata


def blank(metadata, clusters):
    return Centroids(
        np.zeros((clusters, *metadata.phi.shape[1:])), np.zeros((clusters, metadata.phi.shape[1]))
    )


def exchange(cohort, server, phase, clients, assignment, clusters, centroids):
    terms = cohort.contribute(phase, clients, assignment, centroids)
    return cohort.absorb(phase, server.sums(terms, assignment, clusters))


def test_contribute_add_absorb_gives_the_cluster_means():
    metadata, group = planted_metadata()
    ledger = Ledger(40)
    cohort, server = Cohort(metadata, Plain(), ledger), AdditiveServer(Plain().adder(), ledger)
    start = blank(metadata, 4)
    found = exchange(cohort, server, MStep(start), np.arange(40), group, 4, start)
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
    ledger = Ledger(40)
    cohort, server = Cohort(metadata, Plain(), ledger), AdditiveServer(Plain().adder(), ledger)
    start, every = blank(metadata, 4), np.arange(40)
    means = exchange(cohort, server, UnitMeans(start), every, group, 4, start)
    dbi, ch = exchange(cohort, server, Spread(means), every, group, 4, start)
    from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score

    flat = metadata.phi.reshape(40, -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    assert dbi == pytest.approx(davies_bouldin_score(flat, group), rel=1e-4)
    assert ch == pytest.approx(calinski_harabasz_score(flat, group), rel=1e-4)


def test_stored_terms_are_replaced_not_added_twice():
    metadata, _ = planted_metadata(clients=4)
    ledger = Ledger(4)
    cohort, server = Cohort(metadata, Plain(), ledger), AdditiveServer(Plain().adder(), ledger)
    clients, together, start = np.arange(4), np.zeros(4, np.int64), blank(metadata, 1)
    for _ in range(2):
        server.store(clients, cohort.contribute(MStep(start), clients, together, start))
    (total,) = server.sums_of_stored(clients, together, 1)
    assert total.terms == 4


def test_a_group_of_nobody_has_no_sum():
    metadata, _ = planted_metadata(clients=4)
    cohort, server = Cohort(metadata, Plain(), Ledger(4)), AdditiveServer(Plain().adder(), Ledger(4))
    start = blank(metadata, 3)
    terms = cohort.contribute(MStep(start), np.arange(4), np.array([0, 0, 2, 2]), start)
    totals = server.sums(terms, np.array([0, 0, 2, 2]), 3)
    assert totals[1] is None
    assert wire_size(totals) == sum(len(t.to_bytes()) for t in totals if t is not None)


def test_a_servers_state_brings_its_terms_back():
    metadata, group = planted_metadata(clients=8, groups=2)
    cohort = Cohort(metadata, Plain(), Ledger(8))
    start, every = blank(metadata, 2), np.arange(8)
    server, again = (AdditiveServer(Plain().adder(), Ledger(8)) for _ in range(2))
    server.store(every, cohort.contribute(MStep(start), every, group, start))
    again.restore(server.state())
    first, second = (s.sums_of_stored(every, group, 2) for s in (server, again))
    assert [t.to_bytes() for t in first] == [t.to_bytes() for t in second]
    assert again.holds(np.array([0, 7])).all()


def test_the_server_has_no_key_and_no_way_to_open():
    server = AdditiveServer(Plain().adder(), Ledger(1))
    names = {name for name in dir(server) if not name.startswith("__")}
    assert not {name for name in names if "open" in name or "key" in name or "secret" in name}
    assert b"PlainKey" not in pickle.dumps(server)


def test_imputation_fills_missing_blocks_from_the_clients_centroid():
    metadata = Metadata(np.array([[[1.0, 1.0], [0.0, 0.0]]]), np.array([[5, 0]]))
    centroids = Centroids(np.array([[[9.0, 9.0], [2.0, 4.0]]]), np.ones((1, 2)))
    who = np.array([0])
    imputing = Cohort(metadata, Plain(), Ledger(1), missing="impute")
    (term,) = imputing.contribute(MStep(centroids), who, who, centroids)
    assert imputing.imputes
    assert Plain().client_key().open(term).tolist() == [1, 1, 2, 4, 1, 1, 1]
    counting = Cohort(metadata, Plain(), Ledger(1))
    (term,) = counting.contribute(MStep(centroids), who, who, centroids)
    assert Plain().client_key().open(term).tolist() == [1, 1, 0, 0, 1, 0, 1]
    zeroing = Cohort(metadata, Plain(), Ledger(1), missing="zero")
    (term,) = zeroing.contribute(MStep(centroids), who, who, centroids)
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
