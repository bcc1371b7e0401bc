"""Paper mode with clients that drift, leave and come back, under every kind of sums."""

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
from flameche.em.spherical import statistics
from flameche.errors import BadInput
from flameche.metadata.extractors import Metadata
from flameche.methods.base import UNSEEN
from flameche.methods.flameche import Flameche
from flameche.simulation.engine import Checkpoint, _checkpoint, _restore
from tests.conftest import clustering_world, planted_metadata
from tests.methods.worlds import in_the_clear, partition

CLIENTS = 40
BOUND = 4.0
everybody = np.arange(CLIENTS)
# How sums are formed: scheme, options of the method.
WAYS = {
    "plain": ("plain", {"tau": 0}),
    "bfv": ("bfv", {"tau": 0}),
    "paillier": ("paillier", {"tau": 0}),
    "secagg": ("secagg", {"tau": 0}),
    "hidden": ("bfv", {"tau": 0, "hide_assignments": True}),
}
every_way = pytest.mark.parametrize("way", WAYS)


@cache
def scheme(kind):
    if kind == "secagg":
        return SecAgg(exact_codec(BOUND, CLIENTS)[0])
    if kind == "paillier":
        bits = exact_codec(BOUND, CLIENTS)[0].fraction_bits
        return Paillier.generate(
            max_terms=CLIENTS, bound=BOUND, fraction_bits=bits, key_bits=512, insecure_for_tests=True
        )
    return Plain() if kind == "plain" else make_scheme(kind, clients=CLIENTS, bound=BOUND)


def made(way="plain", *, least=1, rounds=100, metadata=None, **options):
    kind, own = WAYS[way]
    planted, group = planted_metadata(CLIENTS, noise=0.15)
    world = clustering_world(metadata or planted, group, rounds=rounds)
    world.scheme, world.min_cluster = scheme(kind), least
    return Flameche(world, **{**own, **options})


@pytest.fixture(autouse=True)
def _quick_sessions():
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        yield


def other_group(clients, by=1):
    """Metadata as those of clients ten times `by` further on: of the next groups."""
    metadata, _ = planted_metadata(CLIENTS, noise=0.15)
    return metadata.of((clients + 10 * by) % CLIENTS)


def settled(way="plain", rounds=6, **how):
    method = made(way, **how)
    for r in range(1, rounds + 1):
        method.round(r, everybody)
    return method


def totals(method):
    seen = method.seen
    return method.sums.totals(seen, method.assignment[seen])


def expected(method, way):
    """The sums over who is there, from what clients hold, in the scheme's own numbers."""
    terms = statistics(method.cohort.phi, method.cohort.weight)
    kind = WAYS[way][0]
    if kind == "plain":
        terms = terms.astype(np.float32).astype(np.float64)
    else:
        codec = scheme("secagg").codec
        terms = np.stack([codec.decode(codec.encode(term)) for term in terms])
    return [terms[method.assignment == k].sum(axis=0) for k in range(len(method.centroids))]


def equal(found, wanted, way):
    for a, b in zip(found, wanted, strict=True):
        assert (a is None and not b.any()) or np.abs(a - b).max() <= (1e-12 if way.startswith("plain") else 0)


# Drift


@every_way
def test_after_a_drift_totals_are_those_of_a_federation_that_always_had_the_new_metadata(way):
    method, who = settled(way), np.array([0, 1, 12])
    method.drift(who, other_group(who))
    method.round(7, everybody)
    equal(totals(method), expected(method, way), way)
    metadata, _ = planted_metadata(CLIENTS, noise=0.15)
    always = made(way, metadata=metadata.with_rows(who, other_group(who)))
    always.sums.offer(everybody, method.assignment, method.error, method.centroids)
    always.assignment[:] = method.assignment
    for a, b in zip(totals(method), totals(always), strict=True):
        assert (a is None) == (b is None) and (a is None or np.allclose(a, b, rtol=0, atol=1e-12))


@every_way
def test_a_drifted_client_changes_cluster_in_the_next_round_it_takes_part_in_and_not_before(way):
    method, who = settled(way), np.array([0, 1, 12])
    before = method.assignment.copy()
    assert partition(before) == partition(method.world.group)
    method.drift(who, other_group(who))
    rest = np.setdiff1d(everybody, who)
    method.round(7, rest)
    assert np.array_equal(method.assignment, before)
    method.round(8, np.append(rest[:8], who))
    assert np.array_equal(method.assignment[who], before[who + 10])
    assert np.array_equal(method.assignment[rest], before[rest])


def test_who_has_the_same_metadata_says_nothing():
    method = settled(least=3)
    up, deferred = method.world.ledger.per_client("up").copy(), method.sums._guard.refused
    metadata, _ = planted_metadata(CLIENTS, noise=0.15)
    method.drift(everybody[:5], metadata.of(everybody[:5]))
    assert not method.drifted.any()
    method.round(7, everybody)
    sent = method.world.ledger.per_client("up") - up
    assert len(set(sent.tolist())) == 1 and method.sums._guard.refused == deferred


def a_little(client):
    """Metadata a little other than they are: no reason to change cluster."""
    metadata, _ = planted_metadata(CLIENTS, noise=0.15)
    own = metadata.of(np.array([client]))
    return Metadata(own.phi + 0.01 * np.random.default_rng(client).random(own.phi.shape), own.counts)


