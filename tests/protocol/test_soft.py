"""Sums for soft EM: what is added, what is held back, and that sealing changes nothing."""

import io
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.paillier import Paillier
from flameche.crypto.plain import Plain
from flameche.crypto.registry import make_scheme
from flameche.crypto.secagg.driver import Costs
from flameche.em import mixture
from flameche.em.families import make_family
from flameche.protocol.client import Cohort
from flameche.protocol.ledger import Ledger
from flameche.protocol.soft import DECAY, SMALL, Offer, soft_sums, told, too_few
from tests.conftest import planted_metadata

BOUND, N, K = 4.0, 12, 3
METADATA, GROUP = planted_metadata(clients=N, groups=K, noise=1.5)
FAMILY = make_family("vmf", 5, 6)
OWN = FAMILY.prepare(METADATA.phi, METADATA.counts)
STATISTICS = FAMILY.statistics(OWN)
COUNTED = np.column_stack([STATISTICS, np.ones(N)])
ROUNDS = [np.array(who) for who in ([0, 4, 8, 1, 5, 9], [2, 6, 10, 3, 0], [7, 11, 1, 9], [0, 4, 8, 2, 3])]
TOLERANCE = {
    "plain": 2**-23,
    "bfv": None,
    "paillier": None,
    "secagg": None,
    "ckks": 2**-28,
    "ckks-paper": 2**-35,
}


@cache
def scheme(kind):
    if kind == "secagg":
        return SecAgg(exact_codec(BOUND, N)[0])
    if kind != "paillier":
        return Plain() if kind == "plain" else make_scheme(kind, clients=N, bound=BOUND)
    bits = exact_codec(BOUND, N)[0].fraction_bits
    return Paillier.generate(
        max_terms=N, bound=BOUND, fraction_bits=bits, key_bits=512, insecure_for_tests=True
    )


def error(kind):
    """What sealing may change in a sum of N terms."""
    return N * (TOLERANCE.get(kind) or scheme("secagg").codec.tolerance)


def sums(kind="plain", least=1, components=K, ledger=None):
    ledger = ledger or Ledger(N)
    cohort = Cohort(METADATA, scheme(kind), ledger, scaled=True)
    return soft_sums(cohort, scheme(kind), (components, FAMILY.size + 1), least, ledger)


def offer(clients, resp, likelihood=None):
    clients = np.asarray(clients)
    return Offer(clients, np.asarray(resp, float), STATISTICS[clients], likelihood, FAMILY.scale)


def drawn(seed, clients, components=K):
    return told(np.random.default_rng(seed).dirichlet(np.ones(components), len(clients)))


def expected(resp):
    """The totals over all clients by the responsibilities that each gave last [N K]."""
    return resp.T @ COUNTED


def in_the_clear(vectors, **_):
    """A session's result without its cryptography, which has tests of its own."""
    costs = np.zeros(len(vectors), np.int64)
    return vectors.sum(axis=0), list(range(len(vectors))), Costs(costs, costs, 0.0, 0.0)


# What is added


@pytest.mark.parametrize("kind", ["plain", "bfv", "ckks", "ckks-paper", "paillier"])
def test_totals_are_those_of_everybodys_latest_responsibilities(kind):
    way, resp = sums(kind), np.zeros((N, K))
    for r, clients in enumerate(ROUNDS):
        resp[clients] = drawn(r, clients)
        assert way.exchange(offer(clients, resp[clients]))
        assert np.abs(way.totals - expected(resp)).max() < error(kind)


@pytest.mark.parametrize("masks", [True, False])
def test_masked_totals_are_the_rounds_sums_with_earlier_ones_decayed(masks):
    way, wanted = sums("secagg"), np.zeros((K, FAMILY.size + 1))
    for r, clients in enumerate(ROUNDS):
        resp = drawn(r, clients)
        if masks:
            assert way.exchange(offer(clients, resp))
        else:
            with patch("flameche.protocol.session.aggregate", in_the_clear):
                assert way.exchange(offer(clients, resp))
        wanted = DECAY * wanted + resp.T @ COUNTED[clients]
        assert np.abs(way.totals - wanted).max() < 2 * error("secagg")


