"""The list of methods: one line each."""

from __future__ import annotations

from flameche.methods.base import Method
from flameche.methods.fedavg import FedAvg
from flameche.methods.flameche import Flameche
from flameche.methods.oracle import Oracle

METHODS: dict[str, type[Method]] = {
    "flameche": Flameche,
    "fedavg": FedAvg,
    "oracle": Oracle,
}
