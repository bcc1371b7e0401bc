"""Rows of the tables and figures: each names what its runs change of a set's description."""

from __future__ import annotations

from flameche.experiments.paper.plan import Row

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
KS = range(2, 9)
FIRST = (0,)  # seed


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
MISSING_BY_GROUP = {
    kind: Row(row.title, (*row.overrides, "data.missing_by=group"), seeds=FIRST)
    for kind, row in MISSING.items()
}
EXTRACTORS = {
    "random-gaussian": "Gaussian",
    "random-uniform": "Uniform",
    "mean": "Mean",
    "mean-pca-local": "Mean + PCA",
    "subspace": "Subspaces (PACFL)",
}
AXES = {"mean-pca-local": ("metadata.components=50",)}  # the paper does not say; 5 gives too low a DBI
METADATA = {
    kind: Row(title, (*PAPER_MODE, f"metadata.kind={kind}", *AXES.get(kind, ())), training=False)
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


def _other(title: str, kind: str, *changes: str) -> Row:
    return Row(f"{TITLES[kind].partition(' (')[0]}: {title}", _method(kind, *changes), seeds=FIRST)


SGD = ("training.optimiser=sgd", "training.lr=0.01", "training.momentum=0.5")  # as PACFL published it
OTHERS = {
    "fedgroup-weights": _other("newcomers by weights", "fedgroup", "method.newcomers=weights"),
    "stocfl-adam": _other("first updates by Adam", "stocfl", "method.first=adam"),
    "stocfl-slow": _other("server_lr 0.4", "stocfl", "training.server_lr=0.4"),
    "fesem-different": _other("K different models", "fesem", "method.start=different"),
    "fesem-shared": _other("K copies, random centre", "fesem", "method.start=shared"),
    "fesem-first": _other("newcomers by the first centres", "fesem", "method.newcomers=first"),
    "ifca-one": _other("one start", "ifca", "method.restarts=1"),
    "ifca-random": _other(
        "one start, first model at random", "ifca", "method.restarts=1", "method.first=random"
    ),
    "ifca-random-five": _other("five starts, first model at random", "ifca", "method.first=random"),
    "ifca-slow": _other("server_lr 0.3", "ifca", "training.server_lr=0.3"),
    "kfed-epoch": _other("one local epoch", "kfed", "training.epochs=1"),
    "kfed-slow": _other("server_lr 0.2", "kfed", "training.server_lr=0.2"),
    "kfed-sgd": _other("trained by SGD", "kfed", *SGD),
    "pacfl-smallest": _other("smallest angle", "pacfl", "method.angle=smallest"),
    "pacfl-sum": _other("sum of angles", "pacfl", "method.angle=sum"),
    "pacfl-slow": _other("server_lr 0.2", "pacfl", "training.server_lr=0.2"),
    "pacfl-sgd": _other("trained by SGD", "pacfl", *SGD),
}
READINGS: dict[str, Row] = {}
for _name, _taken in MAIN.items():  # each method, and below it how else it can be read
    READINGS[_name] = _taken
    READINGS[f"{_name}-all"] = Row(
        f"{_taken.title}: short batches too", (*_taken.overrides, "training.drop_last=false")
    )
    READINGS |= {other: row for other, row in OTHERS.items() if other.partition("-")[0] == _name}
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
AUTHORS = 'data.transforms=["swap:1,7","swap:2,7","swap:4,7","swap:3,8"]'  # their pairs for MNIST
UNSKEWED = "data.label_skew=false"
CLUSTERS = {
    "flameche-paper": Row("FLAMECHE, paper mode (m)", PAPER_MODE, training=False),
    "flameche-seen": Row("FLAMECHE: empty over all seen", (*PAPER_MODE, "method.empty=seen"), training=False),
    "flameche-unskewed": Row(
        "FLAMECHE: no label skew", (*PAPER_MODE, UNSKEWED), training=False, settings=("csf",)
    ),
    "flameche-pairs": Row(
        "FLAMECHE: MNIST's pairs swapped", (*PAPER_MODE, AUTHORS), training=False, settings=("csl",)
    ),
    "kfed": Row(TITLES["kfed"], _method("kfed"), training=False),
    "kfed-unskewed": Row(
        "K-Fed: no label skew", _method("kfed", UNSKEWED), training=False, settings=("csf",)
    ),
    "kfed-pairs": Row(
        "K-Fed: MNIST's pairs swapped", _method("kfed", AUTHORS), training=False, settings=("csl",)
    ),
    "pacfl": Row(TITLES["pacfl"], _method("pacfl"), training=False, seeds=FIRST),
    **{
        f"pacfl-{angle}": Row(
            f"PACFL: {title}, complete linkage",
            _method("pacfl", f"method.angle={angle}", "method.linkage=complete"),
            training=False,
            seeds=FIRST,
        )
        for angle, title in (
            ("raw-cosine", "mean cosine of bases as they are"),
            ("raw-sum", "sum of angles of bases as they are"),
        )
    },
}
