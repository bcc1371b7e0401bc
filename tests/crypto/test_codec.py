import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flameche.crypto.codec import (
    LEAST_FRACTION,
    MOST_FRACTION,
    PLAIN_MODULUS,
    WANTED_FRACTION,
    FixedPoint,
    exact_codec,
)
from flameche.errors import OverflowBudget, SealError

BOUND = 4.0
laws = settings(max_examples=150, deadline=None, derandomize=True)
codecs = st.builds(
    FixedPoint, st.just(BOUND), st.just(50), st.integers(LEAST_FRACTION, MOST_FRACTION)
)  # 40 + 3 + 6 bits: all sums are exact floats
values = st.floats(-BOUND, BOUND) | st.sampled_from([-BOUND, BOUND, 0.0, -0.0, 5e-324])
groups = st.integers(0, 6).flatmap(
    lambda size: st.lists(arrays(np.float64, size, elements=values), min_size=1, max_size=50)
)


# Laws


@laws
@given(codecs, groups)
def test_the_sum_of_encoded_values_decodes_to_the_integer_sum_without_any_error(codec, vectors):
    total = np.sum([codec.encode(vector) for vector in vectors], axis=0)
    exact = [sum(column) for column in zip(*(codec.encode(v).tolist() for v in vectors), strict=True)]
    decoded = codec.decode(total)
    assert [math.ldexp(value, codec.fraction_bits) for value in decoded] == exact


@laws
@given(codecs, groups)
def test_a_decoded_sum_is_within_a_tolerance_per_term_of_the_real_one(codec, vectors):
    total = codec.decode(np.sum([codec.encode(vector) for vector in vectors], axis=0))
    real = np.array([math.fsum(column) for column in zip(*vectors, strict=True)])
    assert (np.abs(total - real) <= len(vectors) * codec.tolerance * (1 + 1e-9)).all()


@laws
@given(codecs, arrays(np.float64, 5, elements=values))
def test_encoding_is_odd_and_decoded_values_encode_to_themselves(codec, vector):
    encoded = codec.encode(vector)
    assert np.array_equal(codec.encode(-vector), -encoded)
    assert np.array_equal(codec.encode(codec.decode(encoded)), encoded)
    assert encoded.dtype == np.int64


@laws
@given(st.floats(1e-3, 1e4), st.integers(1, 2000), st.integers(36, 63))
@example(bound=64.0, max_terms=511, slot_bits=36)
@example(bound=1.0, max_terms=1, slot_bits=36)
@example(bound=32767.0, max_terms=1, slot_bits=36)  # bound * terms + 1 is a power of two
def test_the_fraction_is_the_finest_for_which_the_largest_sums_fit_signed_slots(bound, max_terms, slot_bits):
    check_finest(bound, max_terms, slot_bits, 2 ** (slot_bits - 1) - 1)


