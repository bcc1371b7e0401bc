import copy
import json
import pickle
import struct
import threading
from dataclasses import replace
from functools import cache

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flameche.crypto import paillier
from flameche.crypto.codec import FixedPoint
from flameche.crypto.envelope import HEADER, pack, unpack
from flameche.crypto.paillier import Paillier, PaillierAdder, PaillierPrivate, PaillierPublic, PaillierVector
from flameche.crypto.paillier.scheme import _digest
from flameche.crypto.plain import PlainVector
from flameche.errors import ConfigError, OverflowBudget, SealError

BOUND, MAX_TERMS = 4.0, 6
ALTERED = "altered or sealed under another key"


@cache
def scheme(key_bits=512, max_terms=MAX_TERMS, bound=BOUND):
    return Paillier.generate(max_terms=max_terms, bound=bound, key_bits=key_bits, insecure_for_tests=True)


def load_all(vectors, own=None):
    own = own or scheme()
    key, adder = own.client_key(), own.adder()
    return [adder.load(key.seal(vector)) for vector in vectors]


def integer_sum(vectors, codec):
    """The oracle: the same sum on Python's integers."""
    columns = zip(*(codec.encode(vector).tolist() for vector in vectors), strict=True)
    return [sum(column) for column in columns]


def opened(vector, own=None):
    own = own or scheme()
    floats = own.client_key().open(vector.to_bytes())
    return np.rint(floats * 2.0**own.public.codec.fraction_bits).astype(np.int64).tolist()


def encrypted(plaintext, own, terms=1, numbers=1):
    """A ciphertext of any plaintext, well formed or not."""
    ciphertexts = tuple(own.client_key()._encrypt([gmpy2.mpz(plaintext)]))
    return PaillierVector(terms, numbers, ciphertexts, own.public)


# 27 numbers: three ciphertexts of a short key, the last one not full
elements = st.floats(-BOUND, BOUND) | st.sampled_from([-BOUND, BOUND, 0.0])
groups = st.integers(0, 27).flatmap(
    lambda size: st.lists(arrays(np.float64, size, elements=elements), min_size=1, max_size=MAX_TERMS)
)
laws = settings(max_examples=40, deadline=None)


# Laws


@laws
@given(groups)
def test_the_sum_of_sealed_vectors_opens_to_the_integer_sum(vectors):
    total = scheme().adder().add(load_all(vectors))
    assert total.terms == len(vectors) and total.numbers == len(vectors[0])
    assert opened(total) == integer_sum(vectors, scheme().public.codec)


@laws
@given(groups)
def test_opened_sums_are_within_the_codecs_tolerance_of_the_real_ones(vectors):
    total = scheme().adder().add(load_all(vectors))
    allowed = len(vectors) * scheme().public.codec.tolerance + 1e-12
    error = np.abs(scheme().client_key().open(total.to_bytes()) - np.sum(vectors, axis=0))
    assert (error <= allowed).all()


@laws
@given(groups, st.randoms(use_true_random=False))
def test_the_order_and_grouping_of_terms_do_not_matter(vectors, random):
    adder, parts = scheme().adder(), load_all(vectors)
    shuffled = random.sample(parts, len(parts))
    cut = random.randint(1, len(parts))
    grouped = [adder.add(shuffled[:cut]), *shuffled[cut:]]
    assert adder.add(parts) == adder.add(shuffled) == adder.add(grouped)


@laws
@given(groups, st.data())
def test_subtracting_undoes_adding(vectors, data):
    adder, parts = scheme().adder(), load_all(vectors)
    stay = data.draw(st.integers(1, len(parts)))
    if stay == len(parts):
        return
    rest = adder.subtract(adder.add(parts), parts[stay:])
    assert rest == adder.add(parts[:stay])
    assert opened(rest) == integer_sum(vectors[:stay], scheme().public.codec)


