"""PACFL: one-shot hierarchical clustering by the angles between the clients' data subspaces.

Vahidian et al., "Efficient distribution similarity identification in clustered federated learning via
principal angles between client data subspaces", AAAI 2023.

Deviations:
- `angle = "entry"` is the published code's distance: the smallest entry of arccos(U_i' U_j), in degrees. The
  publication's principal angles are "smallest" and "sum".
- "raw-sum" and "raw-cosine" are in neither. They take the classes' bases side by side as they are, not made
  orthonormal first. Where classes overlap, singular values of U_i' U_j may pass 1, where they are cut, and
  equal bases are not at distance 0.
- `linkage = "average"` weighs all pairs of clients alike; the published code's weighs the two merged clusters
  alike, whatever their sizes. "complete" and "single" are its "maximum" and "minimum".
- The tree is cut at `clusters` clusters, as the FLAMECHE paper does; `alpha` is the publication's threshold.
- FedAvg trains one model until every client has been seen; the publication asks all clients at the start.
- A class that a client lacks has no vectors: it takes part in no angle.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from sklearn.cluster import AgglomerativeClustering

from flameche.metadata.extractors import subspaces
from flameche.methods.base import About, Floats, Ints, MethodOptions, World
from flameche.methods.one_shot import OneShot
from flameche.tables import Count

Angle = Literal["entry", "smallest", "sum", "raw-sum", "raw-cosine"]
Linkage = Literal["average", "complete", "single"]


class PacflOptions(MethodOptions):
    """How subspaces are compared and clustered; `alpha` cuts the tree at a distance."""

    kind: str = "pacfl"
    clusters: Count = 4
    components: Count = 5
    angle: Angle = "entry"
    linkage: Linkage = "average"
    alpha: Annotated[float, Field(gt=0)] | None = None


class Pacfl(OneShot):
    """Agglomerative clustering over a matrix of angles between all pairs of clients."""

    Options: ClassVar[type[MethodOptions]] = PacflOptions
    about: ClassVar[About] = About(
        "PACFL",
        "metadata",
        "terms",
        "singular vectors once; model",
        server="N²·d",
        client="svd of own data",
        up="d",
        by_metadata=True,
        follows_events=False,
    )

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world)
        how = PacflOptions(**options)
        self.wanted, self.angle, self.linkage, self.alpha = how.clusters, how.angle, how.linkage, how.alpha
        with world.ledger.clock("client", "extraction"):
            blocks = subspaces(world.samples(), how.components).phi
        self.bases: Floats = blocks.reshape(len(blocks), blocks.shape[1] * how.components, -1)

    def summary_numbers(self) -> Ints:
        """Count the numbers of all singular vectors; there are fewer where samples are few."""
        vectors = (np.abs(self.bases).sum(axis=2) > 0).sum(axis=1)
        numbers: Ints = vectors * self.bases.shape[2]
        return numbers

    def partition(self) -> Ints:
        """Cut the tree at the wanted number of clusters, or where distances pass alpha."""
        tree = AgglomerativeClustering(
            n_clusters=self.wanted if self.alpha is None else None,
            distance_threshold=self.alpha,
            metric="precomputed",
            linkage=self.linkage,
        )
        labels: Ints = tree.fit_predict(angles(self.bases, self.angle)).astype(np.int64)
        return labels


def angles(bases: Floats, kind: Angle) -> Floats:
    """Measure the angle in degrees between the rows' spans of all pairs in bases [C V D], as [C C].

    "raw-cosine" is no angle but one minus a mean cosine, from 0 to 1. Rows of zeros are no vectors. Without a
    common dimension there is no angle: 90 degrees, cosine 0.
    """
    if kind in ("smallest", "sum"):
        bases = np.stack([_orthonormal(rows) for rows in bases])
    count = len(bases)
    there = np.abs(bases).sum(axis=2) > 0
    result = np.zeros((count, count))
    for i in range(count):
        products = np.einsum("vd,cwd->cvw", bases[i], bases[i:], optimize=True)
        valid = there[i][None, :, None] & there[i:, None, :]
        result[i, i:] = result[i:, i] = _angle(np.where(valid, products, -1.0), valid, kind)
    np.fill_diagonal(result, 0.0)
    return result


def _angle(products: Floats, valid: NDArray[np.bool_], kind: Angle) -> Floats:
    """Turn inner products [c V W] into one angle each [c]."""
    angle: Floats
    if kind == "entry":
        best = np.where(valid.any(axis=(1, 2)), products.max(axis=(1, 2)), 0.0)
        angle = np.degrees(np.arccos(best.clip(-1.0, 1.0)))
        return angle
    cosines = np.linalg.svd(np.where(valid, products, 0.0), compute_uv=False).clip(0.0, 1.0)
    dimensions = np.minimum(valid.any(axis=2).sum(axis=1), valid.any(axis=1).sum(axis=1))
    each = np.degrees(np.arccos(cosines))
    if kind == "smallest":
        return np.where(dimensions > 0, each[:, 0], 90.0)
    shared = np.arange(each.shape[1])[None, :] < dimensions[:, None]
    if kind == "raw-cosine":
        angle = 1.0 - (cosines * shared).sum(axis=1) / np.maximum(dimensions, 1)
        return angle
    angle = np.where(dimensions > 0, (each * shared).sum(axis=1), 90.0)
    return angle


def _orthonormal(rows: Floats) -> Floats:
    """Give an orthonormal basis of the rows' span [V D], as many rows as before, zeros below."""
    _, values, axes = np.linalg.svd(rows, full_matrices=False)
    keep = values > 1e-10 * max(float(values[0]), 1e-300)
    result = np.zeros_like(rows)
    result[: int(keep.sum())] = axes[keep]
    return result
