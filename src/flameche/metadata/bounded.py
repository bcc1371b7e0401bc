"""Features of bounded length: what noise has to hide of one sample is then known before any data are seen.

Each sample's features are scaled to length one, compared with what the same network makes of artificial
images that everybody can draw, projected to a few numbers, and clipped to length one. All constants come
from the artificial images, none from anybody's data: their mean is the centre, their principal directions
the projection. Abadi et al., "Deep learning with differential privacy", CCS 2016, clip gradients alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

IMAGES, GRID = 256, 7  # artificial images, and the cells of each along a side
MOST_NUMBERS = 16  # that a sample's features are projected to
SHARE = 0.1  # of the artificial images, which are not clipped


def artificial_images(shape: tuple[int, int, int]) -> Tensor:
    """Draw smooth random blobs as bytes [n Ch H W], the same for everybody: they come from no data."""
    channels, height, width = shape
    draw = torch.randn(IMAGES, channels, GRID, GRID, generator=torch.Generator().manual_seed(0))
    smooth = interpolate(draw, size=(height, width), mode="bilinear", align_corners=True)
    return (127.0 + 80.0 * smooth).clamp_(0, 255).byte()


class BoundedFeatures:
    """A feature map [n Ch H W] -> [n F] cut down to vectors [n r] that are never longer than one.

    It looks at each sample alone: features must do so too. Along its principal directions the artificial
    images vary unequally; these are scaled half the way to equal variance.
    """

    def __init__(self, features: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> None:
        self._features = features
        public = _direction(features(artificial_images(shape)))
        self._centre = public.mean(dim=0)
        values, vectors = torch.linalg.eigh(
            torch.cov((public - self._centre).T).reshape(2 * (public.shape[1],))
        )
        values, vectors = values.flip(0)[:MOST_NUMBERS], vectors.flip(1)[:, :MOST_NUMBERS]
        vectors = vectors[:, values > 1e-9 * values[0]]
        signs = vectors[vectors.abs().argmax(dim=0), torch.arange(vectors.shape[1])].sign()
        axes = vectors * signs * values[: vectors.shape[1]] ** -0.25
        length = torch.linalg.vector_norm((public - self._centre) @ axes, dim=1)
        self._axes = axes / torch.quantile(length, SHARE)

    def __call__(self, x: Tensor) -> Tensor:
        """Map bytes [n Ch H W] to clipped, projected features [n r]."""
        z: Tensor = (_direction(self._features(x)) - self._centre) @ self._axes
        clipped: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=1.0)
        return clipped


def _direction(features: Tensor) -> Tensor:
    """Scale each row to length one; zero stays zero."""
    rows = features.double().cpu()
    scaled: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12)
    return scaled
