"""The M-step's sums, stored and masked, and the clustering that comes of them."""

import io
import itertools
import json
import pickle
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import tenseal as ts
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.paillier import Paillier
from flameche.crypto.plain import Plain
from flameche.crypto.registry import make_scheme
from flameche.crypto.secagg.driver import Costs
from flameche.em.spherical import Centroids
from flameche.errors import OverflowBudget
from flameche.metadata.extractors import Metadata
from flameche.methods.flameche import Flameche
from flameche.privacy.guard import Guard
from flameche.protocol.client import Cohort
from flameche.protocol.hidden import HiddenSums
from flameche.protocol.ledger import Ledger
from flameche.protocol.masked import MaskedSums
from flameche.protocol.phases import MStep, UnitMeans
from flameche.protocol.server import AdditiveServer
from flameche.protocol.sums import StoredSums, stacked
from tests.conftest import clustering_world, planted_metadata

BOUND = 4.0
KINDS = ["plain", "bfv", "ckks", "ckks-paper", "paillier"]
laws = settings(max_examples=40, deadline=None, derandomize=True)


@cache
def scheme(kind, clients=12):
    if kind == "secagg":
        return SecAgg(exact_codec(BOUND, clients)[0])
    if kind != "paillier":
        return make_scheme(kind, clients=clients, bound=BOUND)
    bits = exact_codec(BOUND, clients)[0].fraction_bits
    return Paillier.generate(
        max_terms=clients, bound=BOUND, fraction_bits=bits, key_bits=512, insecure_for_tests=True
    )


@cache
def planted(clients=12, groups=3):
    return planted_metadata(clients=clients, groups=groups, noise=0.3)


def blank(clusters=3, blocks=5, features=6):
    return Centroids(np.zeros((clusters, blocks, features)), np.zeros((clusters, blocks)))


def sums(kind, *, least=1, clusters=3, over="seen", metadata=None, ledger=None):
    metadata = metadata or planted()[0]
    ledger = ledger or Ledger(len(metadata))
    own = scheme(kind, len(metadata))
    cohort = Cohort(metadata, own, ledger)
    if kind == "secagg":
        return MaskedSums(cohort, own, clusters, least, ledger, over)
    return StoredSums(cohort, own, clusters, least, ledger)


def offer(way, clients, assignment):
    way.offer(clients, assignment, np.zeros(len(clients)), blank())


def encoded_terms(clients=12):
    """Each client's term, as the integers that the exact schemes add."""
    metadata, _ = planted(clients)
    terms = Cohort(metadata, Plain(), Ledger(clients)).terms(
        MStep(blank()), np.arange(clients), np.zeros(clients, np.int64), blank()
    )
    return np.stack([scheme("secagg", clients).codec.encode(term) for term in terms])


def expected(members, clients=12):
    """The sum over these members, exactly."""
    return scheme("secagg", clients).codec.decode(encoded_terms(clients)[members].sum(axis=0))


def in_the_clear(vectors, **_):
    """A session's result without its cryptography, which has tests of its own."""
    costs = np.zeros(len(vectors), np.int64)
    return vectors.sum(axis=0), list(range(len(vectors))), Costs(costs, costs, 0.0, 0.0)


def same(found, wanted):
    return len(found) == len(wanted) and all(
        (a is None) == (b is None) and (a is None or np.array_equal(a, b))
        for a, b in zip(found, wanted, strict=True)
    )


def moves(seed, count, clients=12, clusters=3, at_least=2):
    """Rounds of random participants who choose clusters at random, and where all seen are then."""
    rng, home = np.random.default_rng(seed), np.full(clients, -1)
    for _ in range(count):
        who = np.sort(rng.choice(clients, rng.integers(at_least, clients + 1), replace=False))
        home[who] = rng.integers(0, clusters, len(who))
        seen = np.flatnonzero(home != -1)
        yield who, home[who].copy(), seen, home[seen].copy()


# Laws: what is summed


@laws
@given(st.integers(0, 10**6))
def test_masked_running_sums_are_those_over_all_seen_whatever_moved(seed):
    masked = sums("secagg")
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        for who, k, seen, homes in moves(seed, 8):
            offer(masked, who, k)
            wanted = [expected(seen[homes == j]) if (homes == j).any() else None for j in range(3)]
            assert same(masked.totals(seen, homes), wanted)


