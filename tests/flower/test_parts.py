"""The small parts: settings, a site's data, certificates, agreed apps, pauses, the operator's line."""

import hashlib
import json
import math
import runpy
import ssl
import struct
import time
import zlib

import numpy as np
import pytest

from flameche.errors import BadInput, ConfigError, DataError, FlamecheError
from flameche.experiments.config import load_experiment
from flameche.experiments.deployment import OwnData, node_work
from flameche.flower.live import Live, line, numbers
from flameche.flower.own_data import from_arrays, from_hook, from_path, image_shape, read_image
from flameche.flower.settings import Own, Serving, Shared, hook, in_app
from flameche.flower.template import write_app

flwr = pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flameche.flower.agreed import AGREED, app_hash, clientapp  # noqa: E402
from flameche.flower.certificates import make_certificates, make_node_key  # noqa: E402
from flameche.flower.local import Local, digits_app, run_of  # noqa: E402
from flameche.flower.prompt import Pauses  # noqa: E402

RECORD = {
    "round": 3, "accuracy": 0.875, "sizes": [5, 3], "participants": [0, 1, 2, 5, 7, 8], "reclustered": True,
    "bytes_up": 3_000_000, "bytes_down": 5_000_000, "lost": {"4": "offline"},
}  # fmt: skip


@pytest.fixture
def app(tmp_path, monkeypatch):
    folder = digits_app(tmp_path / "app")
    monkeypatch.syspath_prepend(str(folder))
    return folder


# Settings


def test_an_app_and_its_changes_are_read(app):
    shared = Shared.read({"set": "rounds=5 scheme.kind=plain", "seed": 3, "data": "simulated"})
    assert (shared.experiment.rounds, shared.experiment.scheme.kind, shared.seed) == (5, "plain", 3)
    serving = Serving.read({"key": "", "removed": "3, 4", "timeout": 5})
    assert (serving.key, serving.removed, serving.timeout, serving.least_nodes) == (None, (3, 4), 5.0, 2)


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret.toml", "nothing.toml"])
def test_an_experiment_lies_in_the_app_and_nowhere_else(app, name):
    with pytest.raises(ConfigError, match="the app has no file"):
        in_app(name)


@pytest.mark.parametrize(
    "reference", ["os:system", "subprocess:run", "hooks:nothing", "hooks:NUMBER", "hooks"]
)
def test_a_hook_is_a_function_of_the_app_and_of_nothing_else(app, reference):
    (app / "hooks.py").write_text("NUMBER = 3\ndef load(node):\n    return node\n")
    with pytest.raises(ConfigError):
        hook(reference)
    assert hook("hooks:load")(7) == 7


@pytest.mark.parametrize(
    ("read", "table", "why"),
    [
        (Shared.read, {"data": "mine"}, '"own" or "simulated"'),
        (Shared.read, {"classes": "2", "seed": -1}, "whole number"),
        (Shared.read, {}, 'classes = "" in the app.*at all sites together'),
        (Shared.read, {"classes": "1"}, 'classes = "1" in the app'),
        (Shared.read, {"classes": "ill, ill"}, 'classes = "ill, ill" in the app'),
        (Serving.read, {"timeout": 0}, "seconds"),
        (Serving.read, {"removed": "a"}, "numbers of nodes"),
        (Own.read, {"folder": "x"}, "partition-id"),
        (Own.read, {"partition-id": True, "folder": "x"}, "partition-id"),
        (Own.read, {"partition-id": 1}, "folder"),
    ],
)
def test_wrong_settings_are_told_in_one_line(app, read, table, why):
    with pytest.raises(ConfigError, match=why):
        read(table)


# A site's data


def images(n, shape=(8, 8), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


PLAIN = ["scheme.kind=plain"]
PAIR = (np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))


