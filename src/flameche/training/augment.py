"""Random flips, rotations and shifts of training images, on floats or on bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flameche.rng import stream_seed
from flameche.training.trainer import Ints

PAD = 4  # largest shift, in pixels
TURN_STEPS = 100  # rotations are multiples of turn / TURN_STEPS, in both directions
IDENTITY = (0, PAD, PAD, 0)  # no flip, shift or rotation


def augment_generator(client: int, seed: int, round: int) -> torch.Generator:
    """Return the random generator for a client's augmentation in a round."""
    return torch.Generator().manual_seed(stream_seed(seed, "augment", round, client) % 2**63)


def draw_transforms(n: int, generator: torch.Generator, turn: float = 0.0) -> Tensor:
    """Draw the transforms of n images [n 4]: flip, shift down, shift right, rotation step."""
    flip = torch.rand(n, generator=generator) < 0.5
    shift = torch.randint(0, 2 * PAD + 1, (n, 2), generator=generator)
    part = torch.randint(-TURN_STEPS, TURN_STEPS + 1, (n,), generator=generator) if turn else torch.zeros(n)
    return torch.cat([flip[:, None], shift, part[:, None]], dim=1).to(torch.int8)


def source_pixels(transforms: Tensor, height: int, width: int, turn: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the source pixel of each output pixel, for images flipped, rotated, then shifted [... 4].

    Returns row and column indices, broadcast to [... H W], and whether they lie inside the image. Rotation
    takes the nearest pixel.
    """
    flip, down, right, part = (each[..., None, None] for each in transforms.long().unbind(-1))
    rows = torch.arange(height, device=transforms.device)[:, None] + down - PAD
    columns = torch.arange(width, device=transforms.device) + right - PAD
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    if turn:
        angle = part.double() * (turn / TURN_STEPS * math.pi / 180)
        middle, centre = (height - 1) / 2, (width - 1) / 2
        y, x = rows - middle, columns - centre
        rows = (angle.cos() * y + angle.sin() * x + middle).round().long()
        columns = (angle.cos() * x - angle.sin() * y + centre).round().long()
        inside &= (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    columns = torch.where(flip > 0, width - 1 - columns, columns)
    return rows.clamp(0, height - 1), columns.clamp(0, width - 1), inside


def augment_images(x: Tensor, generator: torch.Generator, turn: float = 0.0) -> Tensor:
    """Flip half of the images [n Ch H W], rotate each by up to `turn` degrees, shift it by up to PAD pixels.

    Pixels from outside the image are black.
    """
    n, _, height, width = x.shape
    rows, columns, inside = source_pixels(
        draw_transforms(n, generator, turn).to(x.device), height, width, turn
    )
    each = torch.arange(n, device=x.device)[:, None, None]
    found = x.permute(0, 2, 3, 1)[each, rows, columns]
    return torch.where(inside[..., None], found, -1.0).permute(0, 3, 1, 2)  # -1 is black after to_input


def draw_round(
    clients: Sequence[int], count: Ints, batch: int, seed: int, round: int, turn: float = 0.0
) -> NDArray[np.int8]:
    """Draw the transforms of a round [S M b 4], for batches of count [S M] images, as `augment_images` does.

    Images that only pad a batch get the identity.
    """
    found = np.empty((*count.shape, batch, len(IDENTITY)), np.int8)
    found[:] = IDENTITY
    for m, client in enumerate(clients):
        noise = augment_generator(client, seed, round)
        for s in range(len(count)):
            n = int(count[s, m])
            if n:
                found[s, m, :n] = draw_transforms(n, noise, turn).numpy()
    return found


def transform_images(data: Tensor, index: Tensor, transforms: Tensor, turn: float = 0.0) -> Tensor:
    """Gather images index [M b] of data, bytes [n H W Ch], and apply transforms [M b 4]: [M b H W Ch]."""
    _, height, width, _ = data.shape
    rows, columns, inside = source_pixels(transforms, height, width, turn)
    return data[index[..., None, None], rows, columns] * inside[..., None]
