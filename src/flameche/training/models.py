"""Models as rows of a matrix: their average, distances and angles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Buffers = Literal["mean", "first", "member", "local"]


@dataclass(frozen=True)
class Models:
    """M models of one architecture: params [M P] and buffers [M Q] (the running statistics of BatchNorm)."""

    params: Tensor
    buffers: Tensor

    def __len__(self) -> int:
        return len(self.params)

    @property
    def finite(self) -> bool:
        """Tell whether all parameters are finite."""
        return bool(torch.isfinite(self.params).all())

    def nbytes(self, with_buffers: bool = True) -> int:
        """Return the number of bytes sent for one model."""
        numbers = self.params.shape[1] + (self.buffers.shape[1] if with_buffers else 0)
        return numbers * self.params.element_size()

    def pick(self, index: NDArray[np.int64]) -> Models:
        """Select rows, possibly repeated."""
        rows = torch.from_numpy(index).to(self.params.device)
        return Models(self.params[rows], self.buffers[rows])

    def joined(self, other: Models) -> Models:
        """Append the rows of another set of models."""
        return Models(torch.cat([self.params, other.params]), torch.cat([self.buffers, other.buffers]))

    def with_rows(self, index: NDArray[np.int64], rows: Models) -> Models:
        """Return a copy with some rows replaced."""
        where = torch.from_numpy(index).to(self.params.device)
        return Models(
            self.params.index_copy(0, where, rows.params), self.buffers.index_copy(0, where, rows.buffers)
        )

    def minus(self, base: Models) -> Models:
        """Subtract one model from every row, which gives each model's update."""
        return Models(self.params - base.params[0], self.buffers - base.buffers[0])

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Copy to numpy arrays, for a checkpoint."""
        return {"params": self.params.cpu().numpy(), "buffers": self.buffers.cpu().numpy()}

    def from_arrays(self, arrays: dict[str, NDArray[np.generic]]) -> Models:
        """Read what `to_arrays` wrote, onto the device of these models."""
        device = self.params.device
        return Models(*(torch.from_numpy(arrays[key]).to(device) for key in ("params", "buffers")))

    def flat(self, with_buffers: bool) -> NDArray[np.float64]:
        """Return each model as one float64 vector, for secure sums."""
        parts = (self.params, self.buffers) if with_buffers else (self.params,)
        return torch.cat(parts, dim=1).double().cpu().numpy()

    def replaced(self, k: int, vector: NDArray[np.float64]) -> Models:
        """Replace row k by a flat model, with or without buffers."""
        params, buffers = self.params.clone(), self.buffers.clone()
        row, split = torch.from_numpy(vector).to(params), params.shape[1]
        params[k] = row[:split]
        if len(row) > split:
            buffers[k] = row[split:]
        return Models(params, buffers)

    def towards(self, goal: Models, far: NDArray[np.float64], with_buffers: bool) -> Models:
        """Move each row by a fraction `far` [M] towards the same row of `goal`.

        Buffers move as well, or, without `with_buffers`, are taken from `goal`.
        """
        if (far >= 1.0).all():
            return goal

        def moved(rows: Tensor, goals: Tensor) -> Tensor:
            return torch.stack([_towards(*each) for each in zip(rows, goals, far.tolist(), strict=True)])

        stats = moved(self.buffers, goal.buffers) if with_buffers else goal.buffers
        return Models(moved(self.params, goal.params), stats)

    def moved(self, k: int, vector: NDArray[np.float64], far: float) -> Models:
        """Move row k by a fraction `far` towards a flat model, with or without buffers."""
        if far >= 1.0:
            return self.replaced(k, vector)
        with_buffers = len(vector) > self.params.shape[1]
        own = Models(self.params[k : k + 1], self.buffers[k : k + 1]).flat(with_buffers)[0]
        return self.replaced(k, own + far * (vector - own))


def stacked(rows: Sequence[Mapping[str, NDArray[np.generic]]]) -> Models:
    """Stack single models, given as numpy arrays `params` and `buffers`, into rows."""
    return Models(*(torch.from_numpy(np.stack([row[key] for row in rows])) for key in ("params", "buffers")))


def read_module(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return a module's parameters [P] and buffers [Q] as flat vectors, in the module's order."""
    params = [p.detach().flatten() for p in module.parameters()]
    dtype = params[0].dtype
    buffers = [b.detach().to(dtype).flatten() for b in _statistics(module)]
    return torch.cat(params), torch.cat(buffers) if buffers else params[0].new_empty(0)