@pytest.mark.parametrize("kind", ["bfv", "ckks", "paillier", "secagg"])
def test_soft_em_under_a_scheme_is_soft_em_in_the_clear(kind):
    sealed, clear = sums(kind), sums()
    resp = np.zeros((2, N, K))
    resp[:] = told(np.random.default_rng(2).dirichlet(np.ones(K), N))
    everybody = np.arange(N)
    for r in range(6):
        for at, way in enumerate((sealed, clear)):
            likelihood = None
            if r:
                soft, likelihood = mixture.e_step(FAMILY, OWN, way.totals)
                resp[at] = told(soft)
            way.totals = np.zeros_like(way.totals)  # full participation: nothing to be decayed
            assert way.exchange(offer(everybody, resp[at], likelihood))
        assert np.abs(resp[0] - resp[1]).max() < 1e-3
        assert np.abs(sealed.totals - clear.totals).max() < 1e-2
        if r:
            assert sealed.log_likelihood == pytest.approx(clear.log_likelihood, abs=0.1)
            assert clear.log_likelihood == pytest.approx(likelihood.mean(), rel=1e-6)
    assert np.sort(resp[1], axis=1)[:, -2].max() > 0.05  # and somebody was in between


def test_bfv_paillier_and_secure_aggregation_give_identical_sums():
    ways = [sums(kind) for kind in ("bfv", "paillier", "secagg")]
    for way in ways:
        way.exchange(offer(ROUNDS[0], drawn(0, ROUNDS[0]), np.linspace(-9, 9, 6)))
    for way in ways[1:]:
        assert np.array_equal(way.totals, ways[0].totals)
        assert way.log_likelihood == ways[0].log_likelihood


def test_the_likelihood_is_the_mean_over_those_who_have_one_cut_at_the_scale():
    way = sums()
    way.exchange(offer([0, 1], drawn(0, [0, 1])))
    assert np.isnan(way.log_likelihood)
    way.exchange(offer([2, 3], drawn(1, [2, 3]), np.array([-10.0, 40.0])))
    assert way.log_likelihood == pytest.approx(15)
    way.exchange(offer([3], drawn(1, [3]), np.array([-1e300])))
    assert way.log_likelihood == pytest.approx((-10 - FAMILY.scale) / 2)


def test_small_responsibilities_are_told_as_none():
    resp = told(np.array([[0.5, 0.5 - SMALL / 2, SMALL / 2], [1.0, 0, 0], [0.2, 0.3, 0.5]]))
    assert resp[0, 2] == 0 and np.allclose(resp.sum(axis=1), 1)
    assert resp[1].tolist() == [1, 0, 0] and np.allclose(resp[2], [0.2, 0.3, 0.5])


@pytest.mark.parametrize("kind", ["plain", "bfv"])
def test_nothing_is_opened_until_asked(kind):
    way, resp = sums(kind), np.zeros((N, K))
    for r, clients in enumerate(ROUNDS[:2]):
        resp[clients] = drawn(r, clients)
        assert not way.exchange(offer(clients, resp[clients]), opens=r > 5)
    assert not way.totals.any()
    resp[ROUNDS[2]] = drawn(2, ROUNDS[2])
    assert way.exchange(offer(ROUNDS[2], resp[ROUNDS[2]]))
    assert np.abs(way.totals - expected(resp)).max() < error(kind)


# Merging


@pytest.mark.parametrize("kind", ["plain", "bfv"])
def test_after_a_merger_old_terms_count_by_the_share_that_has_not_come_again(kind):
    label = np.array([0, 1, 0, 1])
    way, old = sums(kind, components=4), drawn(0, range(N), 4)
    way.exchange(offer(np.arange(N), old))
    way.merge(label, 2)
    merged = expected(old @ np.eye(2)[label])
    assert np.abs(way.totals - merged).max() < error(kind)
    resp = np.zeros((N, 2))
    for r, clients in enumerate(ROUNDS):
        resp[clients] = drawn(r + 1, clients, 2)
        way.exchange(offer(clients, resp[clients]))
        waiting = 1 - resp.any(axis=1).mean()
        assert np.abs(way.totals - (expected(resp) + waiting * merged)).max() < 2 * error(kind)
    assert waiting == 0  # and so the totals are exactly those of the latest terms
    assert np.abs(way.totals - expected(resp)).max() < error(kind)


