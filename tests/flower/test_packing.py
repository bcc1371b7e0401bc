"""Laws of messages: what goes into records comes out, after Flower's own wire too; garbage does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

flwr = pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # noqa: E402
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto  # noqa: E402

from flameche.errors import FlamecheError  # noqa: E402
from flameche.flower import transport  # noqa: E402
from flameche.flower.transport import Packer, pack, unpack  # noqa: E402
from flameche.network.message import Message  # noqa: E402

WORDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
DTYPES = st.sampled_from(["u1", "i8", "f4", "f8", "f2", "?", "c16", "<U3", "S2", ">f8", "<i2"])
ARRAYS = DTYPES.flatmap(
    lambda d: hnp.arrays(np.dtype(d), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


def assert_same(found, given):
    assert found.head == given.head
    assert list(found.arrays) == list(given.arrays)
    for name, array in given.arrays.items():
        got = found.arrays[name]
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=6), WORDS, max_size=4),
    st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4),
)
def test_a_round_trip_changes_nothing(head, arrays):
    parcel = Message(head, arrays)
    over_the_wire = recorddict_from_proto(recorddict_to_proto(pack(parcel)))
    assert_same(unpack(pack(parcel)), parcel)
    assert_same(unpack(over_the_wire), parcel)


def test_large_arrays_travel_alone_and_nothing_changes(monkeypatch):
    monkeypatch.setattr(transport, "SMALL", 64)
    monkeypatch.setattr(transport, "BUNDLE", 100)
    arrays = {f"a/{n}": np.arange(n, dtype=np.float32) for n in (3, 200, 0, 15, 15, 1)}
    arrays["b"] = np.arange(15, dtype=np.float32)
    packed = pack(Message({}, arrays))
    assert (
        len(packed[transport.ARRAYS]) == 2
    )  # 200 numbers; the third of 60 bytes, for which there was no room
    assert_same(unpack(packed), Message({}, arrays))


def test_an_array_for_many_nodes_is_written_once():
    model, packer = np.ones(300_000), Packer()
    one, other = (packer.pack(Message({"to": n}, {"model": model}))[transport.ARRAYS]["0"] for n in (0, 1))
    assert one.data is other.data


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda r: r.clear(), "not flameche's"),
        (lambda r: r.__setitem__(transport.HEAD, ArrayRecord()), "not flameche's"),
        (lambda r: r[transport.HEAD].__setitem__("version", 2), "version 2, this flameche reads 1"),
        (lambda r: r[transport.HEAD].__setitem__("version", "x" * 500), "version 'xxx"),
        (lambda r: r[transport.HEAD].__setitem__("words", "[1"), "not a JSON object"),
        (lambda r: r[transport.HEAD].__setitem__("words", "[" * 100_000), "not a JSON object"),
        (lambda r: r[transport.HEAD].__setitem__("words", b"{}"), "not a JSON object"),
        (lambda r: r[transport.HEAD].__setitem__("words", '{"head": {}}'), "does not name its arrays"),
        (lambda r: r[transport.HEAD].__setitem__("bundle", b"\x93NUMPY"), "cannot be read"),
        (
            lambda r: r[transport.HEAD].__setitem__("bundle", r[transport.HEAD]["bundle"] + b"x"),
            "cannot be read",
        ),
        (lambda r: r[transport.HEAD].__setitem__("bundle", 7), "cannot be read"),
        (lambda r: r.__setitem__(transport.ARRAYS, ConfigRecord()), "not flameche's"),
        (lambda r: r[transport.ARRAYS].__delitem__("0"), "cannot be read"),
        (
            lambda r: r[transport.ARRAYS].__setitem__(
                "0", Array("float32", (1,), "numpy.ndarray", b"nothing")
            ),
            "cannot be read",
        ),
    ],
)
def test_garbage_is_refused_in_one_line(spoil, why):
    packed = pack(Message({"what": "round"}, {"a": np.ones(3), "large": np.zeros(300_000)}))
    spoil(packed)
    with pytest.raises(FlamecheError, match=why) as caught:
        unpack(packed)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 200


def test_a_pickle_does_not_run():
    data = np.array([print], dtype=object)
    import io

    file = io.BytesIO()
    np.save(file, data, allow_pickle=True)
    packed = pack(Message({}, {"a": np.ones(1)}))
    packed[transport.HEAD]["bundle"] = file.getvalue()
    with pytest.raises(FlamecheError, match="cannot be read"):
        unpack(packed)


def test_other_records_are_not_taken_for_ours():
    with pytest.raises(FlamecheError, match="not flameche's"):
        unpack(RecordDict({"arrays": ArrayRecord([np.ones(2)])}))
