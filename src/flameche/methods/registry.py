"""The list of methods: one line each."""

from __future__ import annotations

from typing import Any

from flameche.methods.base import Method, World
from flameche.methods.fedavg import FedAvg
from flameche.methods.fedgroup import FedGroup
from flameche.methods.fesem import Fesem
from flameche.methods.flameche import Flameche
from flameche.methods.ifca import Ifca
from flameche.methods.kfed import KFed
from flameche.methods.oracle import Oracle
from flameche.methods.pacfl import Pacfl
from flameche.methods.sketch import FlamecheSketch
from flameche.methods.soft import Soft
from flameche.methods.stocfl import StoCfl

METHODS: dict[str, type[Method]] = {
    "flameche": Flameche,
    "flameche-soft": Soft,
    "fedavg": FedAvg,
    "oracle": Oracle,
    "fedgroup": FedGroup,
    "stocfl": StoCfl,
    "fesem": Fesem,
    "ifca": Ifca,
    "kfed": KFed,
    "pacfl": Pacfl,
}


def make_method(kind: str, world: World, options: dict[str, Any]) -> Method:
    """Build a method by its kind and options; FLAMECHE's modes are classes of their own."""
    if kind == "flameche" and options.get("mode") != "paper":
        some = {key: options[key] for key in ("clusters", "most_clusters") if key in options}
        return FlamecheSketch(world, **some)
    others = ("mode",) if kind == "flameche-soft" else ("mode", "most_clusters")
    return METHODS[kind](world, **{key: value for key, value in options.items() if key not in others})
