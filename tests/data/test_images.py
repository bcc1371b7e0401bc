import numpy as np
import pytest
from numpy.typing import NDArray

from flameche.data import images


def some(n: int = 3, ch: int = 2, h: int = 11, w: int = 11) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (n, ch, h, w), dtype=np.uint8)


def slow_morphology(x: NDArray[np.uint8], k: int, largest: bool) -> NDArray[np.uint8]:
    """OpenCV's definition, pixel by pixel: the oracle."""
    out = np.empty_like(x)
    height, width = x.shape[2:]
    for row in range(height):
        for col in range(width):
            rows = [row + d - k // 2 for d in range(k) if 0 <= row + d - k // 2 < height]
            cols = [col + d - k // 2 for d in range(k) if 0 <= col + d - k // 2 < width]
            under = x[:, :, rows][:, :, :, cols]
            out[:, :, row, col] = under.max((2, 3)) if largest else under.min((2, 3))
    return out


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 11])
def test_morphology_equals_the_plain_loop(k: int) -> None:
    x = some(h=11, w=9)
    np.testing.assert_array_equal(images.dilate(x, k), slow_morphology(x, k, largest=True))
    np.testing.assert_array_equal(images.erode(x, k), slow_morphology(x, k, largest=False))


def test_one_bright_pixel_dilates_by_8_to_where_the_anchor_4_4_puts_it() -> None:
    x = np.zeros((1, 1, 20, 20), np.uint8)
    x[0, 0, 10, 10] = 200
    rows = np.flatnonzero(images.dilate(x, 8)[0, 0].any(1))
    assert rows.tolist() == list(range(7, 15))  # y + dy - 4 = 10 for dy = 0…7


def test_erosion_of_a_white_image_is_white_up_to_the_border() -> None:
    white = np.full((1, 1, 5, 5), 255, np.uint8)
    np.testing.assert_array_equal(images.erode(white, 3), white)


def test_four_quarter_turns_are_the_identity() -> None:
    x = some()
    turned = x
    for _ in range(4):
        turned = images.rotate(turned, 90)
    np.testing.assert_array_equal(turned, x)


def test_a_quarter_turn_is_counter_clockwise() -> None:
    x = np.array([[1, 2], [3, 4]], np.uint8)[None, None]
    assert images.rotate(x, 90)[0, 0].tolist() == [[2, 4], [1, 3]]


def test_zoom_crop_keeps_the_centre_14_of_28_in_place() -> None:
    x = some(h=28, w=28)
    out = images.zoom_crop(x)
    np.testing.assert_array_equal(out[:, :, 7:21, 7:21], x[:, :, 7:21, 7:21])
    assert out.astype(int).sum() == x[:, :, 7:21, 7:21].astype(int).sum()


def test_zoom_resize_doubles_the_centre_bilinearly() -> None:
    x = np.zeros((1, 1, 4, 4), np.uint8)
    x[0, 0, 1:3, 1:3] = [[0, 100], [0, 100]]
    assert images.zoom_resize(x)[0, 0].tolist() == [[0, 25, 75, 100]] * 4


@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_zoom_resize_of_a_flat_image_is_flat(size: int) -> None:
    x = np.full((2, 3, size, size), 77, np.uint8)
    np.testing.assert_array_equal(images.zoom_resize(x), x)


def test_channel_order_and_inversion_by_hand() -> None:
    x = np.array([10, 20, 30], np.uint8).reshape(1, 3, 1, 1)
    assert images.reorder_channels(x, [1, 0, 2]).ravel().tolist() == [20, 10, 30]
    assert images.invert(x).ravel().tolist() == [245, 235, 225]
    assert images.invert(x).dtype == np.uint8
