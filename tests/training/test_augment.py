"""Flips, turns and shifts: each alone as by hand, and what is drawn."""

import pytest
import torch

from flameche.training.augment import (
    IDENTITY,
    PAD,
    TURN_STEPS,
    augment_images,
    draw_transforms,
    transform_images,
)


def made(images, transforms, turn=0.0):
    """Bytes [n Ch H W], all of them as one `how` says."""
    index = torch.arange(len(images))[None]
    draw_round = torch.tensor(transforms, dtype=torch.int8).expand(1, len(images), 4)
    return transform_images(images.permute(0, 2, 3, 1).contiguous(), index, draw_round, turn)[0].permute(
        0, 3, 1, 2
    )


def images(height=6, width=5):
    return torch.randint(1, 256, (3, 2, height, width), generator=torch.Generator().manual_seed(1)).byte()


def test_what_is_neither_flipped_nor_shifted_nor_turned_stays():
    x = images()
    assert torch.equal(made(x, IDENTITY), x) and torch.equal(made(x, IDENTITY, turn=90.0), x)
    assert torch.equal(made(x, (1, PAD, PAD, 0)), x.flip(3))


def test_a_shift_is_a_cut_of_the_padded_image():
    x = images()
    padded = torch.nn.functional.pad(x, (PAD,) * 4)
    for down, right in ((0, 0), (1, 7), (8, 3)):
        assert torch.equal(made(x, (0, down, right, 0)), padded[:, :, down : down + 6, right : right + 5])
        assert torch.equal(
            made(x, (1, down, right, 0)), padded.flip(3)[:, :, down : down + 6, right : right + 5]
        )


@pytest.mark.parametrize("side", [5, 6])
def test_a_quarter_turn_is_a_rotation_and_a_shift_comes_after_it(side):
    x = images(side, side)
    for part, quarters in ((TURN_STEPS, 1), (-TURN_STEPS, -1)):
        assert torch.equal(made(x, (0, PAD, PAD, part), turn=90.0), torch.rot90(x, quarters, (2, 3)))
    assert torch.equal(made(x, (0, PAD, PAD, TURN_STEPS), turn=180.0), x.flip(2, 3))
    oblong = images(5, 7)
    assert torch.equal(made(oblong, (0, PAD, PAD, TURN_STEPS), turn=180.0), oblong.flip(2, 3))
    tipped = torch.rot90(oblong, 1, (2, 3))[:, :, 1:6]  # 7 high, 5 wide; cut to 5 high, black beside it
    assert torch.equal(
        made(oblong, (0, PAD, PAD, TURN_STEPS), turn=90.0), torch.nn.functional.pad(tipped, (1, 1))
    )
    turned = torch.rot90(x.flip(3), 1, (2, 3))
    assert torch.equal(made(x, (1, 3, 6, TURN_STEPS), turn=90.0), made(turned, (0, 3, 6, 0)))


def test_a_small_turn_moves_the_rim_by_what_trigonometry_says_and_lets_black_in():
    x = torch.zeros(1, 1, 21, 21).byte()
    x[0, 0, 10, 20] = 9  # ten pixels right of the centre
    out = made(x, (0, PAD, PAD, TURN_STEPS), turn=30.0)
    assert out[0, 0].nonzero().tolist() == [[5, 19]]  # 10 sin 30 = 5 up, 10 cos 30 = 8.7 right
    corner = made(torch.full_like(x, 7), (0, PAD, PAD, TURN_STEPS), turn=30.0)
    assert corner[0, 0, 0, 0] == 0 and corner[0, 0, 10, 10] == 7


def test_draws_are_the_generators_and_turns_are_drawn_last():
    first, second, turned = (
        draw_transforms(500, torch.Generator().manual_seed(3), turn) for turn in (0.0, 0.0, 20.0)
    )
    assert torch.equal(first, second) and torch.equal(first[:, :3], turned[:, :3])
    assert not first[:, 3].any() and turned[:, 3].abs().max() > 0.95 * TURN_STEPS
    assert (
        turned[:, 3].abs().max() <= TURN_STEPS
        and turned[:, 1:3].min() == 0
        and turned[:, 1:3].max() == 2 * PAD
    )


def test_floats_from_beyond_the_border_are_black():
    x = torch.full((200, 1, 6, 6), 0.5)
    out = augment_images(x, torch.Generator().manual_seed(0), turn=20.0)
    assert set(out.unique().tolist()) == {-1.0, 0.5} and (out == 0.5).float().mean() > 0.3