@pytest.mark.parametrize("kind", ["bfv", "paillier"])
def test_bfv_paillier_and_secure_aggregation_give_identical_sums_whatever_moved(kind):
    stored, masked = sums(kind), sums("secagg")
    assert scheme("bfv").codec == scheme("paillier").public.codec == scheme("secagg").codec
    for who, k, seen, homes in moves(1, 6):
        for way in (stored, masked):
            offer(way, who, k)
        assert same(stored.totals(seen, homes), masked.totals(seen, homes))


@pytest.mark.parametrize(
    ("kind", "error"),
    [("plain", 2**-24), ("bfv", None), ("ckks", 2**-30), ("ckks-paper", 2**-35), ("paillier", None)],
)
def test_stored_sums_are_those_over_the_members_whatever_moved(kind, error):
    stored, metadata = sums(kind), planted()[0]
    for who, k, seen, homes in moves(2, 4 if kind == "ckks-paper" else 10):
        offer(stored, who, k)
        totals = stored.totals(seen, homes)
        for j in range(3):
            mine = seen[homes == j]
            if len(mine) == 0:
                assert totals[j] is None
            elif error is None:
                assert np.array_equal(totals[j], expected(mine))
            else:
                # every term that ever was in the sum leaves its share of the error
                assert (
                    np.abs(totals[j][:30] - metadata.phi[mine].sum(axis=0).ravel()).max()
                    <= 12 * BOUND * error
                )


@laws
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_sums_over_participants_are_those_of_each_cluster_where_the_guard_permits(seed, least):
    masked = sums("secagg", least=least, over="participants")
    guard = Guard(12, least)
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        for who, k, *_ in moves(seed, 4, at_least=1):
            offer(masked, who, k)
            permits = [guard.admit(who[k == j]) for j in range(3)]
            enough = [permits[j] and (k == j).sum() >= max(2, least) for j in range(3)]
            wanted = [expected(who[k == j]) if enough[j] else None for j in range(3)]
            assert same(masked.totals(who, k), wanted)


def test_sums_over_participants_of_all_exact_schemes_are_identical():
    who, k = np.array([0, 2, 3, 5, 8, 9, 11]), np.array([0, 0, 1, 1, 1, 2, 2])
    found = {}
    for kind in ("bfv", "paillier", "secagg"):
        way = sums(kind, least=2, over="participants")
        offer(way, who, k)
        found[kind] = way.totals(who, k)
    wanted = [expected(who[k == j]) for j in range(3)]
    assert all(same(totals, wanted) for totals in found.values())


@pytest.mark.parametrize("kind", ["bfv", "paillier", "secagg"])
def test_a_single_phase_is_absorbed_alike_by_every_exact_scheme(kind):
    group = planted()[1]
    found, plain = (
        sums(name, least=2).once(UnitMeans(blank()), np.arange(12), group, blank())
        for name in (kind, "plain")
    )
    allowed = scheme("secagg").codec.tolerance + BOUND * 2.0**-24  # means: one term's error
    assert np.abs(found.theta - plain.theta).max() <= allowed
    assert np.array_equal(found.mass, plain.mass)


# Laws: what is held back


@laws
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_no_block_is_ever_changed_by_fewer_than_the_least(seed, least):
    masked, sessions = sums("secagg", least=least), []

    def watched(vectors, **how):
        sessions.append(vectors.reshape(len(vectors), 3, -1))
        return in_the_clear(vectors, **how)

    with patch("flameche.protocol.masked.aggregate", watched):
        for who, k, seen, homes in moves(seed, 10, at_least=1):
            offer(masked, who, k)
            for total in masked.totals(seen, homes):
                assert total is None or round(total[-1]) >= least  # the ones count the members
    for blocks in sessions:
        changed = (blocks != 0).any(axis=2).sum(axis=0)
        assert changed.any() and ((changed == 0) | (changed >= min(least, 3))).all()  # no client, and no pair


