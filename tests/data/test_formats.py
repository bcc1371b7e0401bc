import gc
import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flameche.data import formats, load_npz
from flameche.errors import DataError

HERE = Path("some-file")


def idx(values: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_npz(path: Path, **replace: Any) -> Path:
    arrays: dict[str, Any] = {}
    for split, n in (("train", 12), ("val", 6), ("test", 3)):
        arrays[f"{split}_images"] = np.full((n, 5, 4, 3), n, np.uint8)
        arrays[f"{split}_labels"] = (np.arange(n) % 3).astype(np.uint8)[:, None]
    arrays.update(replace)
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_idx_reads_back_what_the_format_says() -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(formats.parse_idx(HERE, idx(values), 3), values)


@pytest.mark.parametrize("cut", [0, 3, 10, 39])
def test_a_truncated_idx_is_refused(cut: int) -> None:
    content = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    with pytest.raises(DataError, match="some-file"):
        formats.parse_idx(HERE, content[:cut], 3)


def test_labels_in_place_of_images_are_refused() -> None:
    with pytest.raises(DataError, match="starts with 00000803, found 00000801"):
        formats.parse_idx(HERE, idx(np.zeros(24, np.uint8)), 3)


def test_a_truncated_gz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(4000))[:2000])
    with pytest.raises(DataError, match="cannot be read"):
        formats.read_content(path)
    path.write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match="cannot be read"):
        formats.read_content(path)


def test_cifar_binary_and_python_rows_are_the_same_images() -> None:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (4, 3072), dtype=np.uint8), [3, 0, 9, 1]
    binary = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], 1).tobytes()
    python = pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"x"}, protocol=3)
    for x, y in (formats.parse_cifar_binary(HERE, binary), formats.parse_cifar_pickle(HERE, python)):
        np.testing.assert_array_equal(x, pixels.reshape(4, 3, 32, 32))
        assert y.tolist() == labels and y.dtype == np.int64


def test_a_cifar_file_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(DataError, match="rows of 3073 bytes, found 3074"):
        formats.parse_cifar_binary(HERE, bytes(3074))


