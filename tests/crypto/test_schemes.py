"""What every scheme promises, whichever it is."""

import json
from dataclasses import replace
from functools import cache
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flameche.crypto.codec import exact_codec
from flameche.crypto.envelope import HEADER
from flameche.crypto.paillier import Paillier
from flameche.crypto.registry import (
    SCHEMES,
    adder_from_bytes,
    make_scheme,
    public_bytes,
    scheme_from_bytes,
    secret_bytes,
)
from flameche.crypto.secagg import aggregate
from flameche.errors import ConfigError, OverflowBudget, SealError

BOUND, CLIENTS = 4.0, 6
KINDS = ["plain", "bfv", "ckks", "ckks-paper", "paillier"]
SEALED = KINDS[1:]
EXACT = ["bfv", "paillier"]
FULL = {"plain": 5, "bfv": 4095, "ckks": 2047, "ckks-paper": 8191, "paillier": 13}  # of one ciphertext
every = pytest.mark.parametrize("kind", KINDS)
every_sealed = pytest.mark.parametrize("kind", SEALED)
laws = settings(max_examples=12, deadline=None, derandomize=True)
elements = st.floats(-BOUND, BOUND) | st.sampled_from([-BOUND, BOUND, 0.0])
groups = st.integers(1, 9).flatmap(
    lambda size: st.lists(arrays(np.float64, size, elements=elements), min_size=1, max_size=CLIENTS)
)


def fresh(kind, clients=CLIENTS, bound=BOUND):
    if kind != "paillier":
        return make_scheme(kind, clients=clients, bound=bound)
    bits = exact_codec(bound, clients)[0].fraction_bits  # as the registry does, with a short key
    return Paillier.generate(
        max_terms=clients, bound=bound, fraction_bits=bits, key_bits=512, insecure_for_tests=True
    )


@cache
def scheme(kind):
    return fresh(kind)


def codec(kind):
    return scheme(kind).codec if kind == "bfv" else scheme(kind).public.codec


def tolerance(kind):
    """What one term may be off by, as the scheme states it."""
    if kind == "plain":
        return BOUND * 2.0**-24  # a float32
    if kind in EXACT:
        return codec(kind).tolerance
    return scheme(kind).tolerance


def load_all(kind, vectors):
    key, adder = scheme(kind).client_key(), scheme(kind).adder()
    return [adder.load(key.seal(vector)) for vector in vectors]


def opened(kind, total):
    return scheme(kind).client_key().open(total.to_bytes())


def assert_opens_to(kind, total, vectors):
    """Exact schemes to the sum of the integers, the others within their tolerance."""
    found, terms = opened(kind, total), len(vectors)
    assert found.shape == vectors[0].shape and found.dtype == np.float64
    assert total.terms == terms
    if kind in EXACT:
        integers = np.sum([codec(kind).encode(vector) for vector in vectors], axis=0)
        assert np.array_equal(found, codec(kind).decode(integers))
    assert np.abs(found - np.sum(vectors, axis=0)).max() <= terms * tolerance(kind) + 1e-14


# Laws


@every
@laws
@given(groups)
def test_the_sum_of_sealed_terms_opens_to_the_sum(kind, vectors):
    assert_opens_to(kind, scheme(kind).adder().add(load_all(kind, vectors)), vectors)


@every
@laws
@given(groups, st.randoms(use_true_random=False))
def test_the_order_and_grouping_of_terms_do_not_matter(kind, vectors, random):
    adder, parts = scheme(kind).adder(), load_all(kind, vectors)
    order = random.sample(range(len(parts)), len(parts))
    cut = random.randint(1, len(parts))
    grouped = adder.add([adder.add(parts[i] for i in order[:cut]), *(parts[i] for i in order[cut:])])
    assert_opens_to(kind, grouped, vectors)
    if kind in EXACT:
        assert np.array_equal(opened(kind, grouped), opened(kind, adder.add(parts)))