def test_samples_are_parted_once_and_for_all():
    x, y = images(50), np.arange(50) % 3
    one, other = (from_arrays({"x": x, "y": y}, "x", "3", 0, 4) for _ in range(2))
    assert len(one.train[1]) == 40 and len(one.test[1]) == 10 and one.classes == 3
    np.testing.assert_array_equal(one.train[0], other.train[0])
    whole = np.concatenate([one.train[0], one.test[0]])[:, 0]
    assert sorted(map(bytes, whole)) == sorted(map(bytes, x))
    elsewhere = from_arrays({"x": x, "y": y}, "x", "5", 0, 5)
    assert elsewhere.classes == 5 and not np.array_equal(elsewhere.test[0], one.test[0])


def test_a_site_without_the_last_class_fits_the_others(app):
    every, some = (np.arange(30) % n for n in (3, 2))
    found = []
    for number, y in enumerate((every, some)):
        own = from_hook((images(30), y), "hooks:load", "ill, healthy, unknown", 0, number)
        work = node_work(load_experiment(app / "experiment.toml", PLAIN), 0, number, lambda own=own: own)
        found.append((work.metadata().phi.shape, work.trainer().initial().params.shape))
    assert found[0] == found[1] and found[0][0][:2] == (1, 3)


@pytest.mark.parametrize(
    ("shape", "expected"), [((8, 9), (1, 8, 9)), ((8, 9, 3), (3, 8, 9)), ((3, 8, 9), (3, 8, 9))]
)
def test_channels_may_be_first_last_or_none(shape, expected):
    assert image_shape(images(2, shape), "x") == expected
    assert from_hook((images(6, shape), np.zeros(6, int)), "x", "2", 0, 0).shape == expected


def test_a_hook_may_choose_its_test_samples():
    given = {
        "x": images(4),
        "y": np.array([0, 1, 0, 1]),
        "test_x": images(2, seed=1),
        "test_y": np.array([0, 2]),
    }
    own = from_hook(given, "hooks:load", "3", 0, 0)
    assert (len(own.train[1]), len(own.test[1]), own.classes) == (4, 2, 3)


def test_an_npz_and_a_folder_of_images_are_read(tmp_path):
    from PIL import Image

    x, y = images(10, (8, 8)), np.arange(10) % 2
    np.savez(tmp_path / "site.npz", x=x, y=y)
    for n, (image, label) in enumerate(zip(x, y, strict=True)):
        folder = tmp_path / "site" / ("healthy" if label else "ill")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{n}.png")
    one = from_path(tmp_path / "site.npz", "2", 0, 0)
    other = from_path(tmp_path / "site", "ill, healthy", 0, 0)
    assert one.shape == other.shape == (1, 8, 8) and one.classes == other.classes == 2
    assert sorted(map(bytes, x[y == 1])) == sorted(
        bytes(image)
        for part in (other.train, other.test)
        for image, label in zip(*part, strict=True)
        if label
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("smith.webp", "a .webp file lies in one of its folders of images; expected images alone: .bmp .gif"),
        ("SMITH.DCM", "a .dcm file lies"),
        ("dr.smith", "a file of another kind lies"),
        ("smith", "a file of another kind lies"),
        ("smith/1.png", "a folder lies"),
    ],
)
def test_a_folder_with_other_things_than_images_is_refused(tmp_path, name, told):
    from PIL import Image

    for label in "01":
        (tmp_path / label).mkdir()
        Image.fromarray(images(1)[0]).save(tmp_path / label / "1.png")
    (tmp_path / "1" / ".DS_Store").write_text("hidden")
    assert len(from_path(tmp_path, "2", 0, 0).train[1]) == 2
    other = tmp_path / "1" / name
    other.parent.mkdir(exist_ok=True)
    Image.fromarray(images(1)[0]).save(other, format="PNG")
    with pytest.raises(DataError, match=r"(?i)smith") as refused:
        from_path(tmp_path, "2", 0, 0)
    assert refused.value.public.startswith(told) and "smith" not in refused.value.public.lower()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: from_path(p / "no.npz", "3", 0, 0), "no such file"),
        (lambda p: from_path(p / "text.npz", "3", 0, 0), "not an npz"),
        (lambda p: from_path(p / "x.npz", "3", 0, 0), "missing y"),
        (lambda p: from_path(p / "empty", "3", 0, 0), "no images"),
        (lambda p: from_path(p / "named", "3", 0, 0), "no class"),
        (lambda p: from_path(p / "sizes", "3", 0, 0), "one size"),
        (lambda p: from_hook(3, "hooks:load", "3", 0, 0), "expected images and labels"),
        (lambda p: from_hook((images(3), np.array([0, 1, 7])), "h", "3", 0, 0), "0 to 2"),
        (lambda p: from_hook((np.ones((3, 9)), np.zeros(3, int)), "h", "3", 0, 0), "expected images"),
        (lambda p: from_path(p / "sites.npz", "3", 0, 0), "holds site, which nothing reads.*test_x, test_y$"),
        (lambda p: from_hook({"x": 0, "y": 0, "test_x": 0}, "h", "3", 0, 0), "test_y belong together"),
        (lambda p: from_hook(OwnData(PAIR, PAIR, 5), "h", "3", 0, 0), 'of 5 classes.*classes = "3"'),
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


