"""The families that clients can be modelled by, by name."""

from __future__ import annotations

from typing import Literal

from flameche.em.gaussian import Gaussian
from flameche.em.mixture import Family
from flameche.em.multinomial import Multinomial
from flameche.em.vmf import Spherical, Vmf

FamilyName = Literal["vmf", "gaussian", "multinomial", "spherical"]


def make_family(
    name: FamilyName, blocks: int, features: int, *, projection: int = 0, seed: int = 0
) -> Family:
    """Make a family for metadata of this shape; a projection to as many features or more is none."""
    if name == "multinomial":
        return Multinomial(blocks if blocks > 1 else features)  # one block: label counts are the metadata
    if name == "gaussian":
        return Gaussian(blocks, features, projection if projection < features else 0, seed)
    return Vmf(blocks, features) if name == "vmf" else Spherical(blocks, features)
