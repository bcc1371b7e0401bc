import hashlib
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flameche.data import Dataset, available, download, load_dataset, sources
from flameche.data.formats import read_npz
from flameche.errors import ConfigError, DataError
from tests.made_datasets import cifar_set, idx_set, npz_set, tell


def test_the_embedded_digits_are_all_there_once_and_always_split_alike() -> None:
    a, b = load_dataset("digits"), load_dataset("digits")
    info = sources.SOURCES["digits"]
    assert (len(a.train_y), len(a.test_y)) == (info.train, info.test) and info.train + info.test == 1797
    assert a.train_x.shape[1:] == (1, 8, 8) and a.train_x.max() == 255 and a.note == ""
    np.testing.assert_array_equal(a.train_x, b.train_x)
    shares = np.bincount(a.test_y) / (np.bincount(a.test_y) + np.bincount(a.train_y))
    assert np.abs(shares - 0.25).max() < 0.01


def test_digit_values_are_scaled_exactly() -> None:
    values = set(np.unique(load_dataset("digits").train_x).tolist())
    assert values == {round(v * 255 / 16) for v in range(17)}


@pytest.mark.parametrize("packed", [False, True])
def test_idx_sets_load_packed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    idx_set(tmp_path, monkeypatch, packed=packed)
    data = load_dataset("mnist", folder=tmp_path)
    assert data.train_x.shape == (20, 1, 28, 28) and data.test_y.shape == (10,)
    assert data.train_x.flags.writeable and data.classes == 10


def test_fashion_never_reads_mnist_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_set(tmp_path, monkeypatch, packed=False, name="mnist")
    fashion = replace(sources.SOURCES["fashion-mnist"], also=())
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", fashion)
    with pytest.raises(DataError, match="Fashion-MNIST is not there"):
        load_dataset("fashion-mnist", folder=tmp_path)
    (tmp_path / "mnist").rename(tmp_path / "fashion-mnist")
    with pytest.raises(DataError, match=fashion.files[sources.TRAIN_X].content.partition(":")[2]):
        load_dataset("fashion-mnist", folder=tmp_path)


def test_a_system_folder_is_searched_after_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_set(tmp_path / "system", monkeypatch, packed=True, name="fashion-mnist")
    source = replace(sources.SOURCES["fashion-mnist"], also=(str(tmp_path / "system/fashion-mnist"),))
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", source)
    assert len(load_dataset("fashion-mnist", folder=tmp_path / "user").train_y) == 20


@pytest.mark.parametrize("change", ["flip", "cut"])
def test_a_tampered_or_truncated_file_is_named_with_both_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    idx_set(tmp_path, monkeypatch, packed=False)
    path = tmp_path / "mnist" / sources.TEST_Y
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content) if change == "flip" else bytes(content[:-1]))
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", folder=tmp_path)
    expected = sources.SOURCES["mnist"].files[sources.TEST_Y].content.partition(":")[2]
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    text = str(caught.value)
    assert str(path) in text and expected in text and found in text and "delete it" in text
    assert "\n" not in text


@pytest.mark.parametrize("version", [sources.CIFAR_BIN, sources.CIFAR_PY])
def test_cifar_loads_from_either_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    cifar_set(tmp_path, monkeypatch, version)
    data = load_dataset("cifar10", folder=tmp_path)
    assert data.train_x.shape == (20, 3, 32, 32) and data.test_x.shape == (4, 3, 32, 32)
    first = np.random.default_rng(0).integers(0, 10, (4, 3073), dtype=np.uint8)
    np.testing.assert_array_equal(data.train_x[:4].reshape(4, -1), first[:, 1:])
    np.testing.assert_array_equal(data.train_y[:4], first[:, 0])


def test_a_tampered_pickle_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_set(tmp_path, monkeypatch, sources.CIFAR_PY)
    (tmp_path / sources.CIFAR_PY / "data_batch_1").write_bytes(pickle.dumps(print))

    def never(*_: object) -> None:
        raise AssertionError("a file with a wrong checksum was unpickled")

    monkeypatch.setattr("flameche.data.datasets.parse_cifar_pickle", never)
    with pytest.raises(DataError, match="expected md5"):
        load_dataset("cifar10", folder=tmp_path)


def test_missing_files_are_listed_with_the_place_they_belong(tmp_path: Path) -> None:
    for name, file, place in (
        ("mnist", sources.TEST_X, tmp_path / "mnist"),
        ("cifar10", "cifar-10-batches-bin/data_batch_3.bin", tmp_path),
        ("pathmnist", "pathmnist.npz", tmp_path),
        ("mednist28", "mednist28.npz", tmp_path),
    ):
        with pytest.raises(DataError) as caught:
            load_dataset(name, folder=tmp_path)
        text = str(caught.value)
        assert file in text and str(place) in text and "FLAMECHE_OFFLINE" in text and "\n" not in text


