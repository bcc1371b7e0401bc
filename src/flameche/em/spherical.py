"""Spherical k-means, the hard limit of the mixture: E-step, additive statistics, M-step.

Dhillon and Modha, "Concept decompositions for large sparse text data using clustering", Machine
Learning 42, 2001; Equations 2 and 5 of the FLAMECHE paper in the hard limit.

Metadata come in blocks, one per class: phi [C B F] with weights [C B], zero where a client has no sample
of a class. A centroid is the weighted mean of its members, block by block, so that a missing class
neither pulls a centroid towards zero nor has to be invented:

    theta_kb = sum_i w_ib phi_ib / sum_i w_ib,    i over the members of cluster k.

With every class present and w = 1 this is the paper's S_k / |C_k|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NOISE = 1e-5  # what a sum of weights may be off by under CKKS; the smallest weight there is, is 1/64
SCATTER = 0.03  # the variance of a sample in each of 16 numbers, where samples have length one at most
FULL = 64  # samples from which a class mean counts in full: a scale that asks nothing of other clients

FAR, SD = 4.0, 1.2533  # standard deviations to a client that is far; of them in one mean absolute deviation


@dataclass(frozen=True)
class Centroids:
    """What the M-step yields: theta [K B F] and the weight behind each block, mass [K B]."""

    theta: Floats
    mass: Floats

    def __len__(self) -> int:
        return len(self.theta)


def cosine(phi: Floats, weight: Floats, centroids: Centroids) -> Floats:
    """Compare clients with centroids over the blocks that both have.

    phi [C B F], weight [C B] -> cosine [C K]. It is 0 where a client and a centroid share no class.
    """
    theta, known = centroids.theta, (centroids.mass > 0).astype(np.float64)
    flat = (phi * weight[:, :, None]).reshape(len(phi), -1)
    dots = flat @ (theta * known[:, :, None]).reshape(len(theta), -1).T
    norm_phi = (weight * np.einsum("cbf,cbf->cb", phi, phi)) @ known.T
    norm_theta = weight @ (known * np.einsum("kbf,kbf->kb", theta, theta)).T
    scale = np.sqrt(norm_phi * norm_theta)
    result: Floats = np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)
    return result


def e_step(phi: Floats, weight: Floats, centroids: Centroids) -> tuple[Ints, Floats]:
    """Assign each client to its nearest centroid by cosine (Eq. 2, hard limit).

    phi [C B F], weight [C B] -> assignment [C], error [C] = 1 - cosine. Ties go to the lower index, so
    that every client agrees.
    """
    near = cosine(phi, weight, centroids)
    assignment = near.argmax(axis=1)
    return assignment, 1.0 - near[np.arange(len(near)), assignment]


def statistics(phi: Floats, weight: Floats) -> Floats:
    """Write each client's term of the M-step's sums as one vector.

    phi [C B F], weight [C B] -> [C S], S = B*F + B + 1: the weighted blocks, the weights, a one.
    """
    blocks = (phi * weight[:, :, None]).reshape(len(phi), phi.shape[1] * phi.shape[2])
    return np.concatenate([blocks, weight, np.ones((len(phi), 1))], axis=1)


def m_step(totals: Floats, previous: Centroids) -> Centroids:
    """Turn per-cluster sums of `statistics` into centroids (Eq. 5).

    totals [K S] -> theta [K B F]. A block that no member has keeps its previous value, and so does the whole
    centroid of a cluster whose sum holds nobody.
    """
    clusters, blocks, features = previous.theta.shape
    sums = totals[:, : blocks * features].reshape(clusters, blocks, features)
    mass = totals[:, blocks * features : -1]
    held = mass > NOISE
    theta = np.divide(sums, mass[:, :, None], out=previous.theta.copy(), where=held[:, :, None])
    return Centroids(theta, np.where(held, mass, previous.mass))


def sample_weight(counts: Ints, noise: float = 0.0) -> Floats:
    """Weigh class means by the samples behind them [C B], up to `FULL`.

    With `noise` of standard deviation noise / n in every number of a mean of n samples, it counts as one
    of so many exact samples as would make it as uncertain: next to none where noise drowns it.
    """
    worth = counts / (1.0 + noise**2 / (SCATTER * np.maximum(counts, 1)))
    return np.minimum(worth, FULL) / FULL


def reach(spread: Floats) -> Floats:
    """Tell how far from each cluster [K] a client may be that belongs to it; infinite where nobody knows.

    spread [K 3]: its clients, their mean error (one minus cosine) and the mean absolute deviation of errors.
    A centroid's own clients are nearer to it than others: the squared distance to a mean of n grows by
    (n + 1) / (n - 1) for one that is not among them. A single client says nothing of how far others may be;
    they are taken to scatter as in the other clusters, and are twice as far from it as from their mean.
    """
    count, mean, deviation = spread.T
    known = (count > 1) & np.isfinite(mean)
    if not known.any():
        return np.full(len(spread), np.inf)
    n = count[known]
    scatter, width = n @ mean[known] / (n - 1).sum(), n @ deviation[known] / n.sum()
    alone = 2.0 * (scatter + FAR * SD * width)
    own = (mean + FAR * SD * deviation) * (count + 1) / np.maximum(count - 1, 1)
    far = np.where(known, own, np.where(count > 0, alone, np.inf))
    result: Floats = np.where(np.isfinite(far), far, np.inf)
    return result


def class_norm(phi: Floats) -> Floats:
    """Scale each block of metadata [C B F] to length one; zero stays zero."""
    length = np.linalg.norm(phi, axis=2, keepdims=True)
    scaled: Floats = np.divide(phi, length, out=np.zeros_like(phi), where=length > 0)
    return scaled


def unit_norm(phi: Floats) -> Floats:
    """Scale each client's metadata [C B F] to length one over all its blocks; zero stays zero."""
    length = np.sqrt(np.einsum("cbf,cbf->c", phi, phi))[:, None, None]
    scaled: Floats = np.divide(phi, length, out=np.zeros_like(phi), where=length > 0)
    return scaled