BYTES = (np.arange(36).reshape(6, 6) * 7).astype(np.uint8)
WIDE = (np.arange(36).reshape(6, 6) * 1800).astype(np.uint16)


def bits16(kind, channels):
    """A PNG with 16 bits a channel, in colour (kind 2), or transparent: Pillow cannot write these."""
    rows = b"".join(b"\0" + np.repeat(row, channels).astype(">u2").tobytes() for row in WIDE)
    head = struct.pack(">IIBBBBB", 6, 6, 16, kind, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def tiff16():
    """A TIFF of 16-bit RGB, with nothing but the tags that it must have."""
    pixels = np.repeat(WIDE, 3).astype("<u2").tobytes()
    tags = [
        (256, 3, 1, 6), (257, 3, 1, 6), (258, 3, 3, 122), (259, 3, 1, 1), (262, 3, 1, 2),
        (273, 4, 1, 128), (277, 3, 1, 3), (278, 3, 1, 6), (279, 4, 1, len(pixels)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    table = struct.pack("<H", len(tags)) + entries + b"\0" * 4
    return (
        (b"II*\0" + struct.pack("<I", 8) + table).ljust(122, b"\0") + struct.pack("<3H", 16, 16, 16) + pixels
    )


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("grey.png", lambda i: i.fromarray(BYTES), BYTES),
        ("grey.tif", lambda i: i.fromarray(BYTES), BYTES),
        ("colour.bmp", lambda i: i.fromarray(np.stack([BYTES] * 3, 2)), np.stack([BYTES] * 3, 2)),
        ("palette.png", lambda i: i.fromarray(BYTES).convert("P"), np.stack([BYTES] * 3, 2)),
        ("palette.gif", lambda i: i.fromarray(BYTES).convert("P"), np.stack([BYTES] * 3, 2)),
        ("one-bit.png", lambda i: i.fromarray(BYTES > 99), np.where(BYTES > 99, 255, 0)),
        (
            "opaque.png",
            lambda i: i.fromarray(np.stack([*[BYTES] * 3, BYTES * 0 + 255], 2)),
            np.stack([BYTES] * 3, 2),
        ),
        ("opaque-grey.png", lambda i: i.fromarray(BYTES).convert("LA"), BYTES),
    ],
)
def test_images_of_8_bits_are_read_as_they_are(tmp_path, name, make, expected):
    from PIL import Image

    make(Image).save(tmp_path / name)
    found = read_image(tmp_path / name)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("a.png", lambda i: i.fromarray(WIDE), "PNG of mode I;16.*rescale"),
        ("a.tif", lambda i: i.fromarray(WIDE), "TIFF of mode I;16.*rescale"),
        ("a.tif", lambda i: i.fromarray(WIDE.astype(np.int32)), "mode I .*rescale"),
        ("a.tif", lambda i: i.fromarray(WIDE.astype(np.float32)), "mode F .*rescale"),
        ("a.png", lambda i: bits16(2, 3), "mode RGB .*rescale"),
        ("a.png", lambda i: bits16(4, 2), "mode RGBA .*rescale"),
        ("a.tif", lambda i: tiff16(), "mode RGB .*rescale"),
        ("a.jpg", lambda i: i.fromarray(BYTES).convert("CMYK"), "mode CMYK, expected grey.*convert"),
        ("a.tif", lambda i: i.fromarray(BYTES).convert("RGB").convert("LAB"), "mode LAB, expected.*convert"),
        ("a.png", lambda i: i.fromarray(np.stack([BYTES] * 4, 2)), "mode RGBA that is transparent"),
        ("a.png", lambda i: i.fromarray(np.stack([BYTES] * 2, 2)), "mode LA that is transparent"),
    ],
)
def test_images_that_8_bits_cannot_hold_are_refused_by_file_mode_and_remedy(tmp_path, name, make, why):
    from PIL import Image

    (tmp_path / "site" / "0").mkdir(parents=True)
    file = tmp_path / "site" / "0" / name
    made = make(Image)
    if isinstance(made, bytes):
        file.write_bytes(made)
    else:
        made.save(file)
    with pytest.raises(DataError, match=why) as caught:
        from_path(tmp_path / "site", "2", 0, 0)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_transparency_of_a_single_colour_or_grey_value_is_seen(tmp_path):
    from PIL import Image

    Image.fromarray(BYTES).save(tmp_path / "grey.png", transparency=7)
    Image.fromarray(BYTES).convert("P").save(tmp_path / "palette.png", transparency=7)
    Image.fromarray(BYTES).save(tmp_path / "not-there.png", transparency=8)
    for name in ("grey.png", "palette.png"):
        with pytest.raises(DataError, match="transparent"):
            read_image(tmp_path / name)
    np.testing.assert_array_equal(read_image(tmp_path / "not-there.png"), BYTES)


