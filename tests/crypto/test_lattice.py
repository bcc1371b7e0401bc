import base64
import copy
import json
import pickle
from dataclasses import replace
from functools import cache
from hashlib import sha256

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.crypto import bfv, ckks
from flameche.crypto.bfv import RINGS, Bfv
from flameche.crypto.ckks import PAPER, Ckks
from flameche.crypto.codec import FixedPoint
from flameche.crypto.envelope import HEADER, Envelope, pack
from flameche.crypto.lattice import (
    MODULUS_BITS_128,
    LatticeAdder,
    Ring,
    chunks_for,
    read_chunks,
    write_chunks,
)
from flameche.crypto.registry import adder_from_bytes, make_scheme
from flameche.errors import Cancelled, SealError

BOUND, MAX_TERMS = 4.0, 8
KINDS = ["bfv", "ckks", "ckks-paper"]
laws = settings(max_examples=60, deadline=None, derandomize=True)


@cache
def scheme(kind="bfv", max_terms=MAX_TERMS, bound=BOUND):
    return make_scheme(kind, clients=max_terms, bound=bound)


def load_all(own, vectors):
    key, adder = own.client_key(), own.adder()
    return [adder.load(key.seal(vector)) for vector in vectors]


def integers(own, vector):
    """Read a BFV sum as the integers inside."""
    return np.rint(own.client_key().open(vector.to_bytes()) * 2.0**own.codec.fraction_bits).astype(np.int64)


def vectors_of(count, size, seed=0, bound=BOUND):
    return np.random.default_rng(seed).uniform(-bound, bound, (count, size))


# Laws: chunks


@laws
@given(st.lists(st.binary(max_size=20), max_size=6))
def test_bytes_bring_back_the_chunks(chunks):
    assert read_chunks(write_chunks(chunks), len(chunks)) == chunks


@laws
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_chunks_that_are_cut_lengthened_or_of_another_number_are_refused(chunks, data):
    body = write_chunks(chunks)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    for bad, expected in ((cut, len(chunks)), (body + b"x", len(chunks)), (body, len(chunks) + 1)):
        with pytest.raises(SealError, match=f"expected {expected} whole ciphertexts"):
            read_chunks(bad, expected)


@laws
@given(st.integers(0, 10**6), st.sampled_from([2048, 4096, 8192]))
def test_numbers_fit_their_chunks_with_a_check_slot_each_and_no_chunk_is_spare(numbers, slots):
    chunks = chunks_for(numbers, slots)
    assert chunks * (slots - 1) >= numbers
    assert chunks == 1 or (chunks - 1) * (slots - 1) < numbers


# Rings: 128-bit security


@pytest.mark.parametrize(("degree", "allowed"), MODULUS_BITS_128.items())
def test_a_ring_at_the_limit_of_128_bit_security_passes_and_one_bit_more_is_refused(degree, allowed):
    Ring(degree, (allowed - 20, 20), scale=10)
    with pytest.raises(SealError, match=f"{allowed + 1} bits .* degree {degree} .* at most {allowed} bits"):
        Ring(degree, (allowed - 20, 21), scale=10)


@pytest.mark.parametrize("degree", [0, 512, 4095, 65536])
def test_a_degree_that_the_standard_does_not_list_is_refused(degree):
    with pytest.raises(SealError, match="below 128-bit security"):
        Ring(degree, (20,))


def test_a_key_file_cannot_bring_in_a_weak_ring():
    own = scheme()
    fields = json.loads(own.public_bytes()[32:])
    fields["ring"]["degree"] = 2048
    text = json.dumps(fields).encode()
    with pytest.raises(SealError, match="below 128-bit security"):
        adder_from_bytes("bfv", sha256(text).digest() + text)


def test_plaintext_moduli_are_primes_with_a_slot_for_every_coefficient():
    for bits, ring in RINGS.items():
        assert gmpy2.is_prime(ring.plain) and ring.plain % (2 * ring.degree) == 1
        assert ring.plain.bit_length() == bits and ring.slots == ring.degree
        larger = range(ring.plain + 2 * ring.degree, 2**bits, 2 * ring.degree)
        assert not any(gmpy2.is_prime(n) for n in larger)  # the largest, as stated


def test_the_contexts_have_the_parameters_that_are_claimed():
    assert (PAPER.degree, PAPER.moduli, PAPER.scale) == (16384, (60, 50, 50, 60), 50)
    assert scheme("ckks-paper")._secret.ring == PAPER
    assert scheme("ckks")._secret.ring == Ring(4096, (54, 54), scale=44)
    assert scheme("bfv")._secret.ring == RINGS[36]
    assert scheme("ckks")._secret.context.global_scale == 2.0**44