@laws
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_what_was_held_back_still_moves_once_enough_move(seed, least):
    masked, everybody = sums("secagg", least=least), np.arange(12)
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        offer(masked, everybody, everybody // 4)
        for who, k, *_ in moves(seed, 5):
            offer(masked, who, k)
        part = masked.state()["part"]
        assert ((part > 0).sum(axis=1) == 1).all()  # moves are whole: each client is in one sum
        k = (part.argmax(axis=1) + 1) % 3
        offer(masked, everybody, k)
        wanted = [expected(everybody[k == j]) if (k == j).any() else None for j in range(3)]
        assert same(masked.totals(everybody, k), wanted)


def test_a_masked_move_is_made_whole_or_not_at_all():
    masked, everybody = sums("secagg", least=3), np.arange(12)
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        offer(masked, everybody[:11], np.array([0] * 6 + [1] * 5))
        before = masked.totals(everybody, everybody)
        # three go from 0 to 1, a fourth is new in 1: the difference of all together would be the fourth
        offer(masked, everybody, np.array([1] * 3 + [0] * 3 + [1] * 6))
        after = masked.totals(everybody, everybody)
        assert not masked.state()["part"][11].any()
        assert same(after, before)
        offer(masked, everybody[:11], np.array([1] * 3 + [0] * 3 + [1] * 5))  # without the fourth
        assert same(
            masked.totals(everybody, everybody), [expected(np.arange(3, 6)), expected(np.r_[0:3, 6:11]), None]
        )


def test_a_session_of_participants_that_one_has_left_is_held_back():
    masked = sums("secagg", least=3, over="participants")
    for who, shown in ((range(4), True), (range(3), False), (range(4), True), (range(1, 8), True)):
        who = np.array(who)
        offer(masked, who, np.zeros(len(who), np.int64))
        wanted = expected(who) if shown else None
        assert same(masked.totals(who, np.zeros(len(who), np.int64)), [wanted, None, None])


@pytest.mark.parametrize("over", ["seen", "participants"])
def test_offers_of_nobody_are_accepted(over):
    masked, nobody = sums("secagg", least=3, over=over), np.zeros(0, np.int64)
    offer(masked, nobody, nobody)
    assert masked.totals(nobody, nobody) == [None] * 3
    stored = sums("bfv", least=3)
    offer(stored, nobody, nobody)
    assert stored.totals(nobody, nobody) == [None] * 3


def test_a_masked_change_by_one_client_waits_for_others():
    masked, everybody = sums("secagg", least=3), np.arange(12)
    k = everybody // 4
    offer(masked, everybody, k)
    first = masked.totals(everybody, k)
    assert same(first, [expected(everybody[k == j]) for j in range(3)])
    k = k.copy()
    k[0] = 1
    offer(masked, everybody, k)
    assert same(masked.totals(everybody, k), first)  # client 0 would be the difference
    k[[1, 2]] = 2
    offer(masked, everybody, k)
    # cluster 0 would be left with client 3 alone, cluster 1 gains one and cluster 2 two: nothing moves
    assert same(masked.totals(everybody, k), first)
    k[3] = 1
    k[[1, 2]] = 1
    offer(masked, everybody, k)
    assert same(masked.totals(everybody, k), [None, expected(np.arange(8)), first[2]])


def test_a_stored_change_by_one_client_is_held_back_until_three_have_moved():
    for kind in ("bfv", "paillier"):
        stored, everybody = sums(kind, least=3), np.arange(12)
        k = np.repeat([0, 1], 6)
        offer(stored, everybody, k)
        assert same(stored.totals(everybody, k), [expected(everybody[:6]), expected(everybody[6:]), None])
        released = stored.broadcast_bytes
        assert released > 0
        for moved in (1, 2):
            k = np.where(everybody < moved, 1, np.repeat([0, 1], 6))
            assert stored.totals(everybody, k) == [None, None, None]
            assert stored.broadcast_bytes == released  # who was away still needs the last released sums
        k = np.where(everybody < 3, 1, np.repeat([0, 1], 6))
        assert same(stored.totals(everybody, k), [expected(everybody[3:6]), expected(np.r_[0:3, 6:12]), None])


def test_a_phase_is_not_opened_for_clusters_below_the_least():
    k = np.array([0] * 9 + [1] * 2 + [2])
    for kind in ("plain", "bfv", "secagg"):
        found = sums(kind, least=3).once(UnitMeans(blank()), np.arange(12), k, blank())
        assert found.mass[:, 0].tolist() == [9, 0, 0]
        assert not found.theta[1:].any()


@pytest.mark.parametrize("kind", ["plain", "bfv", "secagg"])
def test_a_phase_in_which_all_clusters_are_below_the_least_shows_nothing(kind):
    found = sums(kind, least=3).once(UnitMeans(blank()), np.arange(6), np.arange(6) % 3, blank())
    assert not found.mass.any() and not found.theta.any()


def test_a_client_alone_masks_nothing_and_sends_nothing():
    for over in ("seen", "participants"):
        ledger = Ledger(12)
        masked = sums("secagg", over=over, ledger=ledger)
        offer(masked, np.array([4]), np.array([1]))
        assert masked.totals(np.array([4]), np.array([1])) == [None] * 3
        assert ledger.per_client("up").sum() == 0


# State


@pytest.mark.parametrize("kind", ["plain", "bfv", "paillier", "secagg"])
@pytest.mark.parametrize("least", [1, 3])
def test_a_restart_changes_no_sum(kind, least):
    going, history, released = sums(kind, least=least), list(moves(3, 8)), 0
    for who, k, seen, homes in history[:4]:
        offer(going, who, k)
        going.totals(seen, homes)
    again = sums(kind, least=least)
    again.restore({name: array.copy() for name, array in going.state().items()})
    for who, k, seen, homes in history[4:]:
        for way in (going, again):
            offer(way, who, k)
        first, second = going.totals(seen, homes), again.totals(seen, homes)
        assert same(first, second)
        assert going.broadcast_bytes == again.broadcast_bytes
        released += sum(total is not None for total in first)
    assert released > 0


def test_masked_state_survives_numpys_file_format():
    going, (who, k, seen, homes) = sums("secagg", least=2), next(moves(4, 1, at_least=8))
    offer(going, who, k)
    file = io.BytesIO()
    np.savez(file, **going.state())
    file.seek(0)
    again = sums("secagg", least=2)
    with np.load(file) as arrays:
        again.restore(dict(arrays))
    assert same(going.totals(seen, homes), again.totals(seen, homes))
    assert any(total is not None for total in going.totals(seen, homes))


def test_the_guards_memory_survives_a_restart():
    stored, everybody = sums("bfv", least=3), np.arange(12)
    offer(stored, everybody, np.zeros(12, np.int64))
    assert stored.totals(everybody[:6], np.zeros(6, np.int64))[0] is not None
    again = sums("bfv", least=3)
    again.restore(stored.state())
    assert again.totals(everybody[:7], np.zeros(7, np.int64))[0] is None
    assert again.totals(everybody[:9], np.zeros(9, np.int64))[0] is not None


# Costs, and who moves


def test_metadata_are_sealed_once_and_sealed_sums_are_what_is_broadcast():
    ledger = Ledger(12)
    stored, everybody, k = sums("bfv", ledger=ledger), np.arange(12), np.arange(12) % 3
    assert stored.broadcast_bytes == 0
    for _ in range(2):
        offer(stored, everybody, k)
    once = ledger.per_client("up").copy()
    assert (once > 50_000).all() and (once < 80_000).all()  # one ciphertext of degree 4096
    stored.totals(everybody, k)
    assert 3 * once.min() * 0.9 < stored.broadcast_bytes < 3 * once.max() * 1.3
    assert sums("plain").broadcast_bytes is None and sums("secagg").broadcast_bytes is None


def test_sessions_are_booked_to_their_participants_alone():
    ledger = Ledger(12)
    masked, who = sums("secagg", least=2, ledger=ledger), np.array([1, 4, 7])
    offer(masked, who, np.zeros(3, np.int64))
    for way in ("up", "down"):
        booked = ledger.per_client(way)
        assert (booked[who] > 0).all() and booked.sum() == booked[who].sum()
    before = ledger.per_client("up")
    offer(masked, who, np.zeros(3, np.int64))  # nothing changes
    assert np.array_equal(ledger.per_client("up"), before)


def test_stored_terms_move_without_their_clients_and_masked_ones_do_not():
    seen, participants = np.arange(8), np.array([2, 5])
    assert sums("bfv").movable(seen, participants) is seen
    assert sums("secagg").movable(seen, participants) is participants


@pytest.mark.parametrize("kind", ["bfv", "ckks", "paillier", "secagg"])
def test_metadata_beyond_the_bound_are_refused_before_anything_is_sent(kind):
    metadata = planted()[0]
    phi = metadata.phi.copy()
    phi[3, 2, 1] = -9.5
    ledger = Ledger(12)
    way = sums(kind, metadata=Metadata(phi, metadata.counts), ledger=ledger)
    with pytest.raises(OverflowBudget, match=r"magnitude 9\.5 exceeds the declared bound 4$"):
        offer(way, np.arange(12), np.zeros(12, np.int64))
    assert ledger.per_client("up").sum() == 0


def test_sums_are_stacked_with_zeros_where_there_is_none():
    assert stacked([None, np.array([1.0, 2.0]), None]).tolist() == [[0, 0], [1, 2], [0, 0]]
    assert stacked([None, None], 3).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_one_of_2100_clients_moves():
    own, clients = make_scheme("bfv", clients=2100, bound=BOUND), 2100
    server, key = AdditiveServer(own.adder(), Ledger(clients), 2), own.client_key()
    vectors = np.random.default_rng(0).uniform(-BOUND, BOUND, (3, 4))
    sealed, encoded = [key.seal(v) for v in vectors], np.stack([own.codec.encode(v) for v in vectors])
    everybody, k = np.arange(clients), np.zeros(clients, np.int64)
    server.store(everybody, [sealed[i % 3] for i in everybody])
    for moved in (0, 1, 2):
        k[:moved] = 1
        totals = server.sums_of_stored(everybody, k)
        for j in (0, 1):
            wanted = encoded[everybody[k == j] % 3].sum(axis=0)
            assert (totals[j] is None) == (not (k == j).any())
            assert totals[j] is None or np.array_equal(key.open(totals[j]), own.codec.decode(wanted))


# The server holds no secret


class Everything(pickle.Pickler):
    """Pickles ciphertexts too, as the bytes in which they are sent."""

    def reducer_override(self, thing):
        if isinstance(thing, ts.BFVVector | ts.CKKSVector):
            return bytes, (thing.serialize(),)
        return NotImplemented


def secrets_of(kind):
    """The secret in every form in which it could be written, and a file that holds it."""
    own = scheme(kind)
    if kind == "paillier":
        numbers = [int(own._private.p), int(own._private.q)]
        forms = [form for n in numbers for form in (n.to_bytes(32, "little"), n.to_bytes(32, "big"))]
        return forms + [f"{n:{base}}".encode() for n in numbers for base in "xd"], own.secret_bytes()
    secret = own._secret.context.serialize(
        save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    pieces = [secret[i : i + 24] for i in range(0, len(secret) - 24, 61)]
    return [piece for piece in pieces if piece not in own._secret.public], secret


@pytest.mark.parametrize("kind", ["bfv", "ckks", "paillier"])
def test_a_pickled_server_and_its_checkpoint_hold_no_secret(kind):
    own, everybody = scheme(kind), np.arange(12)
    server = AdditiveServer(own.adder(), Ledger(12), 3)
    key = own.client_key()
    server.store(everybody, [key.seal(np.full(4, i / 8)) for i in everybody])
    totals = server.sums_of_stored(everybody, everybody % 3)
    server.sums_of_stored(everybody[2:], everybody[2:] % 2)
    written = io.BytesIO()
    Everything(written).dump(server)
    held = [written.getvalue(), pickle.dumps(server.state()), *filter(None, totals)]
    assert len(held[0]) > 12 * len(key.seal(np.zeros(4))) * 0.9  # the terms are in it
    forms, file = secrets_of(kind)
    assert any(form in file for form in forms)  # the search can find
    assert not any(form in data for form in forms for data in held)


@pytest.mark.parametrize("kind", ["bfv", "paillier"])
def test_a_server_from_a_pickle_adds_and_has_no_way_to_open(kind):
    own = scheme(kind)
    server = pickle.loads(pickle.dumps(AdditiveServer(own.adder(), Ledger(3), 1)))
    key = own.client_key()
    server.store(np.arange(3), [key.seal(np.full(2, 1.5))] * 3)
    (total,) = server.sums_of_stored(np.arange(3), np.zeros(3, np.int64))
    assert key.open(total).tolist() == [4.5, 4.5]
    if kind == "bfv":
        assert not server._adder._context.has_secret_key()
        with pytest.raises(ValueError, match="secret"):
            server._adder.load(total).chunks[0].decrypt()
    assert not any(hasattr(server._adder, name) for name in ("open", "decrypt", "_private", "_secret"))


# Sealed clustering is plain clustering


def assignments(kind, *, min_cluster, rounds, participants=25, **options):
    """Assignments after every round and at last; the criteria; how often clients were redistributed."""
    metadata, group = planted_metadata(noise=0.3)
    world = clustering_world(metadata, group, rounds=rounds)
    world.scheme, world.min_cluster = scheme(kind, 40), min_cluster
    method, rng, history, redistributed = Flameche(world, **options), np.random.default_rng(5), [], 0
    for r in range(1, rounds + 1):
        redistributed += method.round(r, np.sort(rng.choice(40, participants, replace=False)))
        history.append(method.assignment.copy())
    outcome = method.finish()
    return np.stack([*history, outcome.assignment]), (outcome.dbi, outcome.ch), redistributed


@pytest.mark.parametrize(
    ("kind", "min_cluster", "m_step"),
    [
        *itertools.product(["bfv", "ckks", "paillier"], [1, 3], ["seen", "participants"]),
        *(("ckks-paper", 1, "seen"), ("ckks-paper", 3, "participants")),  # slow: each choice once
    ],
)
def test_encrypted_clustering_is_plain_clustering_in_every_round(kind, min_cluster, m_step):
    how = {"min_cluster": min_cluster, "m_step": m_step, "rounds": 8, "tau": 3, "clusters": 7}
    found, (dbi, ch), redistributed = assignments(kind, **how)
    plain, judged, plain_redistributed = assignments("plain", **how)
    assert np.array_equal(found, plain)
    assert redistributed == plain_redistributed and redistributed > 0
    assert len(np.unique(plain[-1])) > 1 and (plain[0] != plain[-1]).any()
    assert (dbi, ch) == pytest.approx(judged, rel=1e-4)


@pytest.mark.parametrize(
    ("m_step", "tau", "participants", "clusters"),
    [("seen", 0, 25, 4), ("participants", 0, 25, 4), ("seen", 2, 40, 7)],  # only who is there can be moved
)
def test_masked_clustering_is_plain_clustering_in_every_round(m_step, tau, participants, clusters):
    how = {"m_step": m_step, "tau": tau, "participants": participants, "clusters": clusters}
    found, (dbi, ch), redistributed = assignments("secagg", min_cluster=1, rounds=6, **how)
    plain, judged, plain_redistributed = assignments("plain", min_cluster=1, rounds=6, **how)
    assert np.array_equal(found, plain)
    assert redistributed == plain_redistributed and (redistributed > 0) == (tau > 0)
    assert len(np.unique(plain[-1])) > 1 and (plain[0] != plain[-1]).any()
    if 1 not in np.bincount(plain[-1]):  # a client alone cannot mask what it says of its cluster
        assert (dbi, ch) == pytest.approx(judged, rel=1e-4)


# Counts of sums that were held back


@pytest.mark.parametrize(
    ("kind", "over", "held"),
    [("plain", "seen", 2), ("secagg", "participants", 2), ("secagg", "seen", 3), ("hidden", "seen", 1)],
)
def test_sums_that_were_wanted_and_held_back_are_counted(kind, over, held):
    """Two sums are wanted twice: first one of two clients, then client 4 leaves five.

    Stored: {5, 6} and {0, 1, 2, 3} wait. Masked changes: so does the second {4, 5, 6}, as 4 cannot move.
    Hidden blocks are only counted.
    """
    ledger, who = Ledger(12), np.arange(7)
    if kind == "hidden":
        way = HiddenSums(Cohort(planted()[0], scheme("bfv"), ledger), scheme("bfv"), 3, 3, ledger)
    else:
        way = sums(kind, least=3, over=over, ledger=ledger)
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        for k in ([0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]):
            offer(way, who, np.array(k))
            way.totals(who, np.array(k))
    assert (ledger.asked, ledger.held_back) == ({"metadata": 4}, {"metadata": held})


def test_a_session_of_too_few_is_held_back_and_counted():
    ledger = Ledger(12)
    way = sums("secagg", least=3, ledger=ledger)
    offer(way, np.array([0, 1]), np.array([0, 0]))
    assert (ledger.asked, ledger.held_back) == ({"metadata": 1}, {"metadata": 1})


def test_one_alone_under_masks_is_counted_even_without_a_least():
    ledger = Ledger(12)
    way = sums("secagg", over="participants", ledger=ledger)
    offer(way, np.array([0, 1, 2]), np.array([0, 0, 1]))
    assert (ledger.asked, ledger.held_back) == ({"metadata": 2}, {"metadata": 1})


def test_counts_of_sums_survive_a_checkpoint_and_are_not_taken_while_muted():
    ledger, again = Ledger(3), Ledger(3)
    ledger.summed("metadata", np.array([True, True, False]), np.array([True, False, False]))
    with ledger.muted():
        ledger.summed("metadata", np.array([True]), np.array([False]))
    again.restore(json.loads(json.dumps(ledger.state())))
    assert again.asked == ledger.asked == {"metadata": 2}
    assert again.held_back == ledger.held_back == {"metadata": 1}