def test_only_the_file_that_is_missing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_set(tmp_path, monkeypatch, packed=True)
    (tmp_path / "mnist" / f"{sources.TRAIN_Y}.gz").unlink()
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", folder=tmp_path)
    assert sources.TRAIN_Y in str(caught.value) and sources.TRAIN_X not in str(caught.value)


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_set(tmp_path, monkeypatch, packed=False)
    monkeypatch.setenv("FLAMECHE_DATA", str(tmp_path))
    assert len(load_dataset("mnist").train_y) == 20


def test_a_failed_download_ends_in_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMECHE_OFFLINE", "0")
    tried = []

    def no_network(url: str, *_: object) -> Path:
        tried.append(url)
        raise ConnectionError("Max retries exceeded\nwith a long tail")

    monkeypatch.setattr(download, "_retrieve", no_network)
    with pytest.raises(DataError, match=r"put train-images.*failed: ConnectionError") as caught:
        load_dataset("mnist", folder=tmp_path)
    assert tried == ["https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"]
    assert "\n" not in str(caught.value)


def test_a_download_is_used_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_set(tmp_path / "server", monkeypatch, packed=True)
    monkeypatch.setenv("FLAMECHE_OFFLINE", "")

    def copy(url: str, known_hash: str, folder: Path, name: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((tmp_path / "server/mnist" / name).read_bytes())
        return folder / name

    monkeypatch.setattr(download, "_retrieve", copy)
    assert len(load_dataset("mnist", folder=tmp_path / "cache").test_y) == 10


def test_the_cifar_archive_is_unpacked_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar_set(tmp_path / "server", monkeypatch, sources.CIFAR_BIN)
    monkeypatch.setenv("FLAMECHE_OFFLINE", "")

    def pack(url: str, known_hash: str, folder: Path, name: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / name, "w:gz") as tar:
            tar.add(tmp_path / "server" / sources.CIFAR_BIN, sources.CIFAR_BIN)
        return folder / name

    monkeypatch.setattr(download, "_retrieve", pack)
    assert len(load_dataset("cifar10", folder=tmp_path / "cache").train_y) == 20
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [sources.CIFAR_BIN]


def test_an_npz_that_is_neither_published_nor_known_is_refused(tmp_path: Path) -> None:
    npz_set(tmp_path / "pathmnist.npz", classes=9)
    with pytest.raises(DataError, match=r"another checksum.*data\.path"):
        load_dataset("pathmnist", folder=tmp_path)
    info = next(i for i in available(tmp_path) if i.name == "pathmnist")
    assert info.found and "not the published file" in info.note and (info.train, info.test) == (18, 18)


def test_a_known_copy_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz_set(tmp_path / "pathmnist.npz", classes=9)
    (x, y), (test_x, test_y), _ = read_npz(tmp_path / "pathmnist.npz", "val")
    digests = [hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest() for a, b in ((x, y), (test_x, test_y))]
    known = {digests[1]: "", digests[0]: "cut"}
    monkeypatch.setitem(sources.SOURCES, "pathmnist", replace(sources.SOURCES["pathmnist"], known=known))
    assert load_dataset("pathmnist", folder=tmp_path).note == "cut"


def test_the_published_npz_needs_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz_set(tmp_path / "pathmnist.npz", classes=9)
    tell(monkeypatch, "pathmnist", {"pathmnist.npz": (tmp_path / "pathmnist.npz").read_bytes()}, "md5")
    assert load_dataset("pathmnist", folder=tmp_path).note == ""


def test_an_npz_with_other_labels_or_shape_is_not_the_named_set(tmp_path: Path) -> None:
    npz_set(tmp_path / "pathmnist.npz", classes=10)
    with pytest.raises(DataError, match="a label is 9"):
        load_dataset("pathmnist", folder=tmp_path)
    npz_set(tmp_path / "mednist28.npz", classes=6)
    with pytest.raises(DataError, match=r"images are \[3, 28, 28\]"):
        load_dataset("mednist28", folder=tmp_path)


def test_available_lists_every_set_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "pathmnist.npz").write_bytes(b"PK, but not for long")
    infos = {info.name: info for info in available(tmp_path)}
    assert list(infos) == list(sources.SOURCES)
    assert infos["digits"].found and infos["digits"].missing == ""
    assert not infos["mnist"].found and str(tmp_path / "mnist") in infos["mnist"].missing
    assert not infos["pathmnist"].found and "damaged" in infos["pathmnist"].missing


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fashion-mnist'"):
        load_dataset("fashionmnist")


def test_a_set_without_val_refuses_it() -> None:
    with pytest.raises(DataError, match="no val split"):
        load_dataset("digits", test_split="val")
    with pytest.raises(DataError, match="did you mean 'test'"):
        load_dataset("digits", test_split="tset")


def test_a_dataset_made_by_hand_is_checked() -> None:
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    Dataset("ok", 2, x, y, x, y)
    for bad in ((x.astype(float), y, x, y), (x, y[:3], x, y), (x, y + 1, x, y), (x, y, x[:, :, :1], y)):
        with pytest.raises(DataError):
            Dataset("bad", 2, *bad)