# BFV: which ring, and exact however often terms come and go


@pytest.mark.parametrize(
    ("bound", "max_terms", "degree", "fraction_bits"),
    [(64.0, 40, 4096, 23), (64.0, 511, 4096, 20), (64.0, 512, 8192, 27), (4.0, 8, 4096, 29)],
)
def test_the_small_ring_serves_while_it_leaves_20_fraction_bits(bound, max_terms, degree, fraction_bits):
    own = Bfv.generate(max_terms=max_terms, bound=bound)
    assert own._secret.ring.degree == degree
    assert own.codec == FixedPoint(bound, max_terms, fraction_bits)


@pytest.mark.parametrize(("bound", "max_terms"), [(64.0, 511), (64.0, 1023), (32767.0, 1)])
def test_the_largest_sums_of_a_ring_do_not_wrap_around(bound, max_terms):
    own = Bfv.generate(max_terms=max_terms, bound=bound)
    vector = np.array([bound, -bound, 0.0])
    (part,) = load_all(own, [vector])
    total = own.adder().add([part] * max_terms)
    assert np.array_equal(own.client_key().open(total.to_bytes()), max_terms * vector)


@pytest.mark.parametrize("bound", [2.0**31 - 1, 1.0, 0.7, 33554400.0, 2.0**14 - 1])
def test_a_single_value_at_the_bound_comes_back_whatever_the_bound(bound):
    own = Bfv.generate(max_terms=1, bound=bound)  # 2**31 - 1 wrapped around once
    vector = np.array([bound, -bound])
    found = own.client_key().open(own.client_key().seal(vector))
    assert np.abs(found - vector).max() <= own.codec.tolerance
    assert 2 * own.codec.largest_sum < own._secret.ring.plain


def walk(own, steps, size=50):
    """Add and take out random terms, one at a time: the sum, the integers it should hold."""
    vectors, rng = vectors_of(MAX_TERMS, size), np.random.default_rng(1)
    encoded, parts, adder = [own.codec.encode(v) for v in vectors], load_all(own, vectors), own.adder()
    total, inside, expected = parts[0], {0}, encoded[0].copy()
    for _ in range(steps):
        i = int(rng.integers(MAX_TERMS))
        if i not in inside:
            total, inside, expected = adder.add([total, parts[i]]), inside | {i}, expected + encoded[i]
        elif len(inside) > 1:
            total = adder.subtract(total, [parts[i]])
            inside, expected = inside - {i}, expected - encoded[i]
        else:
            total = adder.add([adder.subtract(adder.add([total, parts[i - 1]]), [parts[i - 1]])])
    return total, inside, expected


def test_bfv_is_exact_after_two_thousand_additions_and_subtractions():
    own = scheme()
    total, inside, expected = walk(own, 2000)
    assert total.terms == len(inside)
    assert np.array_equal(integers(own, total), expected)


def test_the_large_ring_is_exact_after_many_additions_and_subtractions():
    own = scheme("bfv", MAX_TERMS, 2.0**14)
    assert own._secret.ring == RINGS[44]
    total, _, expected = walk(own, 400)
    assert np.array_equal(integers(own, total), expected)


def test_bfv_is_exact_when_the_noise_of_two_thousand_terms_points_one_way():
    own = scheme("bfv", 2**11, 1.0)
    assert own._secret.ring == RINGS[36]
    vector = vectors_of(1, 30, bound=1.0)[0]
    (part,) = load_all(own, [vector])
    total = own.adder().add([part] * 2**11)
    assert np.array_equal(integers(own, total), 2**11 * own.codec.encode(vector))


@pytest.mark.parametrize(("bound", "bits"), [(BOUND, 36), (2.0**14, 44)])
def test_a_sum_after_thousands_of_additions_and_subtractions_still_opens_exactly(bound, bits):
    own = scheme("bfv", MAX_TERMS, bound)
    assert own._secret.ring == RINGS[bits]
    vectors = vectors_of(2, 2, bound=bound)
    adder, (total, part) = own.adder(), load_all(own, vectors)
    for _ in range(5000 if bits == 36 else 1000):
        total = adder.subtract(adder.add([total, part]), [part])
    assert total.terms == 1
    assert np.array_equal(integers(own, total), own.codec.encode(vectors[0]))
    both = adder.add([total, part])
    assert np.array_equal(integers(own, both), sum(own.codec.encode(vector) for vector in vectors))


