"""Flips, turns and shifts of training images: how they are drawn, and made of floats or of bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flameche.rng import stream_seed
from flameche.training.trainer import Ints

PAD = 4  # pixels an image is shifted by at most
TURN_STEPS = 100  # a turn is a whole number of such parts of the largest, either way
IDENTITY = (0, PAD, PAD, 0)  # neither flipped nor shifted nor turned


def augment_generator(client: int, seed: int, round: int) -> torch.Generator:
    """Give what a client draws from in a round."""
    return torch.Generator().manual_seed(stream_seed(seed, "augment", round, client) % 2**63)


def draw_transforms(n: int, generator: torch.Generator, turn: float = 0.0) -> Tensor:
    """Draw for n images: mirrored or not, where the cut begins (down, right), how far it turns [n 4]."""
    flip = torch.rand(n, generator=generator) < 0.5
    shift = torch.randint(0, 2 * PAD + 1, (n, 2), generator=generator)
    part = torch.randint(-TURN_STEPS, TURN_STEPS + 1, (n,), generator=generator) if turn else torch.zeros(n)
    return torch.cat([flip[:, None], shift, part[:, None]], dim=1).to(torch.int8)


def source_pixels(transforms: Tensor, height: int, width: int, turn: float) -> tuple[Tensor, Tensor, Tensor]:
    """Tell where each pixel comes from, for images mirrored, turned, then shifted as drawn [... 4].

    Gives rows and columns, broadcast to [... H W], and whether they lie inside the image; a turn takes the
    nearest pixel.
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
    """Mirror half of the images [n Ch H W], turn each by up to `turn` degrees, shift it by up to PAD pixels.

    What comes in from beyond the border is black.
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
    """Draw for a round [S M b 4], for batches of count [S M] images, as `augmented` does.

    What fills a batch up stays as it is.
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
    """Take images index [M b] of data, bytes [n H W Ch], as drawn [M b 4]: bytes [M b H W Ch]."""
    _, height, width, _ = data.shape
    rows, columns, inside = source_pixels(transforms, height, width, turn)
    return data[index[..., None, None], rows, columns] * inside[..., None]