def test_masked_totals_are_merged_as_they_are():
    way = sums("secagg", components=4)
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        way.exchange(offer(ROUNDS[0], drawn(0, ROUNDS[0], 4)))
        before = way.totals
        way.merge(np.array([1, 0, 0, 1]), 2)
        assert np.allclose(way.totals, [before[1] + before[2], before[0] + before[3]])
        resp = drawn(1, ROUNDS[1], 2)
        merged = way.totals
        way.exchange(offer(ROUNDS[1], resp))
    assert np.abs(way.totals - (DECAY * merged + resp.T @ COUNTED[ROUNDS[1]])).max() < error("secagg")


# The guard


def test_the_effective_number_of_clients_decides():
    resp = np.array([[1, 0.5, 0.0, 0.9], [1, 0.5, 0, 0.05], [1, 0.5, 0, 0.05]])
    counts = np.concatenate([resp.sum(axis=0), (resp**2).sum(axis=0)])
    assert too_few(counts, 3).tolist() == [False, False, False, True]  # nobody is not too few
    assert too_few(counts, 4).tolist() == [True, True, False, True]
    assert too_few(counts + 1e-7, 3).tolist() == [False, False, False, True]  # CKKS counts nearly right


def hot(*components):
    return np.eye(K)[list(components)]


