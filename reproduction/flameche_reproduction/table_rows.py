"""Rows of the paper's tables and of our own: each says what its runs change of a set's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flameche_reproduction.planned_runs import FORMER_DEFAULT, TableRow

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
FORMER_TITLE = "FLAMECHE, former default mode, since removed (m)"
KS = range(2, 9)


def _method(kind: str, *more: str) -> tuple[str, ...]:
    return (f"method.kind={kind}", *more)


PAPER_MODE = _method("flameche", "method.mode=paper")
FORMER_MODE = _method("flameche", FORMER_DEFAULT)
DEFAULT_MODE = _method("flameche", "method.mode=sketch")
MAIN = {
    **{kind: TableRow(title, _method(kind)) for kind, title in TITLES.items()},
    "flameche-paper": TableRow("FLAMECHE, paper mode (m)", PAPER_MODE),
    "flameche-robust": TableRow(FORMER_TITLE, FORMER_MODE),
    "flameche": TableRow("FLAMECHE (m)", DEFAULT_MODE),
}
LACKING = ("data.label_skew=false", "data.missing_labels=1")
MISSING = {
    **{
        kind: TableRow(TITLES[kind], (*_method(kind), *LACKING))
        for kind in TITLES
        if kind not in ("oracle", "fedavg")
    },
    "flameche-paper": TableRow("FLAMECHE, paper mode (m)", (*PAPER_MODE, "method.missing=impute", *LACKING)),
    "flameche-robust": TableRow(FORMER_TITLE, (*FORMER_MODE, *LACKING)),
    "flameche": TableRow("FLAMECHE (m)", (*DEFAULT_MODE, *LACKING)),
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
    kind: TableRow(title, (*PAPER_MODE, f"metadata.kind={kind}", *AXES.get(kind, ())), training=False)
    for kind, title in EXTRACTORS.items()
}
RECLUSTER = {
    "tau-10": TableRow("tau = 10", (*PAPER_MODE, "method.tau=10"), training=False),
    "tau-20": TableRow("tau = 20", (*PAPER_MODE, "method.tau=20"), training=False),
    "tau-30": TableRow("tau = 30", (*PAPER_MODE, "method.tau=30"), training=False),
    "never": TableRow("no reclustering", (*PAPER_MODE, "method.tau=0"), training=False),
}
M_STEP = {
    "seen": TableRow("all seen clients", (*PAPER_MODE, "method.m_step=seen"), training=False),
    "participants": TableRow("participants", (*PAPER_MODE, "method.m_step=participants"), training=False),
}
SCHEMES = {
    "plain": "in the clear",
    "ckks-paper": "CKKS, the paper's parameters",
    "ckks": "CKKS, ours",
    "bfv": "BFV",
}
CKKS = {
    kind: TableRow(title, (*PAPER_MODE, f"scheme.kind={kind}", "scheme.min_cluster=1"), training=False)
    for kind, title in SCHEMES.items()
}
DBI = {
    **{f"k-{k}": TableRow(f"K = {k}", (*PAPER_MODE, f"method.clusters={k}"), training=False) for k in KS},
    **{
        f"k-{k}-trained": TableRow(f"K = {k}, trained", (*PAPER_MODE, f"method.clusters={k}"), seeds=(0,))
        for k in KS
    },
}


@dataclass(frozen=True)
class Change:
    """A change of a row: words for its title, which may be empty, and overrides."""

    said: str
    words: tuple[str, ...]


def _change(said: str, *words: str) -> Change:
    return Change(said, words)


def _row(
    kind: str,
    *changes: Change,
    seeds: tuple[int, ...] | None = (0,),
    settings: tuple[str, ...] | None = None,
    datasets: tuple[str, ...] | None = None,
    table: Mapping[str, TableRow] = MAIN,
) -> TableRow:
    taken = table[kind]
    said = ", ".join(change.said for change in changes if change.said)
    title = f"{taken.title.partition(' (')[0]}: {said}" if said else taken.title
    overrides = (*taken.overrides, *(word for change in changes for word in change.words))
    return TableRow(title, overrides, seeds=seeds, settings=settings, datasets=datasets)


CSL, FDS, CSF = ("csl",), ("fds",), ("csf",)
FASHION, CIFAR, PATH = ("fashion-mnist",), ("cifar10",), ("pathmnist",)
HELD = _change("47.5% held out", "data.holdout=0.475")  # 30% for tests, a quarter of the rest for validation
SHORT = _change("short batches too", "training.drop_last=false")
EPOCH = _change("one local epoch", "training.epochs=1")
STAY = _change("absent members stay in averages", "training.absent=stay")
SGD = _change(  # as PACFL was published
    "trained by SGD", "training.optimiser=sgd", "training.lr=0.01", "training.momentum=0.5"
)
CENTRES = _change("newcomers by the first centres", "method.newcomers=first")
BASES = _change("bases as they are, complete linkage", "method.angle=raw-sum", "method.linkage=complete")
ONE_START, FIVE_STARTS = _change("one start", "method.restarts=1"), _change("five starts")
RANDOM = _change("first model at random", "method.first=random")
SHIFTS = _change("flips and shifts", "training.augment=true")
WHOLE = _change("nothing held out", "data.holdout=0")
MOVED = _change("flips, shifts, nothing held out", *SHIFTS.words, *WHOLE.words)
UNPOOLED = _change("no pooling in the stem", "model.kind=resnet18-unpooled")
ONE_BN = _change("one client's BatchNorm statistics", "training.bn_buffers=first")
OWN_BN = _change("own BatchNorm statistics", "training.bn_buffers=local")
MEMBER_BN = _change("the first member's BatchNorm statistics", "training.bn_buffers=member")
PAIRS = _change(  # the authors' for MNIST
    "MNIST's pairs swapped", 'data.transforms=["swap:1,7","swap:2,7","swap:4,7","swap:3,8"]'
)
UNSKEWED = _change("no label skew", "data.label_skew=false")
GROUP = _change("", "data.missing_by=group")  # the rule of that table
EACH = _change("each client's own label")
BF16 = _change("", "training.precision=bf16")
FIFTH, TENTH, TWENTIETH = (_change("", f"training.evaluate_every={n}") for n in (5, 10, 20))


def _slow(rate: float) -> Change:
    return _change(f"server_lr {rate}", f"training.server_lr={rate}")


def _below(taken: Mapping[str, TableRow], others: Mapping[str, TableRow]) -> dict[str, TableRow]:
    """Insert below each row the rows whose names begin with its name."""
    rows: dict[str, TableRow] = {}
    for name, row in taken.items():
        rows[name] = row
        rows |= {other: others[other] for other in others if other.startswith(f"{name}-")}
    return rows


READINGS = _below(
    MAIN,
    {
        **{f"{name}-all": _row(name, SHORT, seeds=None) for name in MAIN},
        "oracle-less": _row("oracle", HELD, SHORT),
        "fedavg-less": _row("fedavg", HELD, SHORT),
        "fedavg-stay": _row("fedavg", STAY, SHORT, TENTH, settings=FDS + CSF, datasets=FASHION),
        "fedgroup-weights": _row("fedgroup", _change("newcomers by weights", "method.newcomers=weights")),
        "stocfl-adam": _row("stocfl", _change("first updates by Adam", "method.first=adam")),
        "stocfl-slow": _row("stocfl", _slow(0.4)),
        "stocfl-stay": _row("stocfl", STAY, SHORT, seeds=None),
        "fesem-different": _row("fesem", _change("K different models", "method.start=different")),
        "fesem-shared": _row("fesem", _change("K copies, random centre", "method.start=shared")),
        "fesem-first": _row("fesem", CENTRES, seeds=None),
        "ifca-one": _row("ifca", ONE_START),
        "ifca-random": _row("ifca", ONE_START, RANDOM),
        "ifca-random-five": _row("ifca", FIVE_STARTS, RANDOM),
        "ifca-stay": _row("ifca", FIVE_STARTS, RANDOM, STAY, SHORT),
        "ifca-slow": _row("ifca", _slow(0.3)),
        "kfed-epoch": _row("kfed", EPOCH),
        "kfed-less": _row("kfed", EPOCH, HELD, SHORT, seeds=None),
        "kfed-slow": _row("kfed", _slow(0.2)),
        "kfed-sgd": _row("kfed", SGD),
        "pacfl-smallest": _row("pacfl", _change("smallest angle", "method.angle=smallest")),
        "pacfl-sum": _row("pacfl", _change("sum of angles", "method.angle=sum")),
        "pacfl-slow": _row("pacfl", _slow(0.2)),
        "pacfl-sgd": _row("pacfl", SGD, settings=CSL),
        "pacfl-sgd-less": _row("pacfl", BASES, SGD, HELD, SHORT, TENTH, settings=CSL),
        "pacfl-less": _row("pacfl", BASES, EPOCH, HELD, SHORT),
        "pacfl-less-stay": _row("pacfl", BASES, EPOCH, STAY, HELD, SHORT, TENTH, settings=CSL),
    },
)


def _cifar(kind: str, settings: tuple[str, ...], *changes: Change) -> TableRow:
    return _row(kind, *changes, MOVED, BF16, TENTH, settings=settings, datasets=CIFAR)


def _path(kind: str, name: str, *changes: Change) -> dict[str, TableRow]:
    """PathMNIST's rows with statistics of one client: under csl with other pairs."""
    return {
        f"{kind}-{name}": _row(kind, *changes, HELD, settings=FDS + CSF, datasets=PATH),
        f"{kind}-{name}-pairs": _row(kind, *changes, HELD, PAIRS, settings=CSL, datasets=PATH),
    }


