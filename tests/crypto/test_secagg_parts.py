import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.crypto.codec import FixedPoint
from flameche.crypto.secagg import Session, graph, masks, shamir
from flameche.crypto.secagg.messages import HEADER, Kind, pack, pack_table, unpack, unpack_table
from flameche.errors import BadInput, OverflowBudget, SealError

SESSION = Session.open(6, 3, label="round 7 / cluster 2")


# Shamir


def test_a_worked_example_of_sharing():
    # f(x) = 2x² + 3x + 7 through (1, 12), (2, 21), (3, 34), with weights 3, -3, 1 at 0: 36 - 63 + 34 = 7.
    assert [shamir.evaluate([2, 3, 7], x) for x in (1, 2, 3)] == [12, 21, 34]
    assert shamir.weights([1, 2, 3]) == [3, shamir.P - 3, 1]
    shares = [value.to_bytes(33, "big") for value in (12, 21, 34)]
    assert shamir.combine(shamir.weights([1, 2, 3]), shares) == (7).to_bytes(32, "big")


def test_the_modulus_is_a_prime_above_every_secret():
    assert shamir.P > 2**256 - 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        odd, twos = shamir.P - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        power = pow(base, odd, shamir.P)
        assert power == 1 or any(pow(power, 2**i, shamir.P) == shamir.P - 1 for i in range(twos))


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_the_shares_give_the_secret(secret, data):
    points = data.draw(st.lists(st.integers(1, 500), min_size=1, max_size=15, unique=True))
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, shamir.split(secret, threshold, points), strict=True))
    some = data.draw(st.permutations(points))[:threshold]
    assert shamir.combine(shamir.weights(some), [shares[x] for x in some]) == secret


@given(st.binary(min_size=32, max_size=32), st.integers(2, 9))
def test_one_share_less_fits_every_secret(secret, threshold):
    # For any other secret there is a last share that completes the same t-1 shares to it.
    points = list(range(1, threshold + 1))
    known = [int.from_bytes(share, "big") for share in shamir.split(secret, threshold, points)[:-1]]
    by, other = shamir.weights(points), 12345
    rest = other - sum(w * y for w, y in zip(by, known, strict=False))
    last = rest * pow(by[-1], -1, shamir.P) % shamir.P
    shares = [value.to_bytes(33, "big") for value in [*known, last]]
    assert int.from_bytes(shamir.combine(by, shares), "big") == other


def test_shares_of_one_secret_differ_each_time():
    assert not set(shamir.split(bytes(32), 3, range(1, 6))) & set(shamir.split(bytes(32), 3, range(1, 6)))


@pytest.mark.parametrize(
    "share", [shamir.P.to_bytes(33, "big"), (2**256 + 1).to_bytes(33, "big")], ids=["outside", "too large"]
)
def test_what_is_no_secret_is_refused(share):
    with pytest.raises(SealError):
        shamir.combine([1], [share])


def test_a_sharing_that_cannot_be_undone_is_refused():
    for secret, threshold, points in [(bytes(31), 1, [1]), (bytes(32), 3, [1, 2]), (bytes(32), 1, [0, 1])]:
        with pytest.raises(ValueError, match="cannot share"):
            shamir.split(secret, threshold, points)


# masks


def test_the_stream_is_aes_256_in_counter_mode():
    words = np.zeros(2, "<u8")
    masks.apply(words, [bytes(32)], [])
    assert words.tobytes().hex() == "dc95c078a2408989ad48a21492842087"  # AES-256 of the zero block, zero key


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.integers(0, 9), st.sampled_from([4, 8]))
def test_masks_cancel(keys, length, width):
    start = np.arange(length, dtype=f"<u{width}")
    words = start.copy()
    masks.apply(words, keys, [])
    masks.apply(words, [], keys)
    assert np.array_equal(words, start)


def test_two_clients_derive_one_key_and_only_for_one_session_purpose_and_pair():
    a, b = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    one, two = a.public_key().public_bytes_raw(), b.public_key().public_bytes_raw()
    key = masks.agree(SESSION, masks.PAIR, a, (1, one), (4, two))
    assert key == masks.agree(SESSION, masks.PAIR, b, (4, two), (1, one))
    relabelled = Session(6, 3, 5, 5, label="round 8 / cluster 2", nonce=SESSION.nonce)
    others = {
        masks.agree(SESSION, masks.SEAL, a, (1, one), (4, two)),
        masks.agree(SESSION, masks.PAIR, a, (1, one), (3, two)),
        masks.agree(Session.open(6, 3, label=SESSION.label), masks.PAIR, a, (1, one), (4, two)),
        masks.agree(relabelled, masks.PAIR, a, (1, one), (4, two)),
    }
    assert len(others) == 4 and key not in others


def test_a_public_key_of_low_order_is_refused():
    with pytest.raises(SealError, match="client 4"):
        masks.agree(SESSION, masks.PAIR, X25519PrivateKey.generate(), (1, bytes(32)), (4, bytes(32)))


# graph


@pytest.mark.parametrize(("n", "k"), [(7, 6), (8, 4), (30, 10), (61, 18)])
def test_the_graph_is_regular_mutual_and_connected(n, k):
    around = graph.holders(n, k, b"seed")
    assert all(len(set(row)) == k + 1 and i in row and row == sorted(row) for i, row in enumerate(around))
    assert all(i in around[j] for i, row in enumerate(around) for j in row)
    seen, front = {0}, [0]
    while front:
        new = [j for j in around[front.pop()] if j not in seen]
        seen.update(new)
        front.extend(new)
    assert len(seen) == n


