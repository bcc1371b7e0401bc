"""Extractors: each maps every client's samples to its metadata phi, blocks of one length per class.

Equation 3 of the paper: phi_i = [mu_i1 ... mu_iC], the class-wise means of a feature map. All take the
samples of C clients, one client after another, and carry the client axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flameche.errors import DataError

BATCH = 250  # images a forward pass: larger batches fall out of the cache on a CPU
NAMED = 5  # clients at most that an error names
NOT_FINITE = (
    "hold NaN or infinity, expected finite numbers; most likely the feature network gave them: check the "
    "forward pass of the model (model.kind), or choose another metadata.kind"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metadata:
    """Metadata of C clients: phi [C B F], zero where a block is missing, and counts [C B] behind each."""

    phi: Floats
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.phi)

    @property
    def presence(self) -> Floats:
        """Tell which blocks exist, as ones and zeros [C B]."""
        return (self.counts > 0).astype(np.float64)

    def checked(self, names: Sequence[object] | None = None) -> Metadata:
        """Give these metadata; refuse them if they hold NaN or infinity, by which nothing can be clustered.

        Args:
            names: how the clients are called [C]; numbers from 0 unless given.

        Raises:
            DataError: names the clients and the likely cause.
        """
        wrong = np.flatnonzero(~np.isfinite(self.phi).all(axis=(1, 2))).tolist()
        if not wrong:
            return self
        told = [str(client if names is None else names[client]) for client in wrong]
        more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
        raise DataError(
            f"metadata of client{'s' * (len(told) > 1)} {', '.join(told[:NAMED])}{more} {NOT_FINITE}"
        )

    def of(self, clients: NDArray[np.int64]) -> Metadata:
        """Take the rows of some clients."""
        return Metadata(self.phi[clients], self.counts[clients])

    def with_rows(self, clients: NDArray[np.int64], rows: Metadata) -> Metadata:
        """Put rows in place of some clients' own."""
        phi, counts = self.phi.copy(), self.counts.copy()
        phi[clients], counts[clients] = rows.phi, rows.counts
        return Metadata(phi, counts)


@dataclass(frozen=True)
class ClientSamples:
    """The samples of C clients as bytes: x [n Ch H W], y [n], client i at offsets[i]:offsets[i + 1]."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    classes: int

    def of(self, clients: NDArray[np.int64]) -> ClientSamples:
        """Take the samples of some clients."""
        parts = [slice(int(self.offsets[i]), int(self.offsets[i + 1])) for i in clients.tolist()]
        offsets = np.concatenate([[0], np.cumsum(np.diff(self.offsets)[clients])]).astype(np.int64)
        x, y = (np.concatenate([each[part] for part in parts]) for each in (self.x, self.y))
        return ClientSamples(x, y, offsets, self.classes)

    @property
    def cell(self) -> NDArray[np.int64]:
        """Number each sample's (client, class) pair: client * classes + class."""
        sizes = np.diff(self.offsets)
        return np.repeat(np.arange(len(sizes)), sizes) * self.classes + self.y

    @property
    def counts(self) -> NDArray[np.int64]:
        """Count the samples of each client and class [C L]."""
        clients = len(self.offsets) - 1
        flat = np.bincount(self.cell, minlength=clients * self.classes)
        return flat.reshape(clients, self.classes)


def class_means(
    samples: ClientSamples,
    features: Callable[[Tensor], Tensor],
    *,
    batch: int = BATCH,
    progress: Callable[[int], None] | None = None,
) -> Metadata:
    """Average a feature map per client and class (Eq. 3).

    features maps bytes [n Ch H W] to [n F]; progress is told how many samples were done.
    """
    counts = samples.counts
    cell = torch.from_numpy(samples.cell)
    sums: Tensor | None = None
    for start in range(0, len(samples.y), batch):
        out = features(torch.from_numpy(samples.x[start : start + batch])).double().cpu()
        if sums is None:
            sums = torch.zeros(counts.size, out.shape[1], dtype=torch.float64)
        sums.index_add_(0, cell[start : start + batch], out)  # on the CPU, where the order is fixed
        if progress:
            progress(len(out))
    if sums is None:
        raise ValueError("no samples")
    phi = sums.numpy().reshape(*counts.shape, -1) / np.maximum(counts, 1)[:, :, None]
    return Metadata(phi, counts)