def _own(kind: str, *changes: Change) -> dict[str, TableRow]:
    return _path(kind, "own", *changes, OWN_BN, TWENTIETH)


def _member(kind: str, *changes: Change) -> dict[str, TableRow]:
    return _path(kind, "member", *changes, MEMBER_BN, BF16, FIFTH)


RECIPES = {  # what the paper leaves open of the training itself
    **{kind: MAIN[kind] for kind in ("oracle", "fedavg", "flameche-robust", "flameche")},
    "oracle-augment": _row("oracle", SHIFTS, settings=CSL, datasets=CIFAR + PATH),
    "oracle-whole": _row("oracle", WHOLE, settings=CSL, datasets=PATH),
    "oracle-augment-whole": _row("oracle", MOVED, datasets=CIFAR),
    "oracle-unpooled": _cifar("oracle", FDS + CSF, UNPOOLED),
    "oracle-first-bn": _row("oracle", ONE_BN, settings=CSL, datasets=CIFAR + PATH),
    "oracle-local-bn": _row("oracle", OWN_BN, settings=CSL, datasets=PATH),
    **_own("oracle"),
    **_member("oracle"),
    "fedavg-augment-whole": _row("fedavg", MOVED, datasets=CIFAR),
    "fedavg-unpooled": _cifar("fedavg", FDS, UNPOOLED),
    "fedavg-first-bn": _row("fedavg", ONE_BN, settings=CSL, datasets=PATH),
    **_own("fedavg"),
    **_member("fedavg"),
    "fedgroup-augment-whole": _cifar("fedgroup", CSL + FDS + CSF),
    "fedgroup-unpooled": _cifar("fedgroup", FDS + CSF, UNPOOLED),
    **_own("fedgroup"),
    **_member("fedgroup"),
    "stocfl-stay": _row("stocfl", STAY, BF16, TENTH, settings=CSF, datasets=CIFAR),
    "stocfl-stay-held": _row("stocfl", STAY, HELD, BF16, TENTH, settings=CSF, datasets=CIFAR),
    "stocfl-augment-whole": _cifar("stocfl", CSL, STAY),
    "stocfl-unpooled": _cifar("stocfl", CSF, STAY, UNPOOLED),
    **_member("stocfl", STAY),
    "fesem-augment-whole": _cifar("fesem", CSL + FDS + CSF, CENTRES),
    "fesem-unpooled": _cifar("fesem", CSL + FDS, CENTRES, UNPOOLED),
    **_member("fesem", CENTRES),
    "ifca-augment-whole": _cifar("ifca", CSL + FDS + CSF, ONE_START, RANDOM),
    "ifca-unpooled": _cifar("ifca", CSL + CSF, ONE_START, RANDOM, STAY, UNPOOLED),
    "ifca-local-bn": _row(
        "ifca",
        ONE_START,
        RANDOM,
        OWN_BN,
        _change("full batches", "training.drop_last=true"),
        BF16,
        settings=CSL,
        datasets=PATH,
    ),
    **_member("ifca", ONE_START, RANDOM),
    "kfed-augment-whole": _cifar("kfed", CSL + FDS + CSF, EPOCH),
    "kfed-unpooled": _cifar("kfed", CSL + FDS + CSF, EPOCH, UNPOOLED),
    **_own("kfed", EPOCH),
    **_member("kfed"),
    "pacfl-unpooled": _cifar("pacfl", FDS, BASES, EPOCH, UNPOOLED),
    **_member("pacfl", BASES),
}