@laws
@given(st.floats(1e-3, 1e4), st.integers(1, 2000), st.integers(2**30, 2**62))
@example(bound=2.0**31 - 1, max_terms=1, limit=(PLAIN_MODULUS[44] - 1) // 2)
def test_a_limit_takes_the_place_of_the_slots(bound, max_terms, limit):
    check_finest(bound, max_terms, 63, limit)


def check_finest(bound, max_terms, slot_bits, limit):
    """The largest sum is at most the limit; with one fraction bit more it would not be."""
    try:
        codec = FixedPoint.fitting(bound, max_terms, slot_bits, limit)
    except OverflowBudget:
        assert FixedPoint(bound, max_terms, LEAST_FRACTION).largest_sum > limit
        return
    assert (codec.bound, codec.max_terms) == (bound, max_terms)
    assert LEAST_FRACTION <= codec.fraction_bits <= MOST_FRACTION
    highest, lowest = codec.encode(np.array([bound, -bound])).tolist()
    assert max_terms * highest <= codec.largest_sum <= limit
    assert max_terms * lowest >= -codec.largest_sum
    assert codec.largest_sum <= max_terms * (bound * 2.0**codec.fraction_bits + 1.5)  # and not wasteful
    assert codec.slot_bits <= slot_bits
    if codec.fraction_bits < MOST_FRACTION:
        assert FixedPoint(bound, max_terms, codec.fraction_bits + 1).largest_sum > limit


@laws
@given(st.floats(1e-3, 1e9), st.integers(1, 5000))
@example(bound=2.0**31 - 1, max_terms=1)
@example(bound=64.0, max_terms=511)
@example(bound=64.0, max_terms=512)
def test_the_exact_codec_fits_its_modulus_and_is_the_small_one_while_that_is_fine_enough(bound, max_terms):
    small, large = (
        None
        if FixedPoint(bound, max_terms, LEAST_FRACTION).largest_sum > (modulus - 1) // 2
        else FixedPoint.fitting(bound, max_terms, bits, (modulus - 1) // 2)
        for bits, modulus in PLAIN_MODULUS.items()
    )
    if large is None:
        with pytest.raises(OverflowBudget, match="leave fewer than 10 fraction bits of 44"):
            exact_codec(bound, max_terms)
    elif small is not None and small.fraction_bits >= WANTED_FRACTION:
        assert exact_codec(bound, max_terms) == (small, 36)
    else:
        assert exact_codec(bound, max_terms) == (large, 44)


# Worked examples


def test_a_worked_example_of_encoding():
    codec = FixedPoint(bound=2.0, max_terms=3, fraction_bits=10)
    assert codec.encode(np.array([1.0, -2.0, 0.5, 1 / 1024, 1 / 4096])).tolist() == [1024, -2048, 512, 1, 0]
    assert codec.decode(np.array([1536, -1])).tolist() == [1.5, -1 / 1024]
    assert codec.tolerance == 1 / 2048
    assert codec.slot_bits == 10 + 1 + 3  # sums up to 6 need three bits, and a sign


def test_a_hundred_clients_up_to_64_leave_22_bits_of_36():
    codec = FixedPoint.fitting(64.0, 100, 36)
    assert codec == FixedPoint(64.0, 100, 22)  # 6400 needs 13 bits: 36 - 1 - 13


def test_wide_slots_do_not_make_fractions_finer_than_40_bits():
    assert FixedPoint.fitting(1.0, 1, 63).fraction_bits == MOST_FRACTION


# Boundaries


def test_values_at_the_bound_pass_and_the_next_float_does_not():
    codec = FixedPoint(BOUND, 2, 20)
    assert codec.encode(np.array([BOUND, -BOUND])).tolist() == [4 << 20, -(4 << 20)]
    for value in (np.nextafter(BOUND, 9), -np.nextafter(BOUND, 9)):
        with pytest.raises(OverflowBudget, match="exceeds the declared bound 4"):
            codec.encode(np.array([0.0, value]))


def test_the_message_names_the_largest_magnitude_and_the_bound():
    with pytest.raises(OverflowBudget, match=r"magnitude 7\.25 exceeds the declared bound 4$"):
        FixedPoint(BOUND, 2, 20).encode(np.array([5.0, -7.25, 1.0]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_and_not_as_an_overflow(bad):
    with pytest.raises(SealError, match="NaN or infinite") as refused:
        FixedPoint(BOUND, 2, 20).encode(np.array([0.0, bad]))
    assert not isinstance(refused.value, OverflowBudget)


def test_an_empty_vector_is_encoded_to_an_empty_one():
    assert FixedPoint(BOUND, 2, 20).encode(np.zeros(0)).tolist() == []


def test_as_many_terms_as_declared_pass_and_one_more_is_refused_with_both_numbers():
    codec = FixedPoint(BOUND, 17, 20)
    codec.check_terms(17)
    with pytest.raises(OverflowBudget, match="sum of 18 terms, but slots were made for 17"):
        codec.check_terms(18)


def test_slots_without_room_for_ten_fraction_bits_are_refused_with_the_numbers():
    assert FixedPoint.fitting(2.0**24, 1, 36).fraction_bits == 10
    with pytest.raises(
        OverflowBudget, match=r"2 terms up to 1\.67772e\+07 leave fewer than 10 .* bits of 36"
    ):
        FixedPoint.fitting(2.0**24, 2, 36)


def test_the_rounding_of_every_term_is_in_the_largest_sum():
    bound = (2**15 - 0.5) * 2.0**-10  # rounds up to 2**15
    codec = FixedPoint(bound, 2**4, 10)
    assert codec.encode(np.array([bound])).tolist() == [2**15]
    assert codec.largest_sum >= 2**19
    assert FixedPoint.fitting(bound, 2**4, 20 + 1).fraction_bits == 10
    with pytest.raises(OverflowBudget):
        FixedPoint.fitting(bound, 2**4, 20)