def _statistics(module: nn.Module) -> list[Tensor]:
    """List the floating-point buffers, which are averaged; BatchNorm's batch counter is not."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def write_module(module: nn.Module, params: Tensor, buffers: Tensor) -> None:
    """Copy flat parameters [P] and buffers [Q] into a module."""
    for flat, targets in ((params, list(module.parameters())), (buffers, _statistics(module))):
        for target, part in zip(targets, split_like(flat, targets), strict=True):
            target.copy_(part)


def split_like(flat: Tensor, shapes: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat vector into views with the shapes of these tensors."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view_as(shape) for part, shape in zip(parts, shapes, strict=True)]


def average(
    previous: Models,
    trained: Models,
    cluster: NDArray[np.int64],
    *,
    weight: NDArray[np.float64] | None = None,
    buffers: Buffers = "mean",
    share: NDArray[np.float64] | None = None,
    holder: NDArray[np.int64] | None = None,
) -> Models:
    """Average the trained models of each cluster (Algorithm 1, line 20); empty clusters keep their model.

    Args:
        previous: the clusters' models before [K].
        trained: the clients' models [n].
        cluster: each client's cluster [n].
        weight: the clients' weights [n]; unweighted by default, as in the paper.
        buffers: how buffers are averaged: "mean"; "first" takes those of the cluster's first client, as
            the authors' code does; "member" takes row holder[k] of trained where holder[k] >= 0; "local"
            keeps the previous ones.
        share: each client's share of every cluster [n K], for soft clusters. Where shares sum to less
            than one, the model moves only that fraction of the way to their average.
        holder: rows of trained for "member" [K], or -1.
    """
    params, stats = previous.params.clone(), previous.buffers.clone()
    for k in np.unique(cluster) if share is None else np.flatnonzero(share.sum(axis=0) > 0):
        members = np.flatnonzero(cluster == k if share is None else share[:, k] > 0)
        part = np.ones(len(members)) if share is None else share[members, k]
        far = min(1.0, float(part.sum()))
        part = part if weight is None else part * weight[members]
        scale = torch.from_numpy(part / part.sum()).to(params)
        rows = torch.from_numpy(members).to(params.device)
        params[k] = _towards(params[k], scale @ trained.params[rows], far)
        if buffers == "mean":
            stats[k] = _towards(stats[k], scale @ trained.buffers[rows], far)
        elif buffers == "first" and (cluster == k).any():
            stats[k] = trained.buffers[int(np.flatnonzero(cluster == k)[0])]
        elif buffers == "member" and holder is not None and holder[k] >= 0:
            stats[k] = trained.buffers[int(holder[k])]
    return Models(params, stats)


def _towards(model: Tensor, goal: Tensor, far: float) -> Tensor:
    return goal if far >= 1.0 else model + far * (goal - model)


Floats = NDArray[np.float64]
TINY = 1e-30
CHUNK = 2**20  # parameters converted to double precision at once


def distances(a: Models, b: Models, part: slice = slice(None)) -> Floats:
    """Return the Euclidean distances of models a [n] to models b [m], over a slice of the parameters."""
    rows = a.params[:, part]
    away = [torch.linalg.vector_norm(rows - other[part], dim=1) for other in b.params]
    return torch.stack(away, dim=1).double().cpu().numpy()


def coordinates(models: Models, part: slice = slice(None)) -> Floats:
    """Embed models [n] in n dimensions so that all pairwise distances are kept: coordinates [n n]."""
    rows = models.params[:, part]
    gram = np.zeros((len(rows), len(rows)))
    for piece in torch.split(rows, CHUNK, dim=1):
        centred = piece.double() - piece.double().mean(dim=0)
        gram += (centred @ centred.T).cpu().numpy()
    values, vectors = np.linalg.eigh(gram)
    values = np.where(values > len(rows) * np.finfo(np.float64).eps * values[-1], values, 0.0)
    placed: Floats = vectors * np.sqrt(values)
    return placed


def cosines(a: Models, b: Models) -> Floats:
    """Return the cosine similarity of each model in a [n] with each in b [m]; 0 for a model of zeros."""
    left, right = (x.params / x.params.norm(dim=1, keepdim=True).clamp_min(TINY) for x in (a, b))
    cosine: Floats = (left @ right.T).double().cpu().numpy()
    return cosine.clip(-1.0, 1.0)


def directions(updates: Models, count: int) -> Models:
    """Return the leading right singular vectors of the updates [n P], as at most `count` unit-norm models.

    They come from the eigenvectors of the small Gram matrix [n n]; signs are fixed.
    """
    rows = updates.params
    values, vectors = np.linalg.eigh((rows @ rows.T).double().cpu().numpy())
    order = np.argsort(values)[::-1][:count]
    noise = max(1e-12, len(rows) * torch.finfo(rows.dtype).eps)  # rounding of the Gram matrix
    keep = order[values[order] > noise * max(float(values[-1]), TINY)]
    axes = torch.from_numpy(vectors[:, keep].T.copy()).to(rows) @ rows
    axes = axes / axes.norm(dim=1, keepdim=True).clamp_min(TINY)
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
    return Models(axes * torch.sign(largest), updates.buffers.new_zeros(len(axes), updates.buffers.shape[1]))
