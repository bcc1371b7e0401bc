"""Every table and figure of the paper by name, with the rows of which it is made.

The paper's second figure, which draws the algorithm, is no result and not here; `readings`, `clusters`,
`recipes` and `missing-readings` are ours.
"""

from __future__ import annotations

from typing import Any

from flameche.errors import BadInput
from flameche.experiments.error_messages import did_you_mean
from flameche_reproduction.image_sets import PAPER_SETS, SETTINGS
from flameche_reproduction.planned_runs import CatalogueEntry
from flameche_reproduction.table_rows import (
    CKKS,
    CLUSTERS,
    DBI,
    M_STEP,
    MAIN,
    METADATA,
    MISSING,
    MISSING_READINGS,
    READINGS,
    RECIPES,
    RECLUSTER,
)

GPU = "one GPU"  # LeNet-5's sets take hours on two cores, ResNet-18's weeks
CPU = "a CPU"  # features of ResNet-18 take minutes a seed there, seconds on a GPU
BENCH = "an idle CPU"
_TABLES: tuple[dict[str, Any], ...] = (
    {
        "name": "accuracy",
        "title": "Accuracy over all settings",
        "where": "Table 2",
        "hardware": GPU,
        "keep": "main",
        "rows": MAIN,
    },
    *(
        {
            "name": setting,
            "title": f"ARI and accuracy: {title}",
            "where": f"Table {number}",
            "hardware": GPU,
            "keep": "main",
            "rows": MAIN,
            "settings": (setting,),
        }
        for number, (setting, title) in enumerate(SETTINGS.items(), 4)
    ),
    {
        "name": "metadata",
        "title": "What clients tell of their data: clustering by it",
        "where": "Table 3",
        "hardware": CPU,
        "keep": "ablations",
        "rows": METADATA,
    },
    {
        "name": "missing",
        "title": "One label missing at every client",
        "where": "Table 7",
        "hardware": GPU,
        "keep": "ablations",
        "rows": MISSING,
        "datasets": ("fashion-mnist", "cifar10"),
        "settings": ("csf",),
    },
    {
        "name": "missing-curves",
        "kind": "figure",
        "title": "Accuracy per round, one label missing at every client",
        "where": "Figure 5",
        "hardware": GPU,
        "keep": "ablations",
        "rows": MISSING,
        "datasets": ("cifar10",),
        "settings": ("csf",),
    },
    {
        "name": "recluster",
        "title": "Reclustering every tau rounds",
        "where": "Table 8",
        "hardware": CPU,
        "keep": "ablations",
        "rows": RECLUSTER,
        "datasets": ("fashion-mnist", "pathmnist", "cifar10"),
        "settings": ("csf", "csl", "fds"),
        "seeds": (0, 1, 2),
    },
    {
        "name": "m-step",
        "title": "M-step over all seen clients, or over participants",
        "where": "Table 9",
        "hardware": CPU,
        "keep": "ablations",
        "rows": M_STEP,
    },
    {
        "name": "ckks",
        "title": "What encryption's noise does to the clusters",
        "where": "Table 10",
        "hardware": CPU,
        "keep": "ablations",
        "rows": CKKS,
    },
    {
        "name": "crypto-time",
        "title": "Time that encryption takes",
        "where": "Table 11",
        "hardware": BENCH,
        "command": "bench crypto",
        "file": "bench-crypto.json",
    },
    {
        "name": "communication",
        "title": "What a client sends",
        "where": "Table 12",
        "hardware": BENCH,
        "command": "bench crypto",
        "file": "bench-crypto.json",
    },
    {
        "name": "complexity",
        "title": "What clustering costs beyond FedAvg, measured",
        "where": "Table 1",
        "hardware": BENCH,
        "command": "overhead",
        "file": "overhead.json",
    },
    {
        "name": "trilemma",
        "kind": "figure",
        "title": "The trilemma: computation, communication, what is exposed",
        "where": "Figure 1",
        "hardware": BENCH,
        "command": "overhead",
        "file": "overhead.json",
    },
    {
        "name": "ranks",
        "kind": "figure",
        "title": "Aligned ranks over sets, settings and seeds",
        "where": "Figure 3",
        "hardware": GPU,
        "keep": "main",
        "rows": {name: row for name, row in MAIN.items() if name != "oracle"},
    },
    {
        "name": "dbi",
        "kind": "figure",
        "title": "DBI, ARI and accuracy over the number of clusters",
        "where": "Figure 4",
        "hardware": f"{CPU}; for accuracies {GPU}",
        "keep": "ablations",
        "rows": DBI,
    },
    {
        "name": "readings",
        "title": "Other readings of the compared methods",
        "where": "not in the paper",
        "hardware": GPU,
        "keep": "main",
        "rows": READINGS,
        "datasets": ("mnist", "fashion-mnist"),
    },
    {
        "name": "missing-readings",
        "title": "Other readings of one label missing",
        "where": "not in the paper",
        "hardware": GPU,
        "keep": "ablations",
        "rows": MISSING_READINGS,
        "datasets": ("fashion-mnist", "cifar10"),
        "settings": ("csf",),
        "beside": "missing",
    },
    {
        "name": "clusters",
        "title": "Other readings, clustered without training",
        "where": "not in the paper",
        "hardware": CPU,
        "keep": "ablations",
        "rows": CLUSTERS,
        "datasets": ("mnist", "fashion-mnist", "cifar10", "pathmnist"),
    },
    {
        "name": "recipes",
        "title": "Other ways to train ResNet-18",
        "where": "not in the paper",
        "hardware": GPU,
        "keep": "main",
        "rows": RECIPES,
        "datasets": ("cifar10", "pathmnist"),
        "seeds": (0,),
    },
)
CATALOGUE: dict[str, CatalogueEntry] = {
    table["name"]: CatalogueEntry(**{"kind": "table", "datasets": PAPER_SETS, **table}) for table in _TABLES
}


def find_entry(name: str) -> CatalogueEntry:
    """Return the table or figure of this name; BadInput if there is none."""
    if name not in CATALOGUE:
        near = did_you_mean(name, CATALOGUE) or f"; there are {', '.join(CATALOGUE)}"
        raise BadInput(f"{name}: no table or figure of that name{near}")
    return CATALOGUE[name]