def _lacking(kind: str, *changes: Change, seeds: tuple[int, ...] | None = (0,)) -> TableRow:
    return _row(kind, GROUP, *changes, seeds=seeds, datasets=FASHION, table=MISSING)


def _lacking_moved(kind: str, *changes: Change, who: Change = GROUP) -> TableRow:
    return _row(kind, who, *changes, UNPOOLED, MOVED, BF16, TENTH, datasets=CIFAR, table=MISSING)


MISSING_READINGS = _below(
    {kind: _lacking(kind) for kind in MISSING if kind != "ifca"},  # whose accuracy is the paper's as it is
    {
        "fedgroup-held": _lacking("fedgroup", HELD),
        "fedgroup-moved": _lacking_moved("fedgroup"),
        "fedgroup-each": _lacking_moved("fedgroup", who=EACH),
        "stocfl-stay": _lacking("stocfl", STAY, SHORT),
        "fesem-held": _lacking("fesem", CENTRES, HELD),
        "fesem-moved": _lacking_moved("fesem", CENTRES),
        "fesem-each": _lacking_moved("fesem", CENTRES, who=EACH),
        "kfed-epoch": _lacking("kfed", EPOCH),
        "kfed-less": _lacking("kfed", EPOCH, HELD, SHORT, seeds=None),
        "kfed-moved": _lacking_moved("kfed", EPOCH),
        "pacfl-less": _lacking("pacfl", BASES, EPOCH, HELD, SHORT),
        "pacfl-moved": _lacking_moved("pacfl", BASES, EPOCH),
        "flameche-paper-held": _lacking("flameche-paper", HELD),
        "flameche-paper-moved": _lacking_moved("flameche-paper"),
        "flameche-robust-held": _lacking("flameche-robust", HELD, seeds=None),
        "flameche-robust-moved": _lacking_moved("flameche-robust"),
        "flameche-robust-each": _lacking_moved("flameche-robust", who=EACH),
        "flameche-held": _lacking("flameche", HELD, seeds=None),
        "flameche-moved": _lacking_moved("flameche"),
        "flameche-each": _lacking_moved("flameche", who=EACH),
    },
)