def test_of_several_pictures_in_a_file_none_is_dropped(tmp_path):
    from PIL import Image

    pages = [Image.fromarray(BYTES), Image.fromarray(BYTES // 2)]
    for name in ("a.tif", "a.gif"):
        pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
        with pytest.raises(DataError, match="holds 2 pictures; save each"):
            read_image(tmp_path / name)


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
    ways = [lambda: from_hook((x, np.array(y)), "hooks:load", "2", 0, 0)]
    if not np.ma.is_masked(x):  # an npz has no masks
        np.savez(tmp_path / "site.npz", x=x, y=np.array(y))
        ways.append(lambda: from_path(tmp_path / "site.npz", "2", 0, 0))
    for way in ways:
        with pytest.raises(DataError, match=why) as caught:
            way()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int64, np.uint64])
def test_floats_from_0_to_1_and_labels_of_any_integer_kind_are_taken_exactly(kind):
    x = np.array([0.0, 1.0, 1 / 255, 254 / 255]).reshape(4, 1, 1) * np.ones((4, 8, 8))
    own = from_hook(
        {"x": x, "y": np.array([0, 1, 0, 1], kind), "test_x": x, "test_y": [0, 1, 0, 1]}, "h", "2", 0, 0
    )
    assert own.train[0][:, 0, 0, 0].tolist() == [0, 255, 1, 254] and own.train[0].dtype == np.uint8
    assert own.train[1].tolist() == [0, 1, 0, 1] and own.train[1].dtype == np.int64


# Certificates and identities


