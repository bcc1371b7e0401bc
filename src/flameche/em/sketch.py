"""A client in a few numbers: the directions in which clients differ, found from one sum over everybody.

Clients of K groups differ in at most K - 1 directions. So instead of opening sums of all metadata again and
again, the clients open one sum of second moments over everybody, take its leading directions, and cluster
in q numbers a client: its sketch. Each class block is first scaled to length one and projected by a random
matrix that all share, to `width` numbers, well below its own size: of full blocks, whose length is known,
the second moment of few clients can be solved for the clients themselves.

The directions are those of principal components over the blocks that clients have; Jolliffe, "Principal
Component Analysis", 2002. The shared projection is that of Johnson and Lindenstrauss, "Extensions of
Lipschitz mappings into a Hilbert space", 1984.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flameche.em.spherical import NOISE, Floats

NUMBERS, WIDEST = 160, 32  # numbers in all blocks' projections together, and the most in one block's
RIDGE = 0.01  # keeps the least squares of a client with few classes finite


def width_for(blocks: int, features: int) -> int:
    """Tell to how many numbers each of `blocks` blocks of `features` numbers is projected."""
    return max(1, min(WIDEST, features // 2, round(NUMBERS / blocks)))


def projection(rng: np.random.Generator, blocks: int, features: int) -> Floats:
    """Draw the projection that all clients share: [B F r]."""
    width = width_for(blocks, features)
    matrix: Floats = rng.standard_normal((blocks, features, width)) / np.sqrt(width)
    return matrix


def unprojected(blocks: int, features: int) -> Floats:
    """Leave blocks as they are [B F F]: those with noise need no projection to protect them."""
    return np.broadcast_to(np.eye(features), (blocks, features, features))


def moment_terms(phi: Floats, weight: Floats, matrix: Floats) -> Floats:
    """Write each client's term of the sum over everybody: the second moments of its projected blocks.

    phi [C B F], weight [C B], matrix [B F r] -> [C M]: the upper triangle of v vT with v = sqrt(w) [z, 1],
    so that means and weights are in it, and the moments can be centred after the addition.
    """
    z = np.einsum("cbf,bfr->cbr", phi, matrix)
    v = np.concatenate([z, np.ones((*z.shape[:2], 1))], axis=2) * np.sqrt(weight)[:, :, None]
    flat = v.reshape(len(phi), v.shape[1] * v.shape[2])
    rows, columns = np.triu_indices(flat.shape[1])
    terms: Floats = flat[:, rows] * flat[:, columns]
    return terms


@dataclass(frozen=True)
class Sketch:
    """What turns a client's metadata into q numbers; everybody may know it.

    matrix [B F r], mean [B r], axes [B r q]; variance [q], of all clients along each axis, largest first.
    """

    matrix: Floats
    mean: Floats
    axes: Floats
    variance: Floats

    @property
    def size(self) -> int:
        """Count a sketch's numbers, q."""
        return len(self.variance)

    def of(self, phi: Floats, weight: Floats) -> Floats:
        """Sketch clients: phi [C B F], weight [C B] -> y [C q].

        By least squares over the blocks that a client has, each weighed by its samples; without missing
        classes this is the projection on the axes.
        """
        gap = np.einsum("cbf,bfr->cbr", phi, self.matrix) - self.mean
        share = weight / np.maximum(weight.max(axis=1, keepdims=True, initial=0.0), NOISE)
        gram = np.einsum("brp,brq->bpq", self.axes, self.axes)
        left = np.einsum("cb,bpq->cpq", share, gram) + RIDGE * np.eye(self.size)
        right = np.einsum("cb,brq,cbr->cq", share, self.axes, gap)
        solved: Floats = np.linalg.solve(left, right[:, :, None])[:, :, 0]
        return solved * (1.0 + RIDGE)


def sketch_from(total: Floats, matrix: Floats, size: int) -> Sketch:
    """Find the `size` directions of largest variance from the sum of `moment_terms` [M]."""
    blocks, _, width = matrix.shape
    rows, columns = np.triu_indices(blocks * (width + 1))
    full = np.zeros((blocks * (width + 1),) * 2)
    full[rows, columns] = full[columns, rows] = total
    v = full.reshape(blocks, width + 1, blocks, width + 1)
    pairs = v[:, -1, :, -1]  # [B B], the weight behind each pair of blocks
    mass = np.diagonal(pairs)
    own = v[np.arange(blocks), :width, np.arange(blocks), -1]
    mean = np.divide(own, mass[:, None], out=np.zeros_like(own), where=mass[:, None] > NOISE)
    cross = np.einsum("br,bcs->brcs", mean, v[:, -1, :, :width])  # m_b times the sums of z_c
    centred = v[:, :width, :, :width] - cross - cross.transpose(2, 3, 0, 1)
    centred += np.einsum("br,bc,cs->brcs", mean, pairs, mean)
    weight = pairs[:, None, :, None]
    covariance = np.divide(centred, weight, out=np.zeros_like(centred), where=weight > NOISE)
    flat = covariance.reshape(blocks * width, blocks * width)
    values, vectors = np.linalg.eigh((flat + flat.T) / 2)
    keep = min(size, len(values))
    axes = vectors[:, ::-1][:, :keep]
    axes = axes * np.where(
        axes[np.abs(axes).argmax(axis=0), np.arange(keep)] < 0, -1.0, 1.0
    )  # one sign for all
    variance = np.maximum(values[::-1][:keep], 0.0)
    return Sketch(matrix, mean, axes.reshape(blocks, width, keep), variance)