def pixels(x: Tensor) -> Tensor:
    """Scale images to [0, 1] and flatten them: the feature map behind class-mean images."""
    return x.float().div_(255.0).flatten(1)


def mean_images(samples: ClientSamples) -> Metadata:
    """Average the images themselves per client and class, as K-Fed does."""
    return class_means(samples, pixels)


def mean_pca_local(samples: ClientSamples, components: int) -> Metadata:
    """Project each client's class means on the principal axes of its *own* samples.

    Every client has another basis, so coordinates of two clients do not compare: the paper's failing
    "Mean + PCA" row.
    """
    means = mean_images(samples)
    blocks = np.zeros((*means.counts.shape, components))
    for i, (start, stop) in enumerate(zip(samples.offsets[:-1], samples.offsets[1:], strict=True)):
        own = pixels(torch.from_numpy(samples.x[start:stop])).numpy().astype(np.float64)
        centre = own.mean(axis=0)
        axes = _principal_axes(own - centre, components)
        blocks[i, :, : len(axes)] = (means.phi[i] - centre) @ axes.T
    return Metadata(blocks * means.presence[:, :, None], means.counts)


def mean_pca_shared(samples: ClientSamples, components: int) -> Metadata:
    """Project class means on the principal axes of all clients' class means: one basis for everybody.

    The basis comes from the sum of the clients' second moments, which a server that only adds can form.
    """
    means = mean_images(samples)
    return shared_axes(means, components).project(means)


@dataclass(frozen=True)
class Axes:
    """A basis that all clients share: centre [D], axes [components D]."""

    centre: Floats
    axes: Floats

    def project(self, means: Metadata) -> Metadata:
        """Give class means by their coordinates in it."""
        return Metadata((means.phi - self.centre) @ self.axes.T * means.presence[:, :, None], means.counts)


def shared_axes(means: Metadata, components: int) -> Axes:
    """Find the principal axes of all clients' class means."""
    present = means.phi[means.counts > 0]
    centre = present.mean(axis=0)
    return Axes(centre, _principal_axes(present - centre, components))


def subspaces(samples: ClientSamples, components: int) -> Metadata:
    """Take the first left singular vectors of each client's (pixels x samples) matrix per class.

    The representation of PACFL (Vahidian et al., AAAI 2023), laid flat: F = components * pixels.
    """
    counts = samples.counts
    size = int(np.prod(samples.x.shape[1:]))
    blocks = np.zeros((*counts.shape, components, size))
    for i, (start, stop) in enumerate(zip(samples.offsets[:-1], samples.offsets[1:], strict=True)):
        own = pixels(torch.from_numpy(samples.x[start:stop])).numpy().astype(np.float64)
        labels = samples.y[start:stop]
        for c in np.unique(labels):
            axes = _principal_axes(own[labels == c], components)
            blocks[i, c, : len(axes)] = axes
    return Metadata(blocks.reshape(*counts.shape, -1), counts)


def label_counts(samples: ClientSamples) -> Metadata:
    """Count the samples of each class: one block [L], for data that differ in labels only."""
    counts = samples.counts
    return Metadata(counts[:, None, :].astype(np.float64), counts.sum(axis=1, keepdims=True))


def plane(metadata: Metadata) -> Floats:
    """Draw clients in two dimensions: the first two principal axes of unit-norm metadata [C 2]."""
    flat = metadata.phi.reshape(len(metadata), -1)
    flat = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-300)
    flat = flat - flat.mean(axis=0)
    out = np.zeros((len(flat), 2))
    axes = _principal_axes(flat, 2)
    out[:, : len(axes)] = flat @ axes.T
    return out


def _principal_axes(rows: Floats, components: int) -> Floats:
    """Find the leading right singular vectors [<= components, D] of rows [n D], signs made definite."""
    gram = rows @ rows.T
    values, vectors = np.linalg.eigh(gram)
    keep = [i for i in np.argsort(values)[::-1][:components] if values[i] > 1e-12 * max(values[-1], 1e-300)]
    axes = (vectors[:, keep].T @ rows) / np.sqrt(values[keep])[:, None]
    largest = np.abs(axes).argmax(axis=1)
    signs = np.sign(axes[np.arange(len(axes)), largest])
    result: Floats = axes * signs[:, None]
    return result