@pytest.mark.parametrize("kind", ["plain", "bfv", "ckks"])
def test_a_component_of_too_few_stays_as_it_was_and_the_others_go_on(kind):
    way = sums(kind, least=3)
    given = hot(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    assert way.exchange(offer(np.arange(N), given))
    first = way.totals
    assert np.abs(first - expected(given)).max() < error(kind)
    # 4 and 5 leave component 1, which would have 2 clients left: they stay in its sum, and join the others'.
    assert way.exchange(offer([4, 5, 8], hot(0, 0, 2)))
    after = given.copy()
    after[[4, 5]] = [1, 1, 0]
    assert np.abs(way.totals - expected(after)).max() < error(kind)
    assert np.abs(way.totals[1] - first[1]).max() < error(kind)
    # With a third that comes, it has enough, and they leave.
    assert way.exchange(offer([4, 5, 8], hot(0, 0, 1)))
    after[[4, 5, 8]] = hot(0, 0, 1)
    assert np.abs(way.totals - expected(after)).max() < error(kind)


def test_whom_the_guard_kept_out_does_not_count_towards_enough_later():
    way = sums(least=3)
    way.exchange(offer(np.arange(6), hot(0, 0, 0, 1, 1, 1)))
    way.exchange(offer([6, 7, 0], hot(2, 2, 0)))  # two of component 2: kept out
    assert not way.totals[2].any()
    way.exchange(offer([8, 1, 2], hot(2, 0, 0)))  # a third: its block alone would be it
    assert not way.totals[2].any()
    way.exchange(offer([6, 7, 8], hot(2, 2, 2)))
    assert np.abs(way.totals[2] - COUNTED[6:9].sum(axis=0)).max() < error("plain")


def test_the_first_sum_waits_until_every_component_in_it_has_enough():
    way = sums(least=3)
    assert not way.exchange(offer(np.arange(5), hot(0, 0, 0, 1, 1)))
    assert not way.totals.any()
    assert way.exchange(offer([5, 6, 7], hot(1, 0, 0)))
    assert (
        np.abs(way.totals - expected(np.vstack([hot(0, 0, 0, 1, 1, 1, 0, 0), np.zeros((4, K))]))).max() < 1e-5
    )


@pytest.mark.parametrize("kind", ["plain", "secagg"])
def test_no_sum_over_too_few_is_opened_nor_after_a_round_of_too_few(kind):
    way = sums(kind, least=3)
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        assert not way.exchange(offer([0, 1], hot(0, 0)))
        assert way.exchange(offer([2, 3, 4], hot(0, 0, 0)))
        before = way.totals
        assert not way.exchange(offer([5, 6], hot(0, 0)))
    assert np.array_equal(way.totals, before)


def test_in_a_session_too_few_give_nothing_to_a_component():
    sent = []

    def watching(vectors, **given):
        sent.append(vectors)
        return in_the_clear(vectors)

    way = sums("secagg", least=3)
    with patch("flameche.protocol.session.aggregate", watching):
        way.exchange(offer(np.arange(7), hot(0, 0, 0, 1, 1, 0, 2)))
    counts, terms = sent
    assert counts.shape == (7, 2 * K)
    blocks = terms[:, :-2].reshape(7, K, -1)
    assert not blocks[:, 1:].any() and blocks[[0, 1, 2, 5], 0].any(axis=1).all()
    assert not way.totals[1:].any()


def test_one_alone_has_nobody_to_mask_with():
    assert not sums("secagg").exchange(offer([3], hot(0)))


# Who knows what, and what it costs


def test_the_server_keeps_one_sealed_vector_a_client_and_cannot_open_it():
    way = sums("bfv", least=3)
    for r, clients in enumerate([np.arange(N), *ROUNDS]):
        way.exchange(offer(clients, drawn(r, clients)))
    for server in (way._terms, way._counts):
        assert sorted(server._terms) == list(range(N)) and not server._adder._context.has_secret_key()
        with pytest.raises(ValueError, match="secret"):
            server._terms[0].chunks[0].decrypt()
    lengths = {len(scheme("paillier").client_key().seal(offer([0], r).terms(r)[0])) for r in (hot(1), hot(2))}
    assert len(lengths) == 1  # a vector looks the same wherever its client is


def test_bytes_are_those_of_the_sealed_vectors():
    ledger = Ledger(N)
    way = sums(least=3, ledger=ledger)
    way.exchange(offer(np.arange(N), hot(*np.arange(N) % K)))
    assert (ledger.up["metadata"] == 4 * (K * (FAMILY.size + 1) + 2) + 48).all()
    assert (ledger.up["exchange"] == 4 * 2 * K + 48).all()
    assert (ledger.down["exchange"] == 8 * 2 * K + 48).all()  # a sum is of 64 bits
    assert way.broadcast_bytes is None
    sealed = sums("bfv", components=4)
    sealed.exchange(offer(np.arange(N), drawn(0, range(N), 4)))
    whole = sealed.broadcast_bytes
    assert whole == len(sealed._terms._sums[0].to_bytes())
    sealed.merge(np.array([0, 1, 0, 1]), 2)
    sealed.exchange(offer([0, 1], drawn(0, [0, 1], 2)))  # who comes needs the old sum and the new
    assert sealed.broadcast_bytes == whole + len(sealed._terms._sums[0].to_bytes())


def test_the_ledger_counts_what_was_held_back():
    ledger = Ledger(N)
    way = sums(least=3, ledger=ledger)
    way.exchange(offer(np.arange(6), hot(0, 0, 0, 1, 1, 1)))
    assert (ledger.asked["metadata"], ledger.held_back["metadata"]) == (2, 0)
    way.exchange(offer([5, 6, 7], hot(0, 0, 0)))  # 5 may not leave component 1
    assert (ledger.asked["metadata"], ledger.held_back["metadata"]) == (4, 1)


@pytest.mark.parametrize("kind", ["plain", "bfv", "secagg"])
@pytest.mark.parametrize("least", [1, 3])
def test_a_restart_changes_nothing(kind, least):
    def resumed(way):
        file = io.BytesIO()
        np.savez(file, **way.state())
        file.seek(0)
        again = sums(kind, least, components=way.totals.shape[0])
        with np.load(file) as arrays:
            again.restore({key: arrays[key] for key in arrays.files})
        return again

    whole = stopped = sums(kind, least, components=4)
    stopped = resumed(whole)
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        for r, clients in enumerate([np.arange(N), *ROUNDS, *ROUNDS]):
            if r == 3:
                for way in (whole, stopped):
                    way.merge(np.array([0, 1, 1, 0]), 2)
            likelihood = np.linspace(-5, 9, len(clients))
            resp = drawn(r, clients, len(whole.totals))
            if least > 1 and r:  # and so few in each that some are held back
                resp = np.eye(len(whole.totals))[resp.argmax(axis=1)]
            for way in (whole, stopped):
                way.exchange(offer(clients, resp, likelihood))
            assert np.array_equal(stopped.totals, whole.totals)
            assert stopped.log_likelihood == whole.log_likelihood
            assert (stopped.broadcast_bytes is None) == (whole.broadcast_bytes is None)
            stopped = resumed(stopped)
    assert whole.totals.any() and (whole._ledger.held_back["metadata"] > 0) == (least > 1)