@pytest.mark.parametrize("kind", KINDS)
def test_at_least_one_term_stays_in_a_sum(kind):
    own = scheme(kind)
    adder, parts = own.adder(), load_all(own, vectors_of(3, 2))
    total = adder.add(parts[:2])
    assert adder.subtract(total, parts[:1]).terms == 1
    with pytest.raises(SealError, match="2 terms cannot be taken out of a sum of 2"):
        adder.subtract(total, parts[:2])
    with pytest.raises(SealError, match="3 terms cannot be taken out of a sum of 2"):
        adder.subtract(total, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_another_key_are_neither_added_nor_taken_out(kind):
    own, other = scheme(kind), make_scheme(kind, clients=MAX_TERMS, bound=BOUND)
    mine, theirs = (load_all(which, vectors_of(2, 3)) for which in (own, other))
    adder = own.adder()
    for refused in (
        lambda: adder.add([mine[0], theirs[0]]),
        lambda: adder.add(theirs),
        lambda: adder.subtract(adder.add(mine), theirs[:1]),
    ):
        with pytest.raises(SealError, match="different keys cannot be added"):
            refused()


@pytest.mark.parametrize("kind", KINDS)
def test_adding_and_subtracting_leave_their_operands_alone(kind):
    own = scheme(kind)
    adder, vectors = own.adder(), vectors_of(4, 5)
    parts = load_all(own, vectors)
    before = [part.to_bytes() for part in parts]
    single = adder.add(parts[:1])
    total = adder.add([single, *parts[1:]])
    kept = total.to_bytes()
    adder.subtract(total, parts[1:])
    adder.add([total, *parts])
    assert [part.to_bytes() for part in parts] == before
    assert single.to_bytes() == before[0] and total.to_bytes() == kept


def negated(own, sealed):
    """The negative of a sealed vector, as a ciphertext: anybody who has its bytes can make it."""
    adder = own.adder()
    term = adder.load(sealed)
    other = load_all(own, [np.zeros(term.numbers)])[0]
    chunks = tuple((b - a) - b for a, b in zip(term.chunks, other.chunks, strict=True))
    return replace(term, chunks=chunks).to_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_ciphertexts_that_cancel_each_other_are_no_sum_and_stay_as_they_were(kind):
    own = scheme(kind)
    adder, (one, other) = own.adder(), load_all(own, vectors_of(2, 5))
    against = adder.load(negated(own, one.to_bytes()))
    before = [part.to_bytes() for part in (one, against, other)]
    whole = adder.add([one, other, against])
    for nothing in (
        lambda: adder.add([one, against]),
        lambda: adder.add([one, against, other]),
        lambda: adder.add([one, other, against, adder.load(negated(own, other.to_bytes()))]),
        lambda: adder.subtract(whole, [other]),
    ):
        with pytest.raises(Cancelled, match="cancel each other"):
            nothing()
    assert [part.to_bytes() for part in (one, against, other)] == before
    assert adder.subtract(whole, [against]).terms == 2


# CKKS: the stated error


def test_ckks_stays_within_its_tolerance_over_full_ciphertexts():
    own = scheme("ckks")
    vectors = vectors_of(MAX_TERMS, 2047)
    for count in (1, 2, MAX_TERMS):
        total = own.adder().add(load_all(own, vectors[:count]))
        error = np.abs(own.client_key().open(total.to_bytes()) - vectors[:count].sum(axis=0))
        assert error.max() <= count * own.tolerance


@pytest.mark.parametrize(("kind", "share"), [("ckks", 2.0**-28), ("ckks-paper", 2.0**-34)])
def test_the_tolerance_is_the_documented_share_of_the_bound(kind, share):
    assert scheme(kind).tolerance == BOUND * share
    assert scheme(kind, MAX_TERMS, 64.0).tolerance == 64.0 * share


def test_ckks_makes_room_for_more_terms_by_a_smaller_scale():
    for max_terms, scale in ((1, 44), (255, 44), (256, 43), (10**5, 35)):
        own = Ckks.generate(max_terms=max_terms, bound=BOUND)
        assert own._secret.ring.scale == scale
    (part,) = load_all(own, [np.array([BOUND, -BOUND, 1.0])])
    total = own.adder().add([part] * 5000)
    error = np.abs(own.client_key().open(total.to_bytes()) / 5000 - [BOUND, -BOUND, 1.0])
    assert error.max() <= own.tolerance


@pytest.mark.parametrize("max_terms", [1, 255, 256, 1000])
def test_the_largest_ckks_sums_stay_inside_the_modulus(max_terms):
    own = Ckks.generate(max_terms=max_terms, bound=64.0)
    vector = np.resize([64.0, -64.0], 2047)
    for full in (vector, np.full(2047, 64.0), np.full(2047, -64.0)):
        (part,) = load_all(own, [full])
        opened = own.client_key().open(own.adder().add([part] * max_terms).to_bytes())
        assert np.abs(opened - max_terms * full).max() <= max_terms * own.tolerance


# Damage inside the envelope


def refilled(own, chunks, terms=1, numbers=5):
    return pack(own.name, own._secret.mark, Envelope(terms, numbers, write_chunks(chunks)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_ciphertext_cut_short_inside_an_intact_envelope_is_refused(kind):
    own = scheme(kind)
    (chunk,) = read_chunks(own.client_key().seal(np.ones(5))[HEADER.size :], 1)
    for take in (own.adder().load, own.client_key().open):
        for cut in (chunk[:50], chunk[: len(chunk) // 2], chunk[:-1]):
            with pytest.raises(SealError, match="ciphertext cannot be read"):
                take(refilled(own, [cut]))
        for wrong in ([], [chunk, chunk]):
            with pytest.raises(SealError, match="expected 1 whole ciphertexts"):
                take(refilled(own, wrong))


def oddly_sealed(own, sealed, how):
    """Seal something that cannot be added to others, in an envelope like that of `sealed`."""
    import tenseal as ts

    numbers = HEADER.unpack_from(sealed)[4]
    values = [1] * {"short": numbers, "long": numbers + 2, "scale": numbers + 1}[how]
    secret = own._secret
    if how == "scale":
        vector = ts.ckks_vector(secret.context, values, scale=2.0 ** (secret.ring.scale - 3))
    else:
        vector = (ts.bfv_vector if secret.ring.plain else ts.ckks_vector)(secret.context, values)
    return refilled(own, [vector.serialize()], numbers=numbers)


@pytest.mark.parametrize(
    ("kind", "how"), [*((k, how) for k in KINDS for how in ("short", "long")), ("ckks", "scale")]
)
def test_a_ciphertext_that_cannot_be_added_to_others_is_refused_at_the_door(kind, how):
    own = scheme(kind)
    with pytest.raises(SealError, match="another length or scale"):
        own.adder().load(oddly_sealed(own, own.client_key().seal(np.ones(5)), how))


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_count_of_terms_or_numbers_does_not_open(kind):
    own = scheme(kind)
    (chunk,) = read_chunks(own.client_key().seal(np.ones(5))[HEADER.size :], 1)
    with pytest.raises(SealError, match="altered, or sealed under another key"):
        own.client_key().open(refilled(own, [chunk], terms=2))
    for numbers in (0, 4, 6):
        with pytest.raises(SealError, match=f"opens to 5 numbers, expected {numbers}"):
            own.client_key().open(refilled(own, [chunk], numbers=numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_another_key_behind_the_right_name_is_found_by_the_check_slot(kind):
    own, other = scheme(kind), make_scheme(kind, clients=MAX_TERMS, bound=BOUND)
    chunks = read_chunks(other.client_key().seal(np.ones(5))[HEADER.size :], 1)
    with pytest.raises(SealError, match="altered, or sealed under another key"):
        own.client_key().open(refilled(own, chunks))
    mine, theirs = (
        own.adder().load(own.client_key().seal(np.ones(5))),
        own.adder().load(refilled(own, chunks)),
    )
    with pytest.raises(SealError, match="altered, or sealed under another key"):
        own.client_key().open(own.adder().add([mine, theirs]).to_bytes())


def test_every_chunk_of_a_long_sum_is_checked():
    own = scheme()
    first, second = (own.client_key().seal(np.full(5000, x)) for x in (1.0, 2.0))
    (a, b), (c, _) = (read_chunks(data[HEADER.size :], 2) for data in (first, second))
    assert np.array_equal(own.client_key().open(refilled(own, [a, b], numbers=5000)), np.ones(5000))
    total = own.adder().add(own.adder().load(refilled(own, [x], numbers=2500)) for x in (a, c))
    (both,) = read_chunks(total.to_bytes()[HEADER.size :], 1)
    with pytest.raises(SealError, match="altered"):  # two terms in the first chunk, one in the second
        own.client_key().open(refilled(own, [both, b], terms=2, numbers=5000))


# Secrets


def secret_pieces(own, length=24):
    """Pieces of the serialised secret key that are no part of the public context."""
    secret = own._secret.context.serialize(
        save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    pieces = [secret[i : i + length] for i in range(0, len(secret) - length, 61)]
    return [piece for piece in pieces if piece not in own._secret.public]


def holds_secret(data, own):
    return any(piece in data or base64.b64encode(piece) in data for piece in secret_pieces(own))


@pytest.mark.parametrize("kind", KINDS)
def test_the_adder_and_what_it_writes_hold_no_secret(kind):
    own = scheme(kind)
    assert len(secret_pieces(own)) > 100
    assert holds_secret(base64.b64decode(json.loads(own.secret_bytes()[32:])["context"]), own)  # it can find
    adder = own.adder()
    total = adder.add(load_all(own, vectors_of(2, 3)))
    written = [own.public_bytes(), base64.b64decode(json.loads(own.public_bytes()[32:])["context"])]
    written += [pickle.dumps(adder, protocol) for protocol in range(6)] + [total.to_bytes()]
    assert not any(holds_secret(data, own) for data in written)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_adder_adds_and_its_context_cannot_open(kind):
    own = scheme(kind)
    again = pickle.loads(pickle.dumps(own.adder()))
    vectors = vectors_of(2, 3)
    total = again.add(again.load(own.client_key().seal(vector)) for vector in vectors)
    opened = own.client_key().open(total.to_bytes())
    assert np.allclose(opened, vectors.sum(axis=0), atol=1e-6)
    assert not again._context.has_secret_key()
    for use in (lambda: total.chunks[0].decrypt(), lambda: again._context.secret_key()):
        with pytest.raises((ValueError, RuntimeError)):
            use()
    assert not any(hasattr(again, name) for name in ("open", "decrypt", "secret", "_secret"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_adder_is_not_made_from_a_context_with_a_secret(kind):
    secret = scheme(kind)._secret
    whole = secret.context.serialize(
        save_public_key=True, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    with pytest.raises(SealError, match="must not be made from a context that holds a secret key"):
        LatticeAdder(kind, secret.ring, secret.mark, whole, MAX_TERMS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_holds_a_key_prints_only_its_name_and_is_not_pickled(kind):
    own = scheme(kind)
    name = f"<{kind} key {own._secret.name[:4]}…>"
    assert repr(own._secret) == repr(own.client_key()) == str(own.client_key()) == name
    assert f"{own}{own!r}{vars(own)}".count("context=") == 0
    for holder in (own._secret, own.client_key(), own):
        for send in (*(lambda x, p=p: pickle.dumps(x, p) for p in range(6)), copy.deepcopy):
            with pytest.raises(TypeError, match="secret key is not pickled"):
                send(holder)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_equal_parameters_have_names_of_their_own(kind):
    own, other = scheme(kind), make_scheme(kind, clients=MAX_TERMS, bound=BOUND)
    assert own._secret.name != other._secret.name and own._secret.mark != other._secret.mark
    assert own._secret.ring == other._secret.ring


# Key files


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", ["secret", "public"])
def test_damaged_key_files_are_refused_without_showing_them(kind, half):
    own = scheme(kind)
    data = own.secret_bytes() if half == "secret" else own.public_bytes()
    module = bfv if kind == "bfv" else ckks
    name = () if kind == "bfv" else (kind,)
    read = (Bfv if kind == "bfv" else Ckks).from_bytes if half == "secret" else module.adder_from_bytes
    flipped = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in (0, 31, 32, 60, len(data) - 1)]
    for bad in (b"", data[:31], data[:32], data[:-1], data[: len(data) // 2], data + b" ", *flipped):
        with pytest.raises(SealError, match="damaged or not a key") as refused:
            read(bad, *name)
        assert len(str(refused.value)) < 120


@pytest.mark.parametrize(("kind", "other"), [("bfv", "ckks"), ("ckks", "bfv"), ("ckks-paper", "ckks")])
def test_a_key_of_another_scheme_is_refused_by_name(kind, other):
    for data in (scheme(kind).public_bytes(), scheme(kind).secret_bytes()):
        with pytest.raises(SealError, match=f"key for scheme '{kind}' was given to scheme '{other}'"):
            adder_from_bytes(other, data)
