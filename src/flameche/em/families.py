"""The families that clients can be modelled by, by name."""

from __future__ import annotations

from typing import Literal

from flameche.em.gaussian import Gaussian
from flameche.em.mixture import Family
from flameche.em.multinomial import Multinomial
from flameche.em.vmf import Spherical, Vmf

FamilyName = Literal["full", "vmf", "gaussian", "multinomial", "spherical"]


def make_family(name: FamilyName, blocks: int, features: int) -> Family:
    """Make a family for metadata of this shape; "full" is of sketches (`Full.within`)."""
    if name == "full":
        raise ValueError('the family "full" is of sketches, which come from a clustering session')
    if name == "multinomial":
        return Multinomial(blocks if blocks > 1 else features)  # one block: label counts are the metadata
    if name == "gaussian":
        return Gaussian(blocks, features)
    return Vmf(blocks, features) if name == "vmf" else Spherical(blocks, features)
