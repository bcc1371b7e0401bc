"""The demo: 20 clients, 4 hidden groups, embedded digits; FLAMECHE, encrypted, beside FedAvg and Oracle."""

from __future__ import annotations

from typing import Any

from flameche.experiments.config import Experiment, parse_experiment

DESCRIPTION: dict[str, Any] = {
    "name": "demo",
    "rounds": 15,
    "participation": 1.0,
    "data": {
        "dataset": "digits",
        "clients": 20,
        "per_label": 6,
        "heterogeneity": "csf",
        "label_skew": False,
    },
    "training": {"epochs": 5, "batch": 32, "lr": 2e-3, "threads": 1},
}


def demo_experiments() -> list[Experiment]:
    """Describe the demo's three runs, the method of interest first."""
    runs = (("flameche", "bfv"), ("fedavg", "plain"), ("oracle", "plain"))
    return [
        parse_experiment(
            {**DESCRIPTION, "method": {"kind": kind}, "scheme": {"kind": scheme}},
            source="demo",
        )
        for kind, scheme in runs
    ]