def _cluster(
    kind: str,
    *changes: Change,
    seeds: tuple[int, ...] | None = None,
    settings: tuple[str, ...] | None = None,
) -> TableRow:
    return replace(_row(kind, *changes, seeds=seeds, settings=settings), training=False)


def _bases(said: str, angle: str) -> Change:
    said = f"{said} of bases as they are, complete linkage"
    return _change(said, f"method.angle={angle}", "method.linkage=complete")


CLUSTERS = {
    "flameche-paper": _cluster("flameche-paper"),
    "flameche-seen": _cluster("flameche-paper", _change("empty over all seen", "method.empty=seen")),
    "flameche-unskewed": _cluster("flameche-paper", UNSKEWED, settings=CSF),
    "flameche-pairs": _cluster("flameche-paper", PAIRS, settings=CSL),
    "kfed": _cluster("kfed"),
    "kfed-unskewed": _cluster("kfed", UNSKEWED, settings=CSF),
    "kfed-pairs": _cluster("kfed", PAIRS, settings=CSL),
    "pacfl": _cluster("pacfl", seeds=(0,)),
    "pacfl-raw-cosine": _cluster("pacfl", _bases("mean cosine", "raw-cosine"), seeds=(0,)),
    "pacfl-raw-sum": _cluster("pacfl", _bases("sum of angles", "raw-sum"), seeds=(0,)),
}