def test_a_certificate_is_good_for_its_hosts_and_loopback_alone(tmp_path):
    made = make_certificates(tmp_path, ["link.example"])
    assert made.key.stat().st_mode & 0o077 == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    assert [_greets(server, made.ca, name) for name in ("127.0.0.1", "link.example", "else.example")] == [
        True, True, False,
    ]  # fmt: skip
    stranger = make_certificates(tmp_path / "other", ["127.0.0.1"])
    assert not _greets(server, stranger.ca, "127.0.0.1")


def _greets(server, ca, name):
    """Shake hands in memory."""
    client = ssl.create_default_context(cafile=str(ca))
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    one, other = client.wrap_bio(a, b, server_hostname=name), server.wrap_bio(b, a, server_side=True)
    done = set()
    try:
        for _ in range(6):
            for who in (one, other):
                try:
                    who.do_handshake()
                    done.add(who)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLError:
        return False
    return len(done) == 2


def test_keys_are_never_replaced(tmp_path):
    secret, public = make_node_key(tmp_path, "node.key")
    assert secret.stat().st_mode & 0o077 == 0 and public.read_text().startswith("ecdsa-sha2-nistp384")
    with pytest.raises(BadInput, match="never replaced"):
        make_node_key(tmp_path, "node.key")
    make_certificates(tmp_path, ["localhost"])
    with pytest.raises(BadInput, match="never replaced"):
        make_certificates(tmp_path, ["localhost"])
    with pytest.raises(BadInput, match="no host name"):
        make_certificates(tmp_path / "x", ["ü.example"])


# Apps


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_a_written_app_is_one_that_flower_takes_and_its_hash_is_its_own(tmp_path):
    from flwr.cli.config_utils import load_and_validate

    write_app(tmp_path / "Our scans 1", 4, "bfv")
    folder = tmp_path / "Our scans 1"
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert not warnings and config["project"]["name"] == "Our-scans-1"
    assert Local(folder, tmp_path, tmp_path, 4).experiment.model.kind == "hooks:make"
    first = app_hash(folder)
    assert first == app_hash(folder) and run_of(folder, []) != run_of(folder, ["rounds=3"])
    (folder / "hooks.py").write_text("# other\n")
    assert app_hash(folder) != first
    with pytest.raises(BadInput, match="not an empty folder"):
        write_app(folder, 4, "bfv")


def test_a_written_apps_hook_takes_or_refuses_all_that_a_sites_file_holds(tmp_path):
    write_app(tmp_path / "app", 4, "bfv")
    hooks = runpy.run_path(str(tmp_path / "app" / "hooks.py"))
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2
    file = tmp_path / "site.npz"

    def loaded(**more):
        np.savez(file, x=x, y=y, **more)
        return from_hook(hooks["load"]({"data": str(file)}), "hooks:load", "2", 0, 0)

    assert len(loaded().test[1]) == 1
    assert len(loaded(test_x=x[:3], test_y=y[:3]).test[1]) == 3
    with pytest.raises(DataError, match="holds patient, which nothing reads"):
        loaded(patient=np.arange(6))


def test_the_example_is_what_deploy_local_plays(tmp_path):
    from pathlib import Path

    example = Path(__file__).parents[2] / "examples" / "flower-app"
    written = digits_app(tmp_path / "flower-app")
    for name in ("pyproject.toml", "experiment.toml"):
        assert (example / name).read_text() == (written / name).read_text()


def test_an_app_that_was_not_agreed_to_does_not_run(monkeypatch):
    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp as runtime

    installed = []
    monkeypatch.setattr(runtime, "install_from_fab", lambda bundle, **_: installed.append(bundle))
    monkeypatch.setenv(AGREED, hashlib.sha256(b"read and approved").hexdigest())
    monkeypatch.setattr(cli, "flwr_clientapp", lambda: runtime.install_from_fab(b"read and approved"))
    clientapp()
    monkeypatch.setattr(cli, "flwr_clientapp", lambda: runtime.install_from_fab(b"something else"))
    with pytest.raises(FlamecheError, match="not agreed"):
        clientapp()
    assert installed == [b"read and approved"]


