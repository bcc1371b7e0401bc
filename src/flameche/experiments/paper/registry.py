"""The registry: every table and figure of the paper by name.

The paper's second figure, which draws the algorithm, is no result and not here; `readings` and `recipes` are
ours.
"""

from __future__ import annotations

from typing import Any

from flameche.errors import BadInput
from flameche.experiments.paper.entries import Entry
from flameche.experiments.paper.plan import Row
from flameche.experiments.paper.sets import PAPER_SETS, SETTINGS
from flameche.experiments.wording import did_you_mean

TITLES = {
    "oracle": "Oracle",
    "fedavg": "FedAvg",
    "fedgroup": "FedGroup (s)",
    "stocfl": "StoCFL (s)",
    "fesem": "FeSEM (s)",
    "ifca": "IFCA (c)",
    "kfed": "K-Fed (m)",
    "pacfl": "PACFL (m)",
}
GPU = "one GPU"  # LeNet-5's sets take hours on two cores, ResNet-18's weeks
CPU = "a CPU"  # features of ResNet-18 take minutes a seed there, seconds on a GPU
BENCH = "an idle CPU"
KS = range(2, 9)


def _method(kind: str, *more: str) -> tuple[str, ...]:
    return (f"method.kind={kind}", *more)


PAPER_MODE = _method("flameche", "method.mode=paper")
ROBUST_MODE = _method("flameche", "method.mode=robust")
MAIN = {
    **{kind: Row(title, _method(kind)) for kind, title in TITLES.items()},
    "flameche-paper": Row("FLAMECHE, paper mode (m)", PAPER_MODE),
    "flameche-robust": Row("FLAMECHE, robust mode (m)", ROBUST_MODE),
}
LACKING = ("data.label_skew=false", "data.missing_labels=1")
MISSING = {
    **{
        kind: Row(TITLES[kind], (*_method(kind), *LACKING))
        for kind in TITLES
        if kind not in ("oracle", "fedavg")
    },
    "flameche-paper": Row("FLAMECHE, paper mode (m)", (*PAPER_MODE, "method.missing=impute", *LACKING)),
    "flameche-robust": Row("FLAMECHE, robust mode (m)", (*ROBUST_MODE, *LACKING)),
}
EXTRACTORS = {
    "random-gaussian": "Gaussian",
    "random-uniform": "Uniform",
    "mean": "Mean",
    "mean-pca-local": "Mean + PCA",
    "subspace": "Subspaces (PACFL)",
}
METADATA = {
    kind: Row(title, (*PAPER_MODE, f"metadata.kind={kind}"), training=False)
    for kind, title in EXTRACTORS.items()
}
RECLUSTER = {
    "tau-10": Row("tau = 10", (*PAPER_MODE, "method.tau=10"), training=False),
    "tau-20": Row("tau = 20", (*PAPER_MODE, "method.tau=20"), training=False),
    "tau-30": Row("tau = 30", (*PAPER_MODE, "method.tau=30"), training=False),
    "never": Row("no reclustering", (*PAPER_MODE, "method.tau=0"), training=False),
}
M_STEP = {
    "seen": Row("all seen clients", (*PAPER_MODE, "method.m_step=seen"), training=False),
    "participants": Row("participants", (*PAPER_MODE, "method.m_step=participants"), training=False),
}
SCHEMES = {
    "plain": "in the clear",
    "ckks-paper": "CKKS, the paper's parameters",
    "ckks": "CKKS, ours",
    "bfv": "BFV",
}
CKKS = {
    kind: Row(title, (*PAPER_MODE, f"scheme.kind={kind}", "scheme.min_cluster=1"), training=False)
    for kind, title in SCHEMES.items()
}
DBI = {
    **{f"k-{k}": Row(f"K = {k}", (*PAPER_MODE, f"method.clusters={k}"), training=False) for k in KS},
    **{
        f"k-{k}-trained": Row(f"K = {k}, trained", (*PAPER_MODE, f"method.clusters={k}"), seeds=(0,))
        for k in KS
    },
}
READINGS = {
    **{kind: MAIN[kind] for kind in ("oracle", "fedavg", "fedgroup")},
    "fedgroup-weights": Row(
        "FedGroup: newcomers by weights", _method("fedgroup", "method.newcomers=weights")
    ),
    "stocfl": MAIN["stocfl"],
    "stocfl-adam": Row("StoCFL: first updates by Adam", _method("stocfl", "method.first=adam")),
    "fesem": MAIN["fesem"],
    "fesem-different": Row("FeSEM: K different models", _method("fesem", "method.start=different")),
    "fesem-shared": Row("FeSEM: K copies, random centre", _method("fesem", "method.start=shared")),
    "ifca": MAIN["ifca"],
    "ifca-one": Row("IFCA: one start", _method("ifca", "method.restarts=1")),
    **{kind: MAIN[kind] for kind in ("kfed", "pacfl")},
    "pacfl-smallest": Row("PACFL: smallest angle", _method("pacfl", "method.angle=smallest")),
    "pacfl-sum": Row("PACFL: sum of angles", _method("pacfl", "method.angle=sum")),
    **{
        f"{kind}-epoch": Row(f"{TITLES[kind]}: one local epoch", _method(kind, "training.epochs=1"))
        for kind in ("oracle", "fedavg", "kfed", "stocfl")
    },
    **{
        f"{kind}-drop": Row(f"{TITLES[kind]}: full batches", _method(kind, "training.drop_last=true"))
        for kind in ("oracle", "fedavg", "fedgroup")
    },
    "flameche-robust-drop": Row(
        "FLAMECHE, robust mode (m): full batches", (*ROBUST_MODE, "training.drop_last=true")
    ),
    **{
        f"{kind}-drop-{epochs}": Row(
            f"{TITLES[kind]}: full batches, {'one local epoch' if epochs == 1 else 'two local epochs'}",
            _method(kind, f"training.epochs={epochs}", "training.drop_last=true"),
        )
        for kind, epochs in (("kfed", 1), ("stocfl", 2), ("ifca", 2))
    },
    "kfed-unskewed-drop-1": Row(
        "K-Fed (m): full batches, one local epoch, no label skew",
        _method("kfed", "training.epochs=1", "training.drop_last=true", "data.label_skew=false"),
    ),
}
RECIPES = {  # what the paper leaves open of the training itself
    **{kind: MAIN[kind] for kind in ("oracle", "fedavg", "flameche-robust")},
    **{
        f"{kind}-{name}": Row(f"{TITLES[kind]}: {title}", _method(kind, *changes))
        for kind in ("oracle", "fedavg")
        for name, title, *changes in (
            ("augment", "flips and shifts", "training.augment=true"),
            ("whole", "nothing held out", "data.holdout=0"),
            ("augment-whole", "flips, shifts, nothing held out", "training.augment=true", "data.holdout=0"),
            ("first-bn", "one client's BatchNorm statistics", "training.bn_buffers=first"),
            ("local-bn", "own BatchNorm statistics", "training.bn_buffers=local"),
        )
    },
}
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
        "seeds": (0,),
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
ENTRIES: dict[str, Entry] = {
    table["name"]: Entry(**{"kind": "table", "datasets": PAPER_SETS, **table}) for table in _TABLES
}


def entry_named(name: str) -> Entry:
    """Find a table or figure; refuse a name that is none."""
    if name not in ENTRIES:
        near = did_you_mean(name, ENTRIES) or f"; there are {', '.join(ENTRIES)}"
        raise BadInput(f"{name}: no table or figure of that name{near}")
    return ENTRIES[name]
