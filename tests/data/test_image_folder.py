"""Images from files: what is read as it is, and what is refused with its mode and a remedy."""

import struct
import zlib

import numpy as np
import pytest

from flameche.data.image_folder import read_image, read_image_folder
from flameche.errors import DataError

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
        read_image_folder(tmp_path / "site", [])
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
    ("name", "told"),
    [
        ("smith.webp", "a .webp file lies in one of its folders of images; expected images only: .bmp .gif"),
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
        Image.fromarray(BYTES).save(tmp_path / label / "1.png")
    (tmp_path / "1" / ".DS_Store").write_text("hidden")
    assert read_image_folder(tmp_path, [])["y"].tolist() == [0, 1]
    other = tmp_path / "1" / name
    other.parent.mkdir(exist_ok=True)
    Image.fromarray(BYTES).save(other, format="PNG")
    with pytest.raises(DataError, match=r"(?i)smith") as refused:
        read_image_folder(tmp_path, [])
    assert refused.value.public.startswith(told) and "smith" not in refused.value.public.lower()