def test_flower_is_still_as_we_know_it():
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.runtime import run_clientapp as runtime

    assert loop.time is time and callable(runtime.install_from_fab)


def test_pauses_are_short_after_a_message_and_grow_to_flowers():
    slept = []
    pauses = Pauses(slept.append)
    for _ in range(40):
        pauses.sleep(3)
    assert slept[0] < 0.2 and slept == sorted(slept) and slept[-1] == 3
    pauses.sleep(0.5)
    pauses.sleep(3)
    assert slept[-2] < 0.1 and slept[-1] < 0.2
    assert pauses.monotonic() <= time.monotonic()


# The operator's line


def test_a_round_is_a_line():
    assert line(RECORD, 10, 1_500_000, 250_000) == (
        "round 3/10 · nodes 0-2 5 7-8 · clusters 5 3 · accuracy 87.5% · 1.50 MB up, 0.25 down · regrouped · "
        "lost node 4: offline"
    )
    quiet = {**RECORD, "accuracy": math.nan, "reclustered": False, "lost": {}}
    assert line(quiet, 10, 0, 0) == "round 3/10 · nodes 0-2 5 7-8 · clusters 5 3 · 0.00 MB up, 0.00 down"
    assert numbers([]) == "" and numbers([4]) == "4"


def test_bytes_are_told_by_round_and_numbers_go_to_the_board():
    said, board = [], []
    live = Live(2, said.append, type("Board", (), {"add": lambda self, *a: board.append(a)})())
    live.round({**RECORD, "round": 1})
    live.round({**RECORD, "round": 2, "bytes_up": 4_000_000, "accuracy": None})
    assert "3.00 MB up, 5.00 down" in said[0] and "1.00 MB up, 0.00 down" in said[1]
    assert board[0][0] == 1 and board[0][1]["accuracy"] == 0.875 and board[0][1]["cluster sizes/1"] == 3
    assert math.isnan(board[1][1]["accuracy"])
    json.dumps(board)


def test_a_board_writes_event_files_or_says_what_is_missing(tmp_path):
    from importlib.util import find_spec

    from flameche.training.tensorboard import Board

    if find_spec("tensorboard") is None:
        with pytest.raises(ConfigError, match="pip install tensorboard"):
            Board(tmp_path)
        return
    board = Board(tmp_path)
    board.add(1, {"accuracy": 0.5, "nothing": math.nan})
    board.close()
    assert list(tmp_path.glob("events*"))


# The strategy


def test_the_experiment_says_everything(tmp_path, app):
    from flameche.flower import Flameche

    strategy = Flameche("experiment.toml", out=tmp_path, own_data=False)
    assert strategy.experiment.name == "flower-digits"
    for given in ({"num_rounds": 99}, {"initial_arrays": object()}, {"evaluate_fn": print}):
        with pytest.raises(ConfigError):
            strategy.start(grid=None, **given)
    with pytest.raises(ConfigError, match=r"server\.pub"):
        strategy.start(grid=None, num_rounds=3)
    with pytest.raises(FlamecheError, match="start"):
        strategy.configure_train(1, None, None, None)


def test_a_simulation_is_not_taken_for_a_run_on_a_network(tmp_path, app):
    from flameche.errors import StoreError
    from flameche.experiments.config import load_experiment
    from flameche.flower import Flameche

    plain = load_experiment(app / "experiment.toml", ["scheme.kind=plain"])
    strategy = Flameche(plain, out=tmp_path)
    strategy.folder.mkdir(parents=True)
    (strategy.folder / "environment.json").write_text('{"device": "cpu"}')
    with pytest.raises(StoreError, match="holds a simulation"):
        strategy.start(grid=None)