def test_the_graph_depends_on_the_session_alone():
    assert graph.holders(30, 6, b"a") == graph.holders(30, 6, b"a") != graph.holders(30, 6, b"b")


def test_small_cohorts_are_complete_and_large_ones_sparse():
    assert [graph.degree(n) for n in (2, 3, 20)] == [1, 2, 19]
    assert graph.degree(100) == 24 and graph.quorum(25) == 17
    assert all(graph.degree(n) < 4 * math.log2(n) + 20 for n in (60, 300, 1000))


def test_the_bound_on_lost_sums_holds_in_a_simulation():
    n, k, t, dropped = 60, 10, 7, 9
    bound, _ = graph.risks(n, k, t, dropped, 0)
    rng, lost = np.random.default_rng(0), 0
    for trial in range(2000):
        gone = set(rng.choice(n, dropped, replace=False).tolist())
        lost += any(len(set(row) - gone) < t for row in graph.holders(n, k, trial.to_bytes(2, "big")))
    assert 0.2 * bound < lost / 2000 < bound < 1


@given(st.integers(2, 200))
def test_a_quorum_is_above_two_thirds_and_can_be_met(holders):
    assert 2 * holders < 3 * graph.quorum(holders) and graph.quorum(holders) <= holders


# sessions and messages


@given(st.text(max_size=20), st.sampled_from([32, 64]))
def test_an_invitation_brings_back_the_session(label, bits):
    session = Session.open(30, 9, word_bits=bits, label=label)
    again = Session.from_bytes(session.to_bytes())
    assert again == session and again.context == session.context and again.holders == session.holders


def test_sessions_have_an_id_of_their_own():
    assert len({Session.open(5, 2).context for _ in range(10)}) == 10


@pytest.mark.parametrize(
    "bad",
    [
        {"clients": 1, "neighbours": 0, "threshold": 1},
        {"neighbours": 3},
        {"neighbours": 6},
        {"neighbours": 0},
        {"threshold": 3},
        {"threshold": 7},
        {"word_bits": 16},
        {"label": "x" * 1025},
    ],
)
def test_a_session_that_cannot_protect_is_refused(bad):
    with pytest.raises(BadInput):
        Session.open(**({"clients": 6, "length": 3} | bad))


def test_words_are_as_wide_as_the_codec_needs():
    assert Session.fitting(FixedPoint.fitting(1.0, 100, 32), 100, 5).word_bits == 32
    assert Session.fitting(FixedPoint.fitting(1.0, 100, 40), 100, 5).word_bits == 64
    with pytest.raises(OverflowBudget, match="101 terms"):
        Session.fitting(FixedPoint.fitting(1.0, 100, 32), 101, 5)


@pytest.mark.parametrize("cut", [0, 3, 20, -1])
def test_a_damaged_invitation_is_refused(cut):
    with pytest.raises(SealError):
        Session.from_bytes(SESSION.to_bytes()[:cut])
    with pytest.raises(SealError):
        Session.from_bytes(SESSION.to_bytes() + b"!")


@given(st.binary(max_size=40), st.sampled_from(list(Kind)), st.integers(0, 5))
def test_bytes_bring_back_the_body(body, kind, client):
    assert unpack(SESSION, kind, client, pack(SESSION, kind, client, body)) == body


@given(st.data())
def test_every_single_flipped_bit_and_every_cut_is_noticed(data):
    message = pack(SESSION, Kind.MASKED, 3, bytes(range(32)))
    at, bit = data.draw(st.integers(0, len(message) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(message)
    flipped[at] ^= 1 << bit
    for bad in (bytes(flipped), message[:at], message + b"\0"):
        with pytest.raises(SealError, match="the masked of client 3"):
            unpack(SESSION, Kind.MASKED, 3, bad)


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_noise_is_never_read(noise):
    for data in (noise, pack(SESSION, Kind.ADVERT, 1, b"")[: HEADER.size - 1] + noise):
        with pytest.raises(SealError, match="client 1"):
            unpack(SESSION, Kind.ADVERT, 1, data, 64)


def test_a_message_says_what_does_not_fit():
    message = pack(SESSION, Kind.ADVERT, 2, b"12")
    for kind, client, session, size, why in [
        (Kind.SHARES, 2, SESSION, None, "wrong kind: advert"),
        (Kind.ADVERT, 3, SESSION, None, "the name of client 2"),
        (Kind.ADVERT, 2, Session.open(6, 3, label=SESSION.label), None, "another session"),
        (Kind.ADVERT, 2, SESSION, 3, "2 bytes, expected 3"),
    ]:
        with pytest.raises(SealError, match=why):
            unpack(session, kind, client, message, size)


@given(st.dictionaries(st.integers(0, 5), st.binary(min_size=2, max_size=2)))
def test_tables_come_back_in_order(rows):
    again = unpack_table(SESSION, pack_table(rows), 2, "it")
    assert again == rows and list(again) == sorted(rows)


def test_tables_name_nobody_twice_and_no_stranger():
    row = (4).to_bytes(4, "little") + b"x"
    for body, why in [
        (row + row, "twice"),
        (row[:-1], "whole number"),
        ((6).to_bytes(4, "little") + b"x", "of 6"),
    ]:
        with pytest.raises(SealError, match=why):
            unpack_table(SESSION, body, 1, "it")
