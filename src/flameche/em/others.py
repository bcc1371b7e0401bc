"""Comparing a client with a cluster's other members: what k-means with few clients per centroid lacks.

A client's own term draws the centroid that holds it towards the client: of n members by 1/n, and by more in
classes that others lack. So it stays where chance has put it, and clusters that chance has made stay too.
Hartigan, "Clustering Algorithms", 1975, therefore moves a point by its distances from the *others'* means.
The client knows its own term and opened sums, and takes the one out of the other.

Most clusters differ in some classes only, and a client may lack these. In the others the clusters' means
differ by chance, so clusters share a mean there (`alike`): what remains tells more of the client.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flameche.em.spherical import NOISE, Centroids, Floats
from flameche.em.ward import by_block

ALIKE = 2.75  # times what chance makes of two means of one group
AT_ONCE = 2_000_000  # numbers in one array over clients, clusters and blocks


def alike(centroids: Centroids, clients: float) -> NDArray[np.bool_]:
    """Tell in which blocks clusters do not differ [K K B]: by less than chance would make of `clients`.

    Blocks are of length one, so that theta tells how far members scatter around it. Two means of one group
    are apart by the variance of one client, on average, once weighed as Ward does. Who lacks a block is
    counted as a client all the same, so that rather too few blocks are shared. Clusters that differ nowhere
    are no case of it: these are somebody else's to merge.
    """
    theta, mass = centroids.theta, np.where(centroids.mass > NOISE, centroids.mass, 0.0)
    squares = np.einsum("kbf,kbf->kb", theta, theta)
    filled = int(mass.any(axis=1).sum())
    scatter = (mass * np.maximum(1.0 - squares, 0.0)).sum(axis=0) / max(clients - filled, 1.0)
    real = Centroids(theta, mass)
    same: NDArray[np.bool_] = by_block(real, real) <= ALIKE * scatter
    same &= ~same.all(axis=2, keepdims=True)
    same |= np.eye(len(theta), dtype=bool)[:, :, None]
    return same


def cosine(phi: Floats, weight: Floats, centroids: Centroids, own: Floats) -> Floats:
    """Compare clients with centroids from which own [C K] times their own terms are taken out.

    phi [C B F], weight [C B] -> cosine [C K], over the blocks that both have. A block that nobody else has is
    lent, as by `spherical.filled`. Who is alone in a cluster is compared with itself, for a group may be one
    client.
    """
    step = max(1, AT_ONCE // max(1, centroids.mass.size))
    if len(phi) > step:
        parts = [slice(at, at + step) for at in range(0, len(phi), step)]
        return np.concatenate([cosine(phi[some], weight[some], centroids, own[some]) for some in parts])
    mass = np.where(centroids.mass > NOISE, centroids.mass, 0.0)
    total, part = mass[:, :, None] * centroids.theta, own[:, :, None] * weight[:, None]  # [K B F], [C K B]
    company = (mass - part).max(axis=2, keepdims=True) > NOISE
    every = total.sum(axis=0)[None], mass.sum(axis=0)[None], part.sum(axis=1)[:, None]
    if centroids.alike is not None:
        share = centroids.alike.astype(np.float64)
        total, mass = np.einsum("klb,lbf->kbf", share, total), np.einsum("klb,lb->kb", share, mass)
        joined = np.matmul(part.transpose(2, 0, 1), share.transpose(2, 1, 0))  # [B C K]
        part = np.ascontiguousarray(joined.transpose(1, 2, 0))
    part = np.where(company, part, 0.0)
    total, mass = np.concatenate([total, every[0]]), np.concatenate([mass, every[1]])
    part = np.concatenate([part, every[2]], axis=1)  # everybody's come last, to be lent
    square = np.einsum("cbf,cbf->cb", phi, phi)[:, None]
    dots = np.matmul(phi.transpose(1, 0, 2), total.transpose(1, 2, 0)).transpose(1, 2, 0)
    length = np.einsum("kbf,kbf->kb", total, total) - 2 * part * dots + part**2 * square
    left = mass - part
    held = left > NOISE
    scale = np.divide(1.0, left, out=np.zeros_like(left), where=held)
    dots, length = (dots - part * square) * scale, np.maximum(length, 0.0) * scale**2
    lent = ~held[:, :-1] & held[:, :-1].any(axis=2, keepdims=True)
    dots, length = (np.where(lent, each[:, -1:], each[:, :-1]) for each in (dots, length))
    known = np.where(lent, held[:, -1:], held[:, :-1]) * weight[:, None]
    norms = np.einsum("ckb,cb->ck", known, square[:, 0]) * (known * length).sum(axis=2)
    result: Floats = np.divide(
        (known * dots).sum(axis=2), np.sqrt(norms), out=np.zeros_like(norms), where=norms > 0
    )
    return result
