from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.crypto.envelope import HEADER, MAGIC, Envelope, fingerprint, pack, unpack
from flameche.errors import SealError

MARK = fingerprint("bfv", key="here", bound=64.0)
laws = settings(max_examples=100, deadline=None, derandomize=True)
envelopes = st.builds(Envelope, st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=200))
parameters = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=4), st.integers() | st.text(max_size=5), max_size=4
)


# Laws


@laws
@given(
    envelopes,
    st.sampled_from(["plain", "bfv", "ckks-paper", "twelve-chars"]),
    st.binary(min_size=8, max_size=8),
)
def test_bytes_bring_back_the_envelope(envelope, scheme, mark):
    assert unpack(pack(scheme, mark, envelope), scheme, mark) == envelope


@laws
@given(envelopes, st.data())
def test_cut_or_lengthened_bytes_are_refused(envelope, data):
    whole = pack("bfv", MARK, envelope)
    with pytest.raises(SealError, match=r"cut short|damaged"):
        unpack(whole[: data.draw(st.integers(0, len(whole) - 1))], "bfv", MARK)
    with pytest.raises(SealError, match="damaged"):
        unpack(whole + data.draw(st.binary(min_size=1, max_size=9)), "bfv", MARK)


@laws
@given(envelopes, st.integers(0, 8 * HEADER.size - 1))
def test_a_flipped_bit_of_the_header_is_refused_or_changes_only_the_counts(envelope, bit):
    changed = bytearray(pack("bfv", MARK, envelope))
    changed[bit // 8] ^= 1 << bit % 8
    if 24 <= bit // 8 < 32:  # terms and numbers, which each scheme checks against what is inside
        found = HEADER.unpack_from(changed)[3:5]
        assert found != (envelope.terms, envelope.numbers)
        if found[0]:
            assert unpack(bytes(changed), "bfv", MARK) == Envelope(*found, envelope.body)
    else:
        with pytest.raises(SealError):
            unpack(bytes(changed), "bfv", MARK)


@laws
@given(envelopes.filter(lambda envelope: envelope.body), st.data())
def test_a_flipped_bit_of_the_body_is_refused(envelope, data):
    changed = bytearray(pack("bfv", MARK, envelope))
    bit = data.draw(st.integers(8 * HEADER.size, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SealError, match="damaged: its checksum does not match"):
        unpack(bytes(changed), "bfv", MARK)


@laws
@given(st.binary(max_size=100))
def test_noise_is_never_read(noise):
    with pytest.raises(SealError):
        unpack(noise, "bfv", MARK)


@laws
@given(parameters, parameters)
def test_fingerprints_are_equal_exactly_when_the_parameters_are(one, other):
    reordered = dict(reversed(one.items()))
    assert fingerprint("bfv", **one) == fingerprint("bfv", **reordered)
    assert (fingerprint("bfv", **one) == fingerprint("bfv", **other)) == (one == other)
    assert fingerprint("bfv", **one) != fingerprint("ckks", **one)
    assert len(fingerprint("bfv", **one)) == 8


# A worked example


def test_a_worked_example_of_the_byte_form():
    data = pack("bfv", b"01234567", Envelope(terms=3, numbers=258, body=b"body"))
    counts = b"\3\0\0\0" + b"\2\1\0\0" + b"\4" + bytes(7)
    check = sha256(b"body").digest()[:8]
    assert data == b"FLM1" + b"bfv" + bytes(9) + b"01234567" + counts + check + b"body"
    assert HEADER.size == 48


# Boundaries: each refusal names its cause


def test_each_refusal_names_what_does_not_fit():
    data = pack("bfv", MARK, Envelope(2, 3, b"body"))
    other = fingerprint("bfv", key="elsewhere", bound=64.0)
    for bad, scheme, mark, why in (
        (b"", "bfv", MARK, "cut short: 0 bytes, its header alone has 48"),
        (data[:47], "bfv", MARK, "cut short: 47 bytes"),
        (b"FLM2" + data[4:], "bfv", MARK, "not a sealed vector of a version that is known"),
        (data, "ckks", MARK, "sealed under scheme 'bfv' was given to scheme 'ckks'"),
        (data, "bfv", other, f"other keys or parameters of 'bfv': {MARK.hex()}, here {other.hex()}"),
        (data[:-1], "bfv", MARK, "damaged: 3 bytes of body, expected 4"),
        (data + b"!", "bfv", MARK, "damaged: 5 bytes of body, expected 4"),
        (data[:-1] + b"Y", "bfv", MARK, "damaged: its checksum does not match"),
        (pack("bfv", MARK, Envelope(0, 3, b"")), "bfv", MARK, "sums no terms"),
    ):
        with pytest.raises(SealError, match=why):
            unpack(bad, scheme, mark)


def test_a_size_beyond_memory_is_refused_without_being_reserved():
    head = HEADER.pack(MAGIC, b"bfv".ljust(12, b"\0"), MARK, 1, 1, 2**64 - 1, bytes(8))
    with pytest.raises(SealError, match="damaged"):
        unpack(head + b"x", "bfv", MARK)


def test_a_scheme_name_that_is_not_text_is_refused_not_crashed_on():
    head = HEADER.pack(MAGIC, b"\xff" * 12, MARK, 1, 1, 0, sha256(b"").digest()[:8])
    with pytest.raises(SealError, match="was given to scheme 'bfv'"):
        unpack(head, "bfv", MARK)