def test_a_pickle_may_not_call_anything(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    for content in (pickle.dumps(Touch()), b"", b"garbage"):
        with pytest.raises(DataError, match="not a CIFAR-10 batch"):
            formats.parse_cifar_pickle(HERE, content)
    assert not (tmp_path / "touched").exists()


def test_npz_takes_val_as_its_test_pool_unless_told(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz")
    data = load_npz(path)
    assert data.train_x.shape == (12, 3, 5, 4) and data.test_x.shape == (6, 3, 5, 4)
    assert data.name == "own:mine" and data.classes == 3 and data.train_y.shape == (12,)
    assert len(load_npz(path, test_split="test").test_y) == 3
    assert len(load_npz(path, test_split="val").test_y) == 6


def test_npz_takes_grey_images_flat_labels_and_floats(tmp_path: Path) -> None:
    grey = {f"{s}_images": np.full((n, 5, 4), 0.5) for s, n in (("train", 12), ("val", 6), ("test", 3))}
    data = load_npz(write_npz(tmp_path / "a.npz", **grey, train_labels=np.arange(12) % 3))
    assert data.train_x.shape == (12, 1, 5, 4)
    assert set(data.train_x.ravel().tolist()) == {128}  # 127.5 rounds to even


def test_npz_counts_classes_over_all_splits(tmp_path: Path) -> None:
    later = {"val_labels": np.array([3, 4, 0, 1, 2, 3]), "test_labels": np.array([0, 6, 5])}
    assert load_npz(write_npz(tmp_path / "a.npz", **later)).classes == 7


def floats(value: float) -> np.ndarray[Any, Any]:
    x = np.full((12, 5, 4, 3), 0.5, np.float32)
    x[3, 2, 1, 0] = value
    return x


@pytest.mark.parametrize(
    ("replace", "says"),
    [
        ({"train_images": floats(float("nan"))}, "train_images has 1 NaN"),
        ({"train_images": floats(float("inf"))}, r"expected floats in \[0, 1\]"),
        ({"train_images": floats(-0.1)}, r"expected floats in \[0, 1\]"),
        ({"train_images": floats(1.0000001)}, r"ranges over \[0\.5, 1\.00000012\]"),
        ({"train_images": np.zeros((12, 5, 4, 3), np.int64)}, "is int64, expected uint8"),
        ({"train_images": np.full((12, 5, 4, 3), 256)}, "from 256 to 256: rescale"),
        ({"val_images": np.full((6, 5, 4, 3), 65535, np.uint16)}, "val_images is uint16.*rescale"),
        ({"train_images": np.full((12, 5, 4, 3), -1, np.int8)}, "from -1 to -1: rescale"),
        ({"train_images": np.zeros((12, 5, 4, 3), bool)}, "is bool, expected uint8"),
        ({"train_images": np.zeros((12, 3, 28, 28), np.uint8)}, "1 to 4 channels"),
        ({"train_images": np.zeros((12, 20), np.uint8)}, "has shape"),
        ({"train_images": np.zeros((11, 5, 4, 3), np.uint8)}, "11 images but 12 labels"),
        ({"val_images": np.zeros((6, 9, 9, 3), np.uint8)}, "as in training"),
        ({"train_labels": np.full(12, -1)}, "train_labels holds -1"),
        ({"train_labels": np.full(12, 2**40)}, "train_labels holds 1099511627776"),
        ({"train_labels": np.full(12, 255)}, "a label is 255"),
        ({"train_labels": np.zeros(12)}, "is float64, expected integers"),
        ({"train_labels": np.arange(12) % 2 + 0.5}, "is float64, expected integers.*numbers the classes"),
        ({"train_labels": np.array(["ill"] * 12)}, "is <U3, expected integers"),
        ({"train_labels": np.arange(12) % 2 * 2 - 1}, "train_labels holds -1.*numbers them so"),
        ({"test_labels": np.array([0, 1, 4])}, "no sample has label 3.*without gaps"),
        (
            {"client": np.zeros(12, int)},
            "holds client, which nothing reads.*train_images, .*`flameche deploy`",
        ),
        ({"train_site": np.zeros(12, int), "notes": np.zeros(1)}, "holds train_site, notes, which nothing"),
        ({"train_labels": np.zeros((12, 14), int)}, "one label per image"),
        ({"train_labels": np.zeros((0, 1), int)}, "is empty"),
        ({"train_labels": None}, "missing train_labels"),
        ({"train_images": None, "train_labels": None}, "missing train_images, train_labels"),
        (
            {"val_images": None, "val_labels": None},
            'missing val_images, val_labels; set data.test_split = "test"',
        ),
        ({"train_labels": np.array([object()] * 12)}, "damaged"),
    ],
)
def test_a_bad_npz_is_refused_in_one_line(tmp_path: Path, replace: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        load_npz(write_npz(tmp_path / "bad.npz", **replace))
    assert "\n" not in str(caught.value) and "bad" in str(caught.value)


LEVELS = np.arange(12).reshape(12, 1, 1) / 11 * np.ones((12, 5, 4))


@pytest.mark.parametrize(
    ("x", "left"),
    [
        (LEVELS * 0.001, "1 value;"),
        (LEVELS.astype(np.float16) * np.float16(0.001), "1 value;"),
        (0.5 + LEVELS * 1e-4, "1 value;"),
        (LEVELS * 1e-9, "1 value;"),
        (np.linspace(0, 0.05, 240).reshape(12, 5, 4), "14 values;"),
        (np.arange(240).reshape(12, 5, 4) / 65535, "2 values;"),  # 16 bits, of which the lower half is used
    ],
)
def test_floats_that_8_bits_would_lose_are_refused(
    tmp_path: Path, x: np.ndarray[Any, Any], left: str
) -> None:
    with pytest.raises(DataError, match=f"round to {left} rescale to all of") as caught:
        load_npz(write_npz(tmp_path / "a.npz", train_images=x))
    assert "a.npz" not in caught.value.public and "8 bits lose them" in caught.value.public


@pytest.mark.parametrize(
    "x",
    [
        np.full((12, 5, 4), 0.3),
        LEVELS > 0.5,
        (LEVELS > 0.5) * (1 - np.arange(240).reshape(12, 5, 4) * 1e-8),  # rounding errors of a mask
        LEVELS * 11 / 255,
        np.linspace(0, 1, 240).reshape(12, 5, 4),
    ],
)
def test_floats_of_few_values_are_taken(tmp_path: Path, x: np.ndarray[Any, Any]) -> None:
    grey = {f"{split}_images": x.astype(float)[:n] for split, n in (("train", 12), ("val", 6), ("test", 3))}
    data = load_npz(write_npz(tmp_path / "a.npz", **grey, train_labels=np.arange(12) % 3))
    assert np.abs(data.train_x[:, 0] / 255 - x).max() <= 0.5 / 255 + 1e-9


@pytest.mark.parametrize("kind", [np.uint8, np.int64])
def test_floats_from_0_to_1_and_labels_of_any_integer_kind_are_taken_exactly(
    tmp_path: Path, kind: type
) -> None:
    x = (np.arange(12) / 11).reshape(12, 1, 1) * np.ones((12, 5, 4))
    arrays = {f"{split}_images": x for split in ("train", "val", "test")}
    arrays |= {f"{split}_labels": (np.arange(12) % 3).astype(kind) for split in ("train", "val", "test")}
    data = load_npz(write_npz(tmp_path / "a.npz", **arrays))
    assert data.train_x[:, 0, 0, 0].tolist() == [round(255 * n / 11) for n in range(12)]
    assert data.train_y.tolist() == [0, 1, 2] * 4 and data.train_y.dtype == np.int64


@pytest.mark.filterwarnings("always::ResourceWarning")
def test_a_damaged_npz_is_closed_again(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = write_npz(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(DataError, match="damaged"):
        formats.npz_counts(path)
    gc.collect()
    assert not recwarn.list


def test_a_truncated_overwritten_or_missing_npz_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not an npz file, or truncated"):
        load_npz(path)
    damaged = bytearray(whole)
    damaged[400] ^= 255  # inside the first array: the zip's own checksum no longer fits
    path.write_bytes(bytes(damaged))
    with pytest.raises(DataError, match="damaged"):
        load_npz(path)
    path.write_bytes(b"\x93NUMPY, or so it says")
    with pytest.raises(DataError, match="not an npz"):
        load_npz(path)
    with pytest.raises(DataError, match="no such file"):
        load_npz(tmp_path / "none.npz")
