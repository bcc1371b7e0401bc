import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flameche.crypto.plain import Plain, PlainAdder, PlainKey, PlainVector
from flameche.errors import SealError

vectors = st.lists(arrays(np.float64, 6, elements=st.floats(-1e3, 1e3, width=32)), min_size=2, max_size=8)


@given(vectors)
def test_the_sum_of_sealed_terms_opens_to_the_sum_of_the_terms(terms):
    key, adder = Plain().client_key(), Plain().adder()
    total = adder.add(adder.load(key.seal(term)) for term in terms)
    assert np.allclose(key.open(total.to_bytes()), np.sum(terms, axis=0), rtol=0, atol=1e-9)
    assert total.terms == len(terms)


@given(vectors)
def test_taking_a_term_out_leaves_the_sum_of_the_others(terms):
    key, adder = PlainKey(), PlainAdder()
    held = [adder.load(key.seal(term)) for term in terms]
    left = adder.subtract(adder.add(held), [held[0]])
    assert left.terms == len(terms) - 1
    assert np.allclose(left.values, np.sum(terms[1:], axis=0), rtol=0, atol=1e-9)


@given(vectors)
def test_bytes_bring_back_the_same_vector(terms):
    key, adder = PlainKey(), PlainAdder()
    held = [adder.load(key.seal(term)) for term in terms]
    for sealed in (held[0], adder.add(held)):
        again = adder.load(sealed.to_bytes())
        assert again.terms == sealed.terms and np.array_equal(again.values, sealed.values)


def test_the_adder_has_no_way_to_open():
    adder = Plain().adder()
    assert not any(hasattr(adder, name) for name in ("open", "decrypt", "key", "secret"))


def test_a_vector_costs_four_bytes_a_number_and_a_header():
    assert len(PlainKey().seal(np.zeros(840))) == 4 * 840 + 48


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_refused(bad):
    with pytest.raises(SealError, match="NaN or infinite"):
        PlainKey().seal(np.array([1.0, bad]))
    with pytest.raises(SealError, match="NaN or infinite"):
        PlainAdder().load(PlainVector(np.array([1.0, bad])).to_bytes())


def test_nothing_different_lengths_and_damaged_bytes_are_refused():
    key, adder = PlainKey(), PlainAdder()
    with pytest.raises(SealError, match="nothing to add"):
        adder.add([])
    with pytest.raises(SealError, match="different lengths"):
        adder.add([adder.load(key.seal(np.zeros(n))) for n in (2, 3)])
    data = key.seal(np.ones(4))
    for damaged in (b"", data[:-1], data + b"\0", b"XXXX" + data[4:]):
        with pytest.raises(SealError):
            adder.load(damaged)
