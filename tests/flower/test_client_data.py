"""A site's own data: arrays, npz files, folders of images; what would be altered is refused."""

import numpy as np
import pytest

from flameche.data.image_folder import image_shape
from flameche.errors import DataError
from flameche.experiments.config import load_experiment
from flameche.experiments.deployment import OwnData, node_setup

flwr = pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flameche.flower.client_app import data_from_arrays, data_from_function, data_from_path  # noqa: E402


def images(n, shape=(8, 8), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


PLAIN = ["scheme.kind=plain"]
PAIR = (np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))


def test_samples_are_parted_once_and_for_all():
    x, y = images(50), np.arange(50) % 3
    one, other = (data_from_arrays({"x": x, "y": y}, "x", "3", 0, 4) for _ in range(2))
    assert len(one.train[1]) == 40 and len(one.test[1]) == 10 and one.classes == 3
    np.testing.assert_array_equal(one.train[0], other.train[0])
    whole = np.concatenate([one.train[0], one.test[0]])[:, 0]
    assert sorted(map(bytes, whole)) == sorted(map(bytes, x))
    elsewhere = data_from_arrays({"x": x, "y": y}, "x", "5", 0, 5)
    assert elsewhere.classes == 5 and not np.array_equal(elsewhere.test[0], one.test[0])


def test_a_site_without_the_last_class_fits_the_others(app):
    every, some = (np.arange(30) % n for n in (3, 2))
    found = []
    for number, y in enumerate((every, some)):
        own = data_from_function((images(30), y), "hooks:load", "ill, healthy, unknown", 0, number)
        work = node_setup(load_experiment(app / "experiment.toml", PLAIN), 0, number, lambda own=own: own)
        found.append((work.metadata().phi.shape, work.trainer().initial().params.shape))
    assert found[0] == found[1] and found[0][0][:2] == (1, 3)


@pytest.mark.parametrize(
    ("shape", "expected"), [((8, 9), (1, 8, 9)), ((8, 9, 3), (3, 8, 9)), ((3, 8, 9), (3, 8, 9))]
)
def test_channels_may_be_first_last_or_none(shape, expected):
    assert image_shape(images(2, shape), "x") == expected
    assert data_from_function((images(6, shape), np.zeros(6, int)), "x", "2", 0, 0).shape == expected


def test_a_hook_may_choose_its_test_samples():
    given = {
        "x": images(4),
        "y": np.array([0, 1, 0, 1]),
        "test_x": images(2, seed=1),
        "test_y": np.array([0, 2]),
    }
    own = data_from_function(given, "hooks:load", "3", 0, 0)
    assert (len(own.train[1]), len(own.test[1]), own.classes) == (4, 2, 3)


