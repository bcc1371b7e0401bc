"""Distances, angles and directions between models, for methods whose server looks at them one by one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from flameche.training.models import Models

Floats = NDArray[np.float64]
TINY = 1e-30
PIECE = 2**20  # parameters looked at together in double precision


def distances(a: Models, b: Models, part: slice = slice(None)) -> Floats:
    """Measure the Euclidean distance of each model a [n] from each b [m], over part of the parameters."""
    rows = a.params[:, part]
    away = [torch.linalg.vector_norm(rows - other[part], dim=1) for other in b.params]
    return torch.stack(away, dim=1).double().cpu().numpy()


def coordinates(models: Models, part: slice = slice(None)) -> Floats:
    """Place models [n] in the space that they span, [n n]: every distance is kept, in n numbers for each."""
    rows = models.params[:, part]
    gram = np.zeros((len(rows), len(rows)))
    for piece in torch.split(rows, PIECE, dim=1):
        centred = piece.double() - piece.double().mean(dim=0)
        gram += (centred @ centred.T).cpu().numpy()
    values, vectors = np.linalg.eigh(gram)
    values = np.where(values > len(rows) * np.finfo(np.float64).eps * values[-1], values, 0.0)
    placed: Floats = vectors * np.sqrt(values)
    return placed


def cosines(a: Models, b: Models) -> Floats:
    """Measure the cosine of each model in a [n] with each in b [m]; zero with a model of zeros."""
    left, right = (x.params / x.params.norm(dim=1, keepdim=True).clamp_min(TINY) for x in (a, b))
    cosine: Floats = (left @ right.T).double().cpu().numpy()
    return cosine.clip(-1.0, 1.0)


def directions(updates: Models, count: int) -> Models:
    """Find the leading right singular vectors of the updates [n P], as at most `count` models of unit norm.

    By the eigenvectors of the Gram matrix [n n], which is small; signs are made definite.
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
