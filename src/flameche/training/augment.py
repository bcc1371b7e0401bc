"""Flips and shifts of training images: how they are drawn, and made of floats or of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flameche.rng import stream_seed
from flameche.training.trainer import Ints

PAD = 4  # pixels an image is shifted by at most


def noise_of(client: int, seed: int, round: int) -> torch.Generator:
    """Give what a client draws from in a round."""
    return torch.Generator().manual_seed(stream_seed(seed, "augment", round, client) % 2**63)


def draw(n: int, generator: torch.Generator, pad: int = PAD) -> tuple[Tensor, Tensor]:
    """Draw for n images whether each is mirrored [n], and where its cut begins [n 2]."""
    flip = torch.rand(n, generator=generator) < 0.5
    return flip, torch.randint(0, 2 * pad + 1, (n, 2), generator=generator)


def flip_and_crop(x: Tensor, generator: torch.Generator, pad: int = PAD) -> Tensor:
    """Mirror half of the images [n Ch H W] and shift each by up to `pad` pixels, black beyond the border."""
    n, _, height, width = x.shape
    flip, shift = (each.to(x.device) for each in draw(n, generator, pad))
    x = torch.where(flip[:, None, None, None], x.flip(3), x)
    padded = nn.functional.pad(x, (pad, pad, pad, pad), value=-1.0)  # -1 is black after to_input
    rows = shift[:, 0, None] + torch.arange(height, device=x.device)
    columns = shift[:, 1, None] + torch.arange(width, device=x.device)
    each = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def drawn(clients: Sequence[int], count: Ints, batch: int, seed: int, round: int) -> NDArray[np.int8]:
    """Draw a round's flips and shifts [S M b 3] for batches of count [S M] images, as `flip_and_crop` does.

    What fills a batch up is neither mirrored nor shifted.
    """
    found = np.full((*count.shape, batch, 3), PAD, np.int8)
    found[..., 0] = 0
    for m, client in enumerate(clients):
        noise = noise_of(client, seed, round)
        for s in range(len(count)):
            n = int(count[s, m])
            if n:
                flip, shift = draw(n, noise)
                found[s, m, :n, 0], found[s, m, :n, 1:] = flip.numpy(), shift.numpy()
    return found


def moved(data: Tensor, index: Tensor, how: Tensor) -> Tensor:
    """Take images index [M b] of data, bytes [n H W Ch], as drawn [M b 3]: bytes [M b H W Ch]."""
    height, width = data.shape[1:3]
    flip, down, right = (each[..., None, None] for each in how.long().unbind(-1))
    rows = torch.arange(height, device=data.device)[:, None] + down - PAD
    columns = torch.arange(width, device=data.device) + right - PAD
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    columns = torch.where(flip > 0, width - 1 - columns, columns)
    found = data[index[..., None, None], rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return found * inside[..., None]
