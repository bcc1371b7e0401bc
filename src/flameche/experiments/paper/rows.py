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


def _title(kind: str, said: str) -> str:
    return f"{TITLES[kind].partition(' (')[0]}: {said}"


def _other(said: str, kind: str, *changes: str, seeds: tuple[int, ...] | None = FIRST) -> Row:
    return Row(_title(kind, said), _method(kind, *changes), seeds=seeds)


SGD = ("training.optimiser=sgd", "training.lr=0.01", "training.momentum=0.5")  # as PACFL published it
HELD = "data.holdout=0.475"  # 30% for tests, a quarter of the rest for validation
LESS = (HELD, "training.drop_last=false")
STAY = ("training.absent=stay", "training.drop_last=false")
OTHERS = {
    "oracle-less": _other("47.5% held out, short batches too", "oracle", *LESS),
    "fedavg-less": _other("47.5% held out, short batches too", "fedavg", *LESS),
    "fedgroup-weights": _other("newcomers by weights", "fedgroup", "method.newcomers=weights"),
    "stocfl-adam": _other("first updates by Adam", "stocfl", "method.first=adam"),
    "stocfl-slow": _other("server_lr 0.4", "stocfl", "training.server_lr=0.4"),
    "stocfl-stay": _other("absent members stay in averages, short batches too", "stocfl", *STAY, seeds=None),
    "fesem-different": _other("K different models", "fesem", "method.start=different"),
    "fesem-shared": _other("K copies, random centre", "fesem", "method.start=shared"),
    "fesem-first": _other("newcomers by the first centres", "fesem", "method.newcomers=first", seeds=None),
    "ifca-one": _other("one start", "ifca", "method.restarts=1"),
    "ifca-random": _other(
        "one start, first model at random", "ifca", "method.restarts=1", "method.first=random"
    ),
    "ifca-random-five": _other("five starts, first model at random", "ifca", "method.first=random"),
    "ifca-stay": _other(
        "five starts, first model at random, absent members stay in averages, short batches too",
        "ifca",
        "method.first=random",
        *STAY,
    ),
    "ifca-slow": _other("server_lr 0.3", "ifca", "training.server_lr=0.3"),
    "kfed-epoch": _other("one local epoch", "kfed", "training.epochs=1"),
    "kfed-less": _other(
        "one local epoch, 47.5% held out, short batches too", "kfed", "training.epochs=1", *LESS, seeds=None
    ),
    "kfed-slow": _other("server_lr 0.2", "kfed", "training.server_lr=0.2"),
    "kfed-sgd": _other("trained by SGD", "kfed", *SGD),
    "pacfl-smallest": _other("smallest angle", "pacfl", "method.angle=smallest"),
    "pacfl-sum": _other("sum of angles", "pacfl", "method.angle=sum"),
    "pacfl-slow": _other("server_lr 0.2", "pacfl", "training.server_lr=0.2"),
    "pacfl-sgd": _other("trained by SGD", "pacfl", *SGD),
    "pacfl-less": _other(
        "bases as they are, complete linkage, one local epoch, 47.5% held out, short batches too",
        "pacfl",
        "training.epochs=1",
        *LESS,
        "method.angle=raw-sum",
        "method.linkage=complete",
    ),
}
READINGS: dict[str, Row] = {}
for _name, _taken in MAIN.items():  # each method, and below it how else it can be read
    READINGS[_name] = _taken
    READINGS[f"{_name}-all"] = Row(
        f"{_taken.title}: short batches too", (*_taken.overrides, "training.drop_last=false")
    )
    READINGS |= {other: row for other, row in OTHERS.items() if other.partition("-")[0] == _name}
AUTHORS = 'data.transforms=["swap:1,7","swap:2,7","swap:4,7","swap:3,8"]'  # their pairs for MNIST
HALF = "training.precision=bf16"
CSL, ALL = ("csl",), ("csl", "fds", "csf")
CIFAR, PATH = ("cifar10",), ("pathmnist",)


def _recipe(kind: str, said: str, datasets: tuple[str, ...], settings: tuple[str, ...], *changes: str) -> Row:
    return Row(_title(kind, said), _method(kind, *changes), settings=settings, datasets=datasets)


def _moved(kind: str, title: str, settings: tuple[str, ...], *changes: str) -> Row:
    said = f"{title}flips, shifts, nothing held out"
    moved = ("training.augment=true", "data.holdout=0", HALF, "training.evaluate_every=10")
    return _recipe(kind, said, CIFAR, settings, *changes, *moved)


def _own(kind: str, title: str = "", *changes: str) -> dict[str, Row]:
    said = f"{title}own BatchNorm statistics, 47.5% held out"
    how = (*changes, "training.bn_buffers=local", "training.evaluate_every=20", HELD)
    return {
        f"{kind}-own": _recipe(kind, said, PATH, ("fds", "csf"), *how),
        f"{kind}-own-pairs": _recipe(kind, f"{said}, MNIST's pairs swapped", PATH, CSL, *how, AUTHORS),
    }


WHOLE = ("flips, shifts, nothing held out", CIFAR, ALL, "training.augment=true", "data.holdout=0")
ONE_BN, FIRST_BN = "one client's BatchNorm statistics", "training.bn_buffers=first"
UNPOOLED = "model.kind=resnet18-unpooled"
RECIPES = {  # what the paper leaves open of the training itself
    **{kind: MAIN[kind] for kind in ("oracle", "fedavg", "flameche-robust")},
    "oracle-augment": _recipe("oracle", "flips and shifts", CIFAR + PATH, CSL, "training.augment=true"),
    "oracle-whole": _recipe("oracle", "nothing held out", PATH, CSL, "data.holdout=0"),
    "oracle-augment-whole": _recipe("oracle", *WHOLE),
    "oracle-unpooled": _moved("oracle", "no pooling in the stem, ", ("fds",), UNPOOLED),
    "oracle-first-bn": _recipe("oracle", ONE_BN, CIFAR + PATH, CSL, FIRST_BN),
    "oracle-local-bn": _recipe("oracle", "own BatchNorm statistics", PATH, CSL, "training.bn_buffers=local"),
    **_own("oracle"),
    "fedavg-augment-whole": _recipe("fedavg", *WHOLE),
    "fedavg-first-bn": _recipe("fedavg", ONE_BN, PATH, CSL, FIRST_BN),
    **_own("fedavg"),
    "fedgroup-augment-whole": _moved("fedgroup", "", ALL),
    **_own("fedgroup"),
    "stocfl-augment-whole": _moved(
        "stocfl", "absent members stay in averages, ", CSL, "training.absent=stay"
    ),
    "fesem-augment-whole": _moved("fesem", "newcomers by the first centres, ", ALL, "method.newcomers=first"),
    "ifca-augment-whole": _moved(
        "ifca", "one start, first model at random, ", ALL, "method.first=random", "method.restarts=1"
    ),
    "ifca-local-bn": _recipe(
        "ifca",
        "one start, first model at random, own BatchNorm statistics, full batches",
        PATH,
        CSL,
        "method.restarts=1",
        "method.first=random",
        "training.bn_buffers=local",
        "training.drop_last=true",
        HALF,
    ),
    "kfed-augment-whole": _moved("kfed", "one local epoch, ", ALL, "training.epochs=1"),
    "kfed-unpooled": _moved(
        "kfed", "one local epoch, no pooling in the stem, ", ALL, "training.epochs=1", UNPOOLED
    ),
    **_own("kfed", "one local epoch, ", "training.epochs=1"),
}
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