@every
@laws
@given(groups, st.data())
def test_subtracting_undoes_adding(kind, vectors, data):
    stay = data.draw(st.integers(1, len(vectors)))
    adder, parts = scheme(kind).adder(), load_all(kind, vectors)
    total = adder.add(parts)
    if stay < len(parts):
        assert_opens_to(kind, adder.subtract(total, parts[stay:]), vectors[:stay])
    back = adder.add([*load_all(kind, [np.zeros_like(vectors[0])]), *parts[: CLIENTS - 1]])
    rest = adder.subtract(back, parts[: CLIENTS - 1])
    assert_opens_to(kind, rest, [np.zeros_like(vectors[0])])


@every
@laws
@given(groups)
def test_bytes_bring_back_the_same_sum(kind, vectors):
    adder = scheme(kind).adder()
    total = adder.add(load_all(kind, vectors))
    again = adder.load(total.to_bytes())
    assert again.terms == total.terms and again.to_bytes() == total.to_bytes()
    assert_opens_to(kind, adder.load(again.to_bytes()), vectors)


@every_sealed
@laws
@given(arrays(np.float64, 4, elements=elements))
def test_two_seals_of_one_vector_differ_and_open_alike(kind, vector):
    key = scheme(kind).client_key()
    one, other = key.seal(vector), key.seal(vector)
    assert one != other
    tails = [np.frombuffer(data[len(data) // 2 : -20], np.uint8) for data in (one, other)]
    size = min(map(len, tails))
    assert (tails[0][:size] != tails[1][:size]).mean() > 0.5  # the ciphertext, not a stray byte
    assert np.abs(key.open(one) - key.open(other)).max() <= 2 * tolerance(kind)


@laws
@given(groups)
def test_the_exact_schemes_and_secure_aggregation_give_identical_sums(vectors):
    assert codec("bfv") == codec("paillier") == exact_codec(BOUND, CLIENTS)[0]
    sums = [opened(kind, scheme(kind).adder().add(load_all(kind, vectors))) for kind in EXACT]
    assert np.array_equal(*sums)
    if len(vectors) > 1:
        total, _, _ = aggregate(np.stack([codec("bfv").encode(vector) for vector in vectors]))
        assert np.array_equal(codec("bfv").decode(total), sums[0])


# Boundaries


@every
def test_values_at_exactly_the_bound_pass_as_many_times_as_declared(kind):
    vectors = [np.array([BOUND, -BOUND, 0.0, 1.0])] * CLIENTS
    assert_opens_to(kind, scheme(kind).adder().add(load_all(kind, vectors)), vectors)


@every_sealed
@pytest.mark.parametrize("value", [np.nextafter(BOUND, 9), -np.nextafter(BOUND, 9), 1e300, -5.0])
def test_a_value_beyond_the_bound_is_refused_before_sealing_with_the_numbers(kind, value):
    number = f"{abs(value):.6g}".replace("+", r"\+")
    with pytest.raises(OverflowBudget, match=f"magnitude {number} exceeds the declared bound 4$"):
        scheme(kind).client_key().seal(np.array([0.0, value, 1.0]))


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_before_sealing(kind, bad):
    with pytest.raises(SealError, match="NaN or infinite"):
        scheme(kind).client_key().seal(np.array([1.0, bad]))


@pytest.mark.parametrize("value", [1e39, -3.5e38])
def test_what_a_float32_cannot_hold_is_refused_in_the_clear(value):
    with pytest.raises(SealError, match="NaN or infinite"):
        scheme("plain").client_key().seal(np.array([1.0, value]))


@every_sealed
def test_one_term_more_than_declared_is_refused_with_the_numbers(kind):
    adder, parts = scheme(kind).adder(), load_all(kind, [np.ones(2)] * (CLIENTS + 1))
    full = adder.add(parts[:-1])
    for too_many in (parts, [full, parts[-1]]):
        with pytest.raises(OverflowBudget, match=f"sum of {CLIENTS + 1} terms, but .* made for {CLIENTS};"):
            adder.add(too_many)
    with pytest.raises(OverflowBudget, match=f"sum of {2 * CLIENTS} terms"):
        adder.add([full, full])


@every
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_vectors_around_one_full_ciphertext_come_back(kind, over):
    size = FULL[kind] + over
    vectors = np.random.default_rng(over + 1).uniform(-BOUND, BOUND, (3, size))
    assert_opens_to(kind, scheme(kind).adder().add(load_all(kind, vectors)), list(vectors))


@every
@pytest.mark.parametrize("size", [1, 2])
def test_vectors_of_one_and_two_numbers_come_back(kind, size):
    vectors = [np.full(size, -BOUND), np.full(size, 1.25)]
    assert_opens_to(kind, scheme(kind).adder().add(load_all(kind, vectors)), vectors)


@every
def test_vectors_of_several_ciphertexts_come_back(kind):
    vectors = np.random.default_rng(9).uniform(-BOUND, BOUND, (2, 2 * FULL[kind] + 1))
    assert_opens_to(kind, scheme(kind).adder().add(load_all(kind, vectors)), list(vectors))


def test_the_sizes_above_are_those_of_one_ciphertext():
    assert scheme("paillier").public.slots == FULL["paillier"]
    for kind in ("bfv", "ckks", "ckks-paper"):
        assert scheme(kind)._secret.ring.slots - 1 == FULL[kind]
        key = scheme(kind).client_key()
        one, two = (len(key.seal(np.ones(FULL[kind] + more))) for more in (0, 1))
        assert 1.9 * one < two


@every
def test_nothing_and_vectors_of_different_lengths_are_refused(kind):
    adder, (two, three) = scheme(kind).adder(), load_all(kind, [np.ones(2), np.ones(3)])
    with pytest.raises(SealError, match="nothing to add"):
        adder.add([])
    with pytest.raises(SealError, match=r"different lengths cannot be added: \[2, 3\]"):
        adder.add([two, three])
    with pytest.raises(SealError, match=r"different lengths|cannot be taken out"):
        adder.subtract(adder.add([two, two]), [three])


# Wrong key, foreign scheme, other codec, damage


@every_sealed
def test_another_key_is_refused_by_both_halves(kind):
    data, other = scheme(kind).client_key().seal(np.ones(3)), fresh(kind)
    for take in (other.adder().load, other.client_key().open):
        with pytest.raises(SealError, match=f"other keys or parameters of '{kind}'"):
            take(data)


@every
@pytest.mark.parametrize("foreign", KINDS)
def test_a_foreign_scheme_is_refused_and_both_are_named(kind, foreign):
    if kind == foreign:
        return
    data = scheme(foreign).client_key().seal(np.ones(3))
    for take in (scheme(kind).adder().load, scheme(kind).client_key().open):
        with pytest.raises(SealError, match=f"under scheme '{foreign}' was given to scheme '{kind}'"):
            take(data)


@every_sealed
def test_the_same_key_under_another_codec_is_refused(kind):
    data = scheme(kind).client_key().seal(np.ones(3))
    for changes in ({"bound": 8.0}, {"max_terms": CLIENTS + 1}):
        other = rekeyed(kind, changes)
        for take in (other.adder().load, other.client_key().open):
            with pytest.raises(SealError, match=f"other keys or parameters of '{kind}'"):
                take(data)


def rekeyed(kind, changes):
    """The same secret, read from a key file in which the codec was changed."""
    if kind == "paillier":
        return Paillier(scheme(kind)._private, replace(codec(kind), **changes))
    fields = json.loads(secret_bytes(scheme(kind))[32:])
    fields["settings"].update(changes)
    text = json.dumps(fields).encode()
    return scheme_from_bytes(kind, sha256(text).digest() + text)


@every
def test_truncated_and_lengthened_bytes_are_refused_by_both_halves(kind):
    data = scheme(kind).client_key().seal(np.ones(20))
    cuts = [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 1, len(data) // 2, len(data) - 1]
    for bad in [*(data[:cut] for cut in cuts), data + b"\0", data + data, b"XXXX" + data[4:]]:
        for take in (scheme(kind).adder().load, scheme(kind).client_key().open):
            with pytest.raises(SealError, match=r"cut short|damaged|not a sealed vector"):
                take(bad)


@every
def test_every_flipped_byte_of_the_header_is_refused_when_opened(kind):
    data = scheme(kind).client_key().seal(np.ones(3))
    for i in range(HEADER.size):
        changed = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        with pytest.raises(SealError):
            scheme(kind).client_key().open(changed)


@every
def test_a_flipped_byte_anywhere_in_the_body_is_refused_by_both_halves(kind):
    data, rng = scheme(kind).client_key().seal(np.linspace(-BOUND, BOUND, 5)), np.random.default_rng(0)
    count = 20 if kind == "ckks-paper" else 150  # its ciphertexts are large
    first = range(HEADER.size, min(HEADER.size + count, len(data)))  # counts, sizes, the ciphertext's header
    for i in {*first, *rng.integers(HEADER.size, len(data), count).tolist(), len(data) - 1}:
        changed = bytearray(data)
        changed[i] ^= int(rng.integers(1, 256))
        for take in (scheme(kind).adder().load, scheme(kind).client_key().open):
            with pytest.raises(SealError, match="damaged: its checksum does not match"):
                take(bytes(changed))


# Key files


@cache
def on_file(kind):
    """A scheme as the registry makes it; the shortest Paillier key that it accepts."""
    return make_scheme(kind, clients=CLIENTS, bound=BOUND, key_bits=2048)


@every_sealed
def test_key_files_bring_back_both_halves(kind):
    own = on_file(kind)
    client = scheme_from_bytes(kind, secret_bytes(own))
    server = adder_from_bytes(kind, public_bytes(own))
    vectors = np.random.default_rng(3).uniform(-BOUND, BOUND, (2, 7))
    keys = [own.client_key(), client.client_key()]
    total = server.add(server.load(key.seal(v)) for key, v in zip(keys, vectors, strict=True)).to_bytes()
    assert np.array_equal(keys[0].open(total), keys[1].open(total))
    assert np.abs(keys[1].open(total) - vectors.sum(axis=0)).max() <= 1e-7
    assert own.adder().load(total).terms == client.adder().load(total).terms == 2
    assert secret_bytes(client) == secret_bytes(own) and public_bytes(client) == public_bytes(own)
    assert client.name == own.name == kind


@every_sealed
def test_the_servers_part_is_refused_by_a_client(kind):
    with pytest.raises(SealError, match=r"server's part|no Paillier private key"):
        scheme_from_bytes(kind, public_bytes(on_file(kind)))


@every_sealed
def test_a_secret_key_is_refused_by_a_server(kind):
    with pytest.raises(SealError, match=r"server must not hold|clients' part of a key .* it is secret"):
        adder_from_bytes(kind, secret_bytes(on_file(kind)))


@every_sealed
def test_the_servers_part_is_smaller_and_opens_nothing(kind):
    assert len(public_bytes(on_file(kind))) < len(secret_bytes(on_file(kind)))
    server = adder_from_bytes(kind, public_bytes(on_file(kind)))
    assert not any(hasattr(server, name) for name in ("open", "seal", "decrypt"))


def test_what_has_no_keys_says_so():
    assert secret_bytes(scheme("plain")) is None and public_bytes(scheme("plain")) is None
    with pytest.raises(ConfigError, match="scheme 'secagg' has no lasting keys"):
        scheme_from_bytes("secagg", b"")


# The registry


@every
def test_a_scheme_is_what_its_line_in_the_registry_says(kind):
    info = SCHEMES[kind]
    assert (scheme(kind).name, scheme(kind).opened_by) == (info.name, info.opened_by)
    assert info.exact == (kind in (*EXACT, "plain"))


def test_every_registered_scheme_is_tested_here_but_secure_aggregation():
    assert set(SCHEMES) - {"secagg"} == set(KINDS)