@pytest.mark.parametrize("way", ["plain", "bfv", "secagg"])
def test_the_guard_holds_a_lone_drift_back_and_lets_three_go(way):
    method = settled(way, least=3)
    k, theta = method.assignment[0], method.centroids.theta.copy()
    for n in range(3):
        method.drift(np.array([n]), a_little(n))
        method.round(7 + n, everybody)
        assert method.assignment[n] == k
        assert np.array_equal(method.centroids.theta, theta) == (n < 2)
    members = np.flatnonzero(method.assignment == k)
    assert np.allclose(method.centroids.theta[k], method.cohort.phi[members].mean(axis=0), atol=1e-6)


def test_whole_groups_that_change_places_are_found_again():
    method, who = settled(), np.arange(10)
    swapped = np.concatenate([who, who + 10])
    metadata, _ = planted_metadata(CLIENTS, noise=0.15)
    method.drift(swapped, metadata.of(np.concatenate([who + 10, who])))
    for r in range(7, 12):
        method.round(r, everybody)
    assert partition(method.assignment) == partition(method.world.group)


# Leaving and coming back


@every_way
def test_after_leaving_totals_are_those_of_a_federation_that_never_had_them(way):
    method, gone = settled(way), np.array([3, 14, 15, 38])
    rest = np.setdiff1d(everybody, gone)
    method.leave(gone)
    assert (method.assignment[gone] == UNSEEN).all() and not np.isin(gone, method.seen).any()
    method.round(7, rest)
    never = made(way)
    never.sums.offer(rest, method.assignment[rest], method.error[rest], method.centroids)
    never.assignment[rest] = method.assignment[rest]
    for a, b in zip(totals(method), totals(never), strict=True):
        assert (a is None) == (b is None) and (a is None or np.allclose(a, b, rtol=0, atol=1e-12))
    census = method.sums.census(method.seen, rest, method.assignment, method.error)
    assert census.seen.sum() == len(rest)


@every_way
def test_leaving_and_coming_back_is_never_having_left(way):
    method, stays, gone = settled(way), settled(way), np.array([3, 14, 15, 38])
    method.leave(gone)
    method.round(7, np.setdiff1d(everybody, gone))
    stays.round(7, np.setdiff1d(everybody, gone))
    method.join(gone)
    for r in (8, 9):
        method.round(r, everybody)
        stays.round(r, everybody)
    assert np.array_equal(method.assignment, stays.assignment)
    for a, b in zip(totals(method), totals(stays), strict=True):
        assert (a is None) == (b is None) and (a is None or np.allclose(a, b, rtol=0, atol=1e-12))
    assert np.allclose(method.centroids.theta, stays.centroids.theta, rtol=0, atol=1e-12)


def test_who_has_left_may_not_take_part_and_is_in_no_final_count():
    method = settled()
    method.leave(np.array([4]))
    with pytest.raises(BadInput, match="client 4 has left and takes part; let it join first"):
        method.round(7, everybody)
    outcome = method.finish()
    assert outcome.assignment[4] == UNSEEN and (outcome.assignment >= 0).sum() == 39
    assert outcome.keep["spread"][:, 0].sum() == 39
    assert method.serving()[4] >= 0  # it could still be served
    method.join(np.array([4]))
    method.round(7, everybody)
    assert method.assignment[4] == method.assignment[5]


def test_one_that_vanished_stays_in_masked_sums_and_in_no_others():
    for way, stays in (("secagg", True), ("plain", False), ("bfv", False)):
        method, rest = settled(way), everybody[1:]
        k = method.assignment[0]
        method.leave(np.array([0]), vanished=True)
        method.round(7, rest)
        assert round(float(totals(method)[k][-1])) == 10 - (not stays)


# Restarts


def through_a_file(checkpoint):
    file = io.BytesIO()
    np.savez(file, **checkpoint.arrays)
    file.seek(0)
    with np.load(file) as arrays:
        return Checkpoint(checkpoint.round, dict(arrays), checkpoint.ledger, 0.0)


@pytest.mark.parametrize("least", [1, 3])
@every_way
def test_a_restart_between_events_and_the_rounds_after_them_changes_nothing(way, least):
    method = settled(way, least=least)
    who, gone = np.array([0, 1, 2, 12, 13]), np.array([5, 15, 25, 35])
    method.drift(who, other_group(who))
    method.leave(gone)
    rest = np.setdiff1d(everybody, gone)
    method.round(7, rest[rest % 3 > 0])  # some of them said so, some did not
    again = made(way, least=least)
    _restore(again, again.world, through_a_file(_checkpoint(method, method.world, 7, 0.0)))
    assert np.array_equal(again.left, method.left) and np.array_equal(again.cohort.phi, method.cohort.phi)
    for each in (method, again):
        each.round(8, rest)
        each.join(gone[:2])
        each.round(9, np.append(rest, gone[:2]))
        each.drift(who[:2], other_group(who[:2], 2))
        each.round(10, rest)
    for name, value in method.state().items():
        if not name.startswith(("term/", "sum/", "sizes")):  # sealed anew, with other randomness
            assert np.array_equal(value, again.state()[name]), name
    assert np.array_equal(method.assignment, again.assignment)
    assert np.array_equal(method.centroids.theta, again.centroids.theta)