def test_an_npz_and_a_folder_of_images_are_read(tmp_path):
    from PIL import Image

    x, y = images(10, (8, 8)), np.arange(10) % 2
    np.savez(tmp_path / "site.npz", x=x, y=y)
    for n, (image, label) in enumerate(zip(x, y, strict=True)):
        folder = tmp_path / "site" / ("healthy" if label else "ill")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{n}.png")
    one = data_from_path(tmp_path / "site.npz", "2", 0, 0)
    other = data_from_path(tmp_path / "site", "ill, healthy", 0, 0)
    assert one.shape == other.shape == (1, 8, 8) and one.classes == other.classes == 2
    assert sorted(map(bytes, x[y == 1])) == sorted(
        bytes(image)
        for part in (other.train, other.test)
        for image, label in zip(*part, strict=True)
        if label
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: data_from_path(p / "no.npz", "3", 0, 0), "no such file"),
        (lambda p: data_from_path(p / "text.npz", "3", 0, 0), "not an npz"),
        (lambda p: data_from_path(p / "x.npz", "3", 0, 0), "missing y"),
        (lambda p: data_from_path(p / "empty", "3", 0, 0), "no images"),
        (lambda p: data_from_path(p / "named", "3", 0, 0), "not a class"),
        (lambda p: data_from_path(p / "sizes", "3", 0, 0), "one size"),
        (lambda p: data_from_function(3, "hooks:load", "3", 0, 0), "expected images and labels"),
        (lambda p: data_from_function((images(3), np.array([0, 1, 7])), "h", "3", 0, 0), "0 to 2"),
        (
            lambda p: data_from_function((np.ones((3, 9)), np.zeros(3, int)), "h", "3", 0, 0),
            "expected images",
        ),
        (
            lambda p: data_from_path(p / "sites.npz", "3", 0, 0),
            "holds site, which nothing reads.*test_x, test_y$",
        ),
        (
            lambda p: data_from_function({"x": 0, "y": 0, "test_x": 0}, "h", "3", 0, 0),
            "test_y belong together",
        ),
        (lambda p: data_from_function(OwnData(PAIR, PAIR, 5), "h", "3", 0, 0), 'of 5 classes.*classes = "3"'),
    ],
)
def test_data_that_do_not_fit_are_told_in_one_line(tmp_path, make, why):
    from PIL import Image

    (tmp_path / "text.npz").write_text("x")
    np.savez(tmp_path / "x.npz", x=images(3))
    np.savez(tmp_path / "sites.npz", x=images(3), y=np.zeros(3, int), site=np.arange(3))
    for folder in ("empty", "named/cats", "sizes/0"):
        (tmp_path / folder).mkdir(parents=True)
    Image.fromarray(images(1)[0]).save(tmp_path / "sizes/0/a.png")
    Image.fromarray(images(1, (9, 9))[0]).save(tmp_path / "sizes/0/b.png")
    with pytest.raises(DataError, match=why) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (np.full((4, 8, 8), 4095, np.uint16), [0, 1, 0, 1], "x is uint16.*from 4095 to 4095: rescale"),
        (np.full((4, 8, 8), 300), [0, 1, 0, 1], "x is int64.*from 300 to 300: rescale"),
        (np.full((4, 8, 8), -1), [0, 1, 0, 1], "x is int64.*from -1 to -1: rescale"),
        (np.full((4, 8, 8), 200), [0, 1, 0, 1], "x is int64.*from 200 to 200: use astype"),
        (np.full((4, 8, 8), 1.01), [0, 1, 0, 1], r"\[1.01, 1.01\].*rescale"),
        (np.full((4, 8, 8), -0.01), [0, 1, 0, 1], r"\[-0.01, -0.01\].*rescale"),
        (np.full((4, 8, 8), np.nan), [0, 1, 0, 1], "256 NaN"),
        (np.ma.masked_less(images(4), 9), [0, 1, 0, 1], "x has masked values"),
        (images(4), [0, 1.5, 0, 1], "y is float64, expected integers.*numbers the classes"),
        (images(4), [0.0, 1.0, 0.0, 1.0], "y is float64"),
        (images(4), [0, 1, np.nan, 1], "y is float64"),
        (images(4), [-1, 1, -1, 1], "y holds -1.*numbers them so"),
        (images(4), ["a", "b", "a", "b"], "y is <U1, expected integers"),
        (images(4), [True, False, True, False], "y is bool, expected integers"),
        (images(4), [0, 1, 2, 1], "y holds 2"),
    ],
)
def test_a_sites_arrays_that_would_be_altered_are_refused(tmp_path, x, y, why):
    ways = [lambda: data_from_function((x, np.array(y)), "hooks:load", "2", 0, 0)]
    if not np.ma.is_masked(x):  # an npz has no masks
        np.savez(tmp_path / "site.npz", x=x, y=np.array(y))
        ways.append(lambda: data_from_path(tmp_path / "site.npz", "2", 0, 0))
    for way in ways:
        with pytest.raises(DataError, match=why) as caught:
            way()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int64, np.uint64])
def test_floats_from_0_to_1_and_labels_of_any_integer_kind_are_taken_exactly(kind):
    x = np.array([0.0, 1.0, 1 / 255, 254 / 255]).reshape(4, 1, 1) * np.ones((4, 8, 8))
    own = data_from_function(
        {"x": x, "y": np.array([0, 1, 0, 1], kind), "test_x": x, "test_y": [0, 1, 0, 1]}, "h", "2", 0, 0
    )
    assert own.train[0][:, 0, 0, 0].tolist() == [0, 255, 1, 254] and own.train[0].dtype == np.uint8
    assert own.train[1].tolist() == [0, 1, 0, 1] and own.train[1].dtype == np.int64