@laws
@given(groups)
def test_bytes_bring_back_the_same_vector(vectors):
    adder = scheme().adder()
    total = adder.add(load_all(vectors))
    assert adder.load(total.to_bytes()) == total


@laws
@given(
    st.floats(1e-3, 1e4),
    st.integers(1, 5000),
    st.integers(10, 30),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_packing_has_room_for_max_terms_of_extreme_values(bound, max_terms, fraction_bits, size, random):
    codec = FixedPoint(bound, max_terms, fraction_bits)
    public = PaillierPublic(gmpy2.mpz(2) ** 512 - 569, codec)
    values = codec.encode(np.array([random.choice([-bound, bound, 0.0]) for _ in range(size)]))
    sums = [plaintext * max_terms for plaintext in public.to_plaintexts(values)]
    assert all(total < public.n for total in sums)
    assert public.from_plaintexts(sums, max_terms, size).tolist() == [v * max_terms for v in values.tolist()]


# Oracles and worked examples


def test_a_plaintext_is_values_with_offset_and_above_them_the_count():
    own = PaillierPublic(gmpy2.mpz(2) ** 512 - 569, FixedPoint(3.0, 5, 10))
    # 3 * 2^10 = 3072 needs an offset of 4096; five times 7168 is 35840, 16 bits
    assert (own.largest, own.offset, own.slot_bits, own.slots) == (3072, 4096, 16, (511 - 32) // 16)
    (plaintext,) = own.to_plaintexts(np.array([1, -3072, 3072]))
    assert plaintext == 4097 + (1024 << 16) + (7168 << 32) + (1 << 48)


def test_the_default_slots_hold_69_numbers_and_5120_stay_below_60_kilobytes():
    own = PaillierPublic(gmpy2.mpz(2) ** 3072 - 1, FixedPoint(64.0, 100, 30))
    assert (own.slot_bits, own.slots, own.width) == (44, 69, 768)
    assert len(own.used(5120)) * own.width + HEADER.size == 57648


def test_opening_agrees_with_the_textbook():
    own = scheme()
    p, q, n = own._private.p, own._private.q, own.public.n
    square, order = n * n, gmpy2.lcm(p - 1, q - 1)
    for plaintext in (0, 1, 12345, int(n) - 1):
        (c,) = own.client_key()._encrypt([gmpy2.mpz(plaintext)])
        scale = (gmpy2.powmod(n + 1, order, square) - 1) // n
        textbook = (gmpy2.powmod(c, order, square) - 1) // n * gmpy2.invert(scale, n) % n
        assert textbook == plaintext == own.client_key()._decrypt([c])[0]


@given(st.binary(min_size=32, max_size=32))
def test_powers_from_the_table_are_powers(digits):
    modulus, base = gmpy2.mpz(10**40 + 121), gmpy2.mpz(987654321)
    steps = len(digits) // paillier.COMB_BLOCKS
    exponent = 0
    for s, digit in enumerate(digits):
        k, j = divmod(s, paillier.COMB_BLOCKS)
        for i in range(8):
            exponent |= (digit >> i & 1) << (i * len(digits) + j * steps + k)
    table = paillier.comb_table(base, modulus, len(digits))
    assert paillier.comb_power(table, modulus, digits) == gmpy2.powmod(base, exponent, modulus)


def test_digits_are_an_exponent_of_half_the_keys_length_and_each_counts_once():
    modulus = gmpy2.mpz(2) ** 600
    table = paillier.comb_table(gmpy2.mpz(3), modulus, 32)
    every = paillier.comb_power(table, modulus, b"\xff" * 32)
    assert every == gmpy2.powmod(3, 2**256 - 1, modulus)


def test_blinding_is_an_nth_power_so_that_it_opens_to_zero():
    own = scheme()
    blinds = [own.client_key()._encrypt([gmpy2.mpz(0)])[0] for _ in range(5)]
    assert len(set(blinds)) == 5
    order = (own._private.p - 1) * (own._private.q - 1)
    assert all(gmpy2.powmod(blind, order, own.public.square) == 1 for blind in blinds)


def test_the_base_of_the_randomness_is_minus_a_square():
    for _ in range(6):
        for half in PaillierPrivate.generate(256).halves:
            base = half.blind(b"\x01" + bytes(15))  # the exponent 1
            assert gmpy2.jacobi(base, half.prime) == -1  # -1 is no square modulo primes of 3 mod 4


def test_a_key_of_2048_bits_adds_exactly():
    own = Paillier.generate(max_terms=3, key_bits=2048)
    assert own.public.key_bits == 2048
    rng = np.random.default_rng(1)
    vectors = [rng.uniform(-64, 64, 500) for _ in range(3)]
    total = own.adder().add(load_all(vectors, own))
    assert opened(total, own) == integer_sum(vectors, own.public.codec)
    again = Paillier.from_bytes(own.secret_bytes())
    assert opened(total, again) == opened(total, own)


def test_primes_fit_the_papers_conditions():
    for _ in range(5):
        private = PaillierPrivate.generate(256)
        assert gmpy2.is_prime(private.p) and gmpy2.is_prime(private.q)
        assert private.p % 4 == private.q % 4 == 3 and gmpy2.gcd(private.p - 1, private.q - 1) == 2
        assert private.n.bit_length() == 256


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(threads):
    vector = np.random.default_rng(0).uniform(-BOUND, BOUND, 1000)
    data = scheme().client_key().seal(vector)
    expected = scheme().public.codec.decode(scheme().public.codec.encode(vector))
    assert np.array_equal(scheme().client_key(threads).open(data), expected)


def test_items_are_spread_in_order_over_other_threads():
    seen, together = set(), threading.Barrier(3)  # else one thread could be done before the next begins

    def work(part):
        seen.add(threading.get_ident())
        assert gmpy2.get_context().allow_release_gil
        together.wait()
        return [-item for item in part]

    assert paillier.spread(work, list(range(21)), 3) == [-item for item in range(21)]
    assert len(seen) == 3 and threading.get_ident() not in seen


# Boundaries


def test_values_at_the_bound_pass_max_terms_times():
    own = scheme()
    vector = np.array([BOUND, -BOUND] * 20)
    total = own.adder().add(load_all([vector] * MAX_TERMS))
    assert np.array_equal(own.client_key().open(total.to_bytes()), MAX_TERMS * vector)


def test_more_terms_than_declared_are_refused():
    own = scheme()
    adder, parts = own.adder(), load_all([np.ones(3)] * (MAX_TERMS + 1))
    full = adder.add(parts[:-1])
    for too_many in (parts, [full, parts[-1]], [full, full]):
        with pytest.raises(OverflowBudget, match="slots were made for 6"):
            adder.add(too_many)
    data = bytearray(full.to_bytes())
    struct.pack_into("<I", data, 24, MAX_TERMS + 1)
    for take in (adder.load, own.client_key().open):
        with pytest.raises(OverflowBudget):
            take(bytes(data))


def test_a_value_beyond_the_bound_is_refused_before_sealing():
    for value in (np.nextafter(BOUND, 9), -np.nextafter(BOUND, 9), 1e300):
        with pytest.raises(OverflowBudget, match="exceeds the declared bound"):
            scheme().client_key().seal(np.array([0.0, value]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(bad):
    with pytest.raises(SealError, match="NaN or infinite"):
        scheme().client_key().seal(np.array([1.0, bad]))


def test_only_vectors_are_sealed():
    with pytest.raises(SealError, match="shape"):
        scheme().client_key().seal(np.zeros((2, 3)))


def test_an_empty_vector_still_counts_its_terms():
    adder, parts = scheme().adder(), load_all([np.zeros(0)] * 2)
    assert opened(adder.add(parts)) == []
    with pytest.raises(SealError, match=ALTERED):
        scheme().client_key().open(replace(parts[0], terms=2).to_bytes())


@pytest.mark.parametrize("size", [1, 11, 12, 13, 24, 25])
def test_vectors_around_a_full_ciphertext_come_back(size):
    assert scheme().public.slots == 13  # 511 - 32 bits, slots of 36
    vector = np.linspace(-BOUND, BOUND, size)
    assert opened(load_all([vector])[0]) == integer_sum([vector], scheme().public.codec)


def test_nothing_and_different_lengths_are_refused():
    adder, (two, three) = scheme().adder(), load_all([np.zeros(2), np.zeros(3)])
    with pytest.raises(SealError, match="nothing to add"):
        adder.add([])
    with pytest.raises(SealError, match="different lengths"):
        adder.add([two, three])
    with pytest.raises(SealError, match="cannot be taken out"):
        adder.subtract(adder.add([two, two]), [three])


def test_taking_out_everything_is_refused():
    adder, (one, two) = scheme().adder(), load_all([np.zeros(2)] * 2)
    total = adder.add([one, two])
    for out in ([one, two], [one, two, two]):
        with pytest.raises(SealError, match="leave nothing"):
            adder.subtract(total, out)


def test_taking_out_what_was_never_in_is_found_when_the_rest_is_out_of_reach():
    adder, (low, high) = scheme().adder(), load_all([np.full(3, -BOUND), np.full(3, BOUND)])
    with pytest.raises(SealError, match=ALTERED):
        opened(adder.subtract(adder.add([low, low]), [high]))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_terms": 0}, ConfigError),
        ({"bound": 0.0}, ConfigError),
        ({"bound": float("nan")}, ConfigError),
        ({"fraction_bits": 9}, ConfigError),
        ({"fraction_bits": 41}, ConfigError),
        ({"bound": 2.0**40}, OverflowBudget),
        ({"max_terms": 2**31}, OverflowBudget),
    ],
)
def test_codecs_without_room_are_refused(changes, error):
    codec = replace(FixedPoint(64.0, 100, 30), **changes)
    with pytest.raises(error):
        Paillier(scheme()._private, codec)


@pytest.mark.parametrize("key_bits", [512, 1024, 2047, 4096])
def test_keys_of_other_lengths_are_not_made_by_accident(key_bits):
    with pytest.raises(ConfigError, match="2048 or 3072"):
        Paillier.generate(max_terms=2, key_bits=key_bits)


# Wrong key, foreign parameters, damage


def test_another_key_or_codec_is_refused_by_name():
    own, data = scheme(), scheme().client_key().seal(np.ones(3))
    other_key = Paillier.generate(max_terms=MAX_TERMS, bound=BOUND, key_bits=512, insecure_for_tests=True)
    other_terms = Paillier(own._private, replace(own.public.codec, max_terms=7))
    other_scale = Paillier(own._private, replace(own.public.codec, fraction_bits=20))
    for other in (other_key, other_terms, other_scale):
        for take in (other.adder().load, other.client_key().open):
            with pytest.raises(SealError, match="other keys or parameters"):
                take(data)
        with pytest.raises(SealError, match="another scheme, key or codec"):
            other.adder().add([own.adder().load(data)])


def test_another_key_behind_the_right_name_is_found_by_the_count():
    own = scheme()
    found = 0
    for _ in range(4):
        other = Paillier.generate(max_terms=MAX_TERMS, bound=BOUND, key_bits=512, insecure_for_tests=True)
        forged = bytearray(other.client_key().seal(np.ones(3)))
        forged[16:24] = own.public.mark
        try:
            own.client_key().open(bytes(forged))
        except SealError as error:
            found += ALTERED in str(error) or "not a ciphertext" in str(error)
    assert found == 4


def test_a_vector_of_another_scheme_is_refused():
    with pytest.raises(SealError, match="another scheme"):
        scheme().adder().add([PlainVector(np.zeros(3))])
    with pytest.raises(SealError, match="scheme 'plain'"):
        scheme().client_key().open(PlainVector(np.zeros(3)).to_bytes())


@pytest.mark.parametrize("position", [0, 1, 127, 128, 200, -1])
def test_a_changed_byte_of_a_ciphertext_is_found(position):
    mark = scheme().public.mark
    whole = unpack(scheme().client_key().seal(np.ones(20)), "paillier", mark)
    body = bytearray(whole.body)
    body[position] ^= 1
    forged = pack("paillier", mark, replace(whole, body=bytes(body)))  # with a checksum that fits
    with pytest.raises(SealError, match=ALTERED + "|not a ciphertext"):
        scheme().client_key().open(forged)


def test_a_changed_count_of_terms_or_numbers_is_found():
    vector = load_all([np.ones(20)])[0]
    for changed in (replace(vector, terms=2), replace(vector, numbers=19), replace(vector, numbers=21)):
        with pytest.raises(SealError, match=ALTERED):
            opened(changed)
    for numbers in (0, 13, 27, 2**32 - 1):
        with pytest.raises(SealError, match="bytes for"):
            scheme().adder().load(replace(vector, numbers=numbers).to_bytes())


def test_a_slot_out_of_reach_is_found():
    own, offset = scheme(), scheme().public.offset
    count = 1 << own.public.slot_bits
    assert opened(encrypted(count + offset + 5, own)) == [5]
    for slot in (3 * offset, own.public.offset + own.public.largest + 1):
        with pytest.raises(SealError, match="cannot reach"):
            opened(encrypted(count + slot, own))


def test_numbers_that_are_no_ciphertexts_are_refused():
    own = scheme()
    vector, n = load_all([np.ones(20)])[0], scheme().public.n
    for bad in (gmpy2.mpz(0), own._private.p * 7, n, n * n, n * n + 1):
        forged = replace(vector, ciphertexts=(vector.ciphertexts[0], bad))
        for take in (own.adder().load, own.client_key().open):
            with pytest.raises(SealError, match="not a ciphertext"):
                take(forged.to_bytes())


def test_truncated_and_foreign_bytes_are_refused():
    data = scheme().client_key().seal(np.ones(20))
    damaged = [b"", data[:10], data[: HEADER.size], data[:-1], data[:-128], data + b"\0", b"XXXX" + data[4:]]
    for bad in damaged:
        for take in (scheme().adder().load, scheme().client_key().open):
            with pytest.raises(SealError):
                take(bad)


# Privacy


def test_sealing_twice_gives_different_bytes():
    key = scheme().client_key()
    vectors = [scheme().adder().load(key.seal(np.zeros(30))) for _ in range(10)]
    every = [c for vector in vectors for c in vector.ciphertexts]
    assert len(set(every)) == len(every) == 30


def secret_forms(own):
    for secret in (own._private.p, own._private.q):
        number = int(secret)
        length = (number.bit_length() + 7) // 8
        yield number.to_bytes(length, "little")
        yield number.to_bytes(length, "big")
        yield str(number).encode()
        yield f"{number:x}".encode()


def test_the_servers_half_holds_no_secret():
    own = scheme()
    adder = own.adder()
    adder.subtract(adder.add(load_all([np.ones(3)] * 3)), load_all([np.ones(3)]))  # fills what is cached
    held = [pickle.dumps(adder, protocol) for protocol in range(6)] + [own.public_bytes()]
    held.append(pickle.dumps(load_all([np.ones(3)])))
    for form in secret_forms(own):
        assert not any(form in data for data in held)
    assert any(form in own.secret_bytes() for form in secret_forms(own))  # the search can find
    assert not any(hasattr(adder, name) for name in ("open", "decrypt", "key", "private", "_private"))
    again = pickle.loads(pickle.dumps(adder))
    assert again.add(load_all([np.ones(3)])).terms == 1


def test_what_holds_the_key_prints_only_its_name_and_is_not_pickled():
    own = scheme()
    name = own.public.key_name[:4]
    for holder in (own, own.client_key(), own._private, own._private.halves[0]):
        assert repr(holder) == f"<{type(holder).__name__.lstrip('_')} {name}…>" == str(holder)
        for send in (pickle.dumps, copy.copy, copy.deepcopy, lambda x: x.__getstate__()):
            with pytest.raises(TypeError, match="private key"):
                send(holder)
    assert repr(own.adder()) == f"<PaillierAdder {name}…>"
    vector = load_all([np.ones(3)])[0]
    assert repr(vector) == "PaillierVector(terms=1, numbers=3)"
    assert str(own.public.n) not in repr(own.public)


# Key files


def test_key_files_bring_back_both_halves():
    own = scheme()
    client = Paillier.from_bytes(own.secret_bytes(), insecure_for_tests=True)
    server = Paillier.adder_from_bytes(own.public_bytes(), insecure_for_tests=True)
    assert client.public == server.public == own.public
    total = server.add(server.load(key.client_key().seal(np.ones(3))) for key in (own, client))
    assert np.array_equal(client.client_key().open(total.to_bytes()), [2, 2, 2])


def test_short_keys_from_files_are_refused():
    for read, data in (
        (Paillier.from_bytes, scheme().secret_bytes()),
        (Paillier.adder_from_bytes, scheme().public_bytes()),
    ):
        with pytest.raises(SealError, match="512 bits is refused"):
            read(data)


def test_the_server_refuses_a_private_key_and_a_client_a_public_one():
    with pytest.raises(SealError, match="server must not hold"):
        Paillier.adder_from_bytes(scheme().secret_bytes())
    with pytest.raises(SealError, match="server's part"):
        Paillier.from_bytes(scheme().public_bytes())


@pytest.mark.parametrize("half", ["private", "public"])
def test_damaged_key_files_are_refused_without_showing_them(half):
    own = scheme()
    data = own.secret_bytes() if half == "private" else own.public_bytes()
    read = Paillier.from_bytes if half == "private" else Paillier.adder_from_bytes
    content = json.loads(data)
    number = "p" if half == "private" else "n"

    def changed(**parts):
        return json.dumps({**content, **parts}).encode()

    def resealed(**parts):
        body = {name: value for name, value in {**content, **parts}.items() if name != "sha256" and value}
        return json.dumps({**body, "sha256": _digest(body)}).encode()

    other = f"{int(content[number], 16) ^ 4:x}"
    cases = [
        (b"", "cut short"),
        (data[: len(data) // 2], "cut short"),
        (data[:-3], "cut short"),
        (b"\xff\xfe\x00", "cut short"),
        (b"[1, 2]", "cut short"),
        (b"{}", f"no Paillier {half} key"),
        (changed(format="ssh"), f"no Paillier {half} key"),
        (changed(version=2), "version"),
        (changed(**{number: other}), "damaged"),
        (changed(sha256=None), "damaged"),
        (changed(codec={**content["codec"], "max_terms": 99}), "damaged"),
        (resealed(codec=None), "lacks a part"),
        (resealed(codec={"bound": 4.0}), "lacks a part"),
        (resealed(**{number: "xyz"}), "lacks a part"),
        (resealed(**{number: "-5"}), "no part of a key"),
        (resealed(codec={**content["codec"], "max_terms": -1}), "cannot be used"),
        (resealed(codec={**content["codec"], "bound": 2.0**50}), "need slots"),
    ]
    if half == "private":
        cases.append((resealed(p=content["q"]), "not the primes"))
    for bad, message in cases:
        with pytest.raises(SealError, match=message) as caught:
            read(bad, insecure_for_tests=True)
        assert content[number][:12] not in str(caught.value)


def test_the_adder_is_built_from_the_public_key_alone():
    assert vars(PaillierAdder(scheme().public)) == {"public": scheme().public}
    assert set(scheme().public.__dataclass_fields__) == {"n", "codec"}
