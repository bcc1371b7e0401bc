"""Rows of our own tables: how else what the paper leaves open can be read, and what comes of it."""

from __future__ import annotations

from dataclasses import replace

from flameche.experiments.paper.plan import Row
from flameche.experiments.paper.rows import MAIN, MISSING, PAPER_MODE, TITLES, method

FIRST = (0,)  # seed
CSL, ALL = ("csl",), ("csl", "fds", "csf")
CIFAR, PATH, FASHION = ("cifar10",), ("pathmnist",), ("fashion-mnist",)
SGD = ("training.optimiser=sgd", "training.lr=0.01", "training.momentum=0.5")  # as PACFL published it
EPOCH = "training.epochs=1"
HELD = "data.holdout=0.475"  # 30% for tests, a quarter of the rest for validation
LESS = (HELD, "training.drop_last=false")
ABSENT = "training.absent=stay"
STAY = (ABSENT, "training.drop_last=false")
RANDOM = "method.first=random"
CENTRES = "method.newcomers=first"
RAW = ("method.angle=raw-sum", "method.linkage=complete")
AUTHORS = 'data.transforms=["swap:1,7","swap:2,7","swap:4,7","swap:3,8"]'  # their pairs for MNIST
HALF = "training.precision=bf16"
UNPOOLED = "model.kind=resnet18-unpooled"
UNSKEWED = "data.label_skew=false"
RARELY = "training.evaluate_every=10"
MOVED = ("training.augment=true", "data.holdout=0", HALF, RARELY)


def _title(kind: str, said: str) -> str:
    return f"{TITLES[kind].partition(' (')[0]}: {said}"


def _other(said: str, kind: str, *changes: str, seeds: tuple[int, ...] | None = FIRST) -> Row:
    return Row(_title(kind, said), method(kind, *changes), seeds=seeds)


OTHERS = {
    "oracle-less": _other("47.5% held out, short batches too", "oracle", *LESS),
    "fedavg-less": _other("47.5% held out, short batches too", "fedavg", *LESS),
    "fedavg-stay": replace(
        _other("absent members stay in averages, short batches too", "fedavg", *STAY, RARELY),
        settings=("fds", "csf"),
        datasets=FASHION,
    ),
    "fedgroup-weights": _other("newcomers by weights", "fedgroup", "method.newcomers=weights"),
    "stocfl-adam": _other("first updates by Adam", "stocfl", "method.first=adam"),
    "stocfl-slow": _other("server_lr 0.4", "stocfl", "training.server_lr=0.4"),
    "stocfl-stay": _other("absent members stay in averages, short batches too", "stocfl", *STAY, seeds=None),
    "fesem-different": _other("K different models", "fesem", "method.start=different"),
    "fesem-shared": _other("K copies, random centre", "fesem", "method.start=shared"),
    "fesem-first": _other("newcomers by the first centres", "fesem", CENTRES, seeds=None),
    "ifca-one": _other("one start", "ifca", "method.restarts=1"),
    "ifca-random": _other("one start, first model at random", "ifca", "method.restarts=1", RANDOM),
    "ifca-random-five": _other("five starts, first model at random", "ifca", RANDOM),
    "ifca-stay": _other(
        "five starts, first model at random, absent members stay in averages, short batches too",
        "ifca",
        RANDOM,
        *STAY,
    ),
    "ifca-slow": _other("server_lr 0.3", "ifca", "training.server_lr=0.3"),
    "kfed-epoch": _other("one local epoch", "kfed", EPOCH),
    "kfed-less": _other(
        "one local epoch, 47.5% held out, short batches too", "kfed", EPOCH, *LESS, seeds=None
    ),
    "kfed-slow": _other("server_lr 0.2", "kfed", "training.server_lr=0.2"),
    "kfed-sgd": _other("trained by SGD", "kfed", *SGD),
    "pacfl-smallest": _other("smallest angle", "pacfl", "method.angle=smallest"),
    "pacfl-sum": _other("sum of angles", "pacfl", "method.angle=sum"),
    "pacfl-slow": _other("server_lr 0.2", "pacfl", "training.server_lr=0.2"),
    "pacfl-sgd": replace(_other("trained by SGD", "pacfl", *SGD), settings=CSL),
    "pacfl-sgd-less": replace(
        _other(
            "bases as they are, complete linkage, trained by SGD, 47.5% held out, short batches too",
            "pacfl",
            *SGD,
            *LESS,
            *RAW,
            RARELY,
        ),
        settings=CSL,
    ),
    "pacfl-less": _other(
        "bases as they are, complete linkage, one local epoch, 47.5% held out, short batches too",
        "pacfl",
        EPOCH,
        *LESS,
        *RAW,
    ),
}
READINGS: dict[str, Row] = {}
for _name, _taken in MAIN.items():  # each method, and below it how else it can be read
    READINGS[_name] = _taken
    READINGS[f"{_name}-all"] = Row(
        f"{_taken.title}: short batches too", (*_taken.overrides, "training.drop_last=false")
    )
    READINGS |= {other: row for other, row in OTHERS.items() if other.partition("-")[0] == _name}


def _recipe(kind: str, said: str, datasets: tuple[str, ...], settings: tuple[str, ...], *changes: str) -> Row:
    return Row(_title(kind, said), method(kind, *changes), settings=settings, datasets=datasets)


def _moved(kind: str, title: str, settings: tuple[str, ...], *changes: str) -> Row:
    return _recipe(kind, f"{title}flips, shifts, nothing held out", CIFAR, settings, *changes, *MOVED)


def _unpooled(kind: str, title: str, settings: tuple[str, ...], *changes: str) -> Row:
    return _moved(kind, f"{title}no pooling in the stem, ", settings, *changes, UNPOOLED)


def _statistics(kind: str, name: str, said: str, how: tuple[str, ...]) -> dict[str, Row]:
    said = f"{said}, 47.5% held out"
    return {
        f"{kind}-{name}": _recipe(kind, said, PATH, ("fds", "csf"), HELD, *how),
        f"{kind}-{name}-pairs": _recipe(
            kind, f"{said}, MNIST's pairs swapped", PATH, CSL, HELD, *how, AUTHORS
        ),
    }


def _own(kind: str, title: str = "", *changes: str) -> dict[str, Row]:
    how = (*changes, "training.bn_buffers=local", "training.evaluate_every=20")
    return _statistics(kind, "own", f"{title}own BatchNorm statistics", how)


def _member(kind: str, title: str = "", *changes: str) -> dict[str, Row]:
    how = (*changes, "training.bn_buffers=member", HALF, "training.evaluate_every=5")
    return _statistics(kind, "member", f"{title}the first member's BatchNorm statistics", how)


WHOLE = ("flips, shifts, nothing held out", CIFAR, ALL, "training.augment=true", "data.holdout=0")
ONE_BN, FIRST_BN = "one client's BatchNorm statistics", "training.bn_buffers=first"
START = ("method.restarts=1", RANDOM)
RECIPES = {  # what the paper leaves open of the training itself
    **{kind: MAIN[kind] for kind in ("oracle", "fedavg", "flameche-robust")},
    "oracle-augment": _recipe("oracle", "flips and shifts", CIFAR + PATH, CSL, "training.augment=true"),
    "oracle-whole": _recipe("oracle", "nothing held out", PATH, CSL, "data.holdout=0"),
    "oracle-augment-whole": _recipe("oracle", *WHOLE),
    "oracle-unpooled": _unpooled("oracle", "", ("fds", "csf")),
    "oracle-first-bn": _recipe("oracle", ONE_BN, CIFAR + PATH, CSL, FIRST_BN),
    "oracle-local-bn": _recipe("oracle", "own BatchNorm statistics", PATH, CSL, "training.bn_buffers=local"),
    **_own("oracle"),
    **_member("oracle"),
    "fedavg-augment-whole": _recipe("fedavg", *WHOLE),
    "fedavg-unpooled": _unpooled("fedavg", "", ("fds",)),
    "fedavg-first-bn": _recipe("fedavg", ONE_BN, PATH, CSL, FIRST_BN),
    **_own("fedavg"),
    **_member("fedavg"),
    "fedgroup-augment-whole": _moved("fedgroup", "", ALL),
    "fedgroup-unpooled": _unpooled("fedgroup", "", ("fds", "csf")),
    **_own("fedgroup"),
    **_member("fedgroup"),
    "stocfl-stay": _recipe(
        "stocfl", "absent members stay in averages, short batches too", CIFAR, ("csf",), *STAY, HALF, RARELY
    ),
    "stocfl-less": _recipe(
        "stocfl",
        "absent members stay in averages, 47.5% held out, short batches too",
        CIFAR,
        ("csf",),
        *STAY,
        HELD,
        HALF,
        RARELY,
    ),
    "stocfl-augment-whole": _moved("stocfl", "absent members stay in averages, ", CSL, ABSENT),
    "stocfl-unpooled": _unpooled("stocfl", "absent members stay in averages, ", ("csf",), ABSENT),
    **_member("stocfl", "absent members stay in averages, ", ABSENT),
    "fesem-augment-whole": _moved("fesem", "newcomers by the first centres, ", ALL, CENTRES),
    "fesem-unpooled": _unpooled("fesem", "newcomers by the first centres, ", ("csl", "fds"), CENTRES),
    **_member("fesem", "newcomers by the first centres, ", CENTRES),
    "ifca-augment-whole": _moved("ifca", "one start, first model at random, ", ALL, *START),
    "ifca-unpooled": _unpooled(
        "ifca",
        "one start, first model at random, absent members stay in averages, ",
        ("csl", "csf"),
        *START,
        ABSENT,
    ),
    "ifca-local-bn": _recipe(
        "ifca",
        "one start, first model at random, own BatchNorm statistics, full batches",
        PATH,
        CSL,
        *START,
        "training.bn_buffers=local",
        "training.drop_last=true",
        HALF,
    ),
    **_member("ifca", "one start, first model at random, ", *START),
    "kfed-augment-whole": _moved("kfed", "one local epoch, ", ALL, EPOCH),
    "kfed-unpooled": _unpooled("kfed", "one local epoch, ", ALL, EPOCH),
    **_own("kfed", "one local epoch, ", EPOCH),
    **_member("kfed"),
    "pacfl-unpooled": _unpooled(
        "pacfl", "bases as they are, complete linkage, one local epoch, ", ("fds",), *RAW, EPOCH
    ),
    **_member("pacfl", "bases as they are, complete linkage, ", *RAW),
}
CLUSTERS = {
    "flameche-paper": Row("FLAMECHE, paper mode (m)", PAPER_MODE, training=False),
    "flameche-seen": Row("FLAMECHE: empty over all seen", (*PAPER_MODE, "method.empty=seen"), training=False),
    "flameche-unskewed": Row(
        "FLAMECHE: no label skew", (*PAPER_MODE, UNSKEWED), training=False, settings=("csf",)
    ),
    "flameche-pairs": Row(
        "FLAMECHE: MNIST's pairs swapped", (*PAPER_MODE, AUTHORS), training=False, settings=("csl",)
    ),
    "kfed": Row(TITLES["kfed"], method("kfed"), training=False),
    "kfed-unskewed": Row("K-Fed: no label skew", method("kfed", UNSKEWED), training=False, settings=("csf",)),
    "kfed-pairs": Row(
        "K-Fed: MNIST's pairs swapped", method("kfed", AUTHORS), training=False, settings=("csl",)
    ),
    "pacfl": Row(TITLES["pacfl"], method("pacfl"), training=False, seeds=FIRST),
    **{
        f"pacfl-{angle}": Row(
            f"PACFL: {title}, complete linkage",
            method("pacfl", f"method.angle={angle}", "method.linkage=complete"),
            training=False,
            seeds=FIRST,
        )
        for angle, title in (
            ("raw-cosine", "mean cosine of bases as they are"),
            ("raw-sum", "sum of angles of bases as they are"),
        )
    },
}


def _lacking(
    kind: str,
    said: str,
    datasets: tuple[str, ...],
    *changes: str,
    by: tuple[str, ...] = ("data.missing_by=group",),
    seeds: tuple[int, ...] | None = FIRST,
) -> Row:
    taken = MISSING[kind]
    title = f"{taken.title.partition(' (')[0]}: {said}" if said else taken.title
    return Row(title, (*taken.overrides, *by, *changes), seeds=seeds, datasets=datasets)


def _lacking_moved(kind: str, said: str, *changes: str) -> Row:
    said = f"{said}no pooling in the stem, flips, shifts, nothing held out"
    return _lacking(kind, said, CIFAR, *changes, UNPOOLED, *MOVED)


def _each_moved(kind: str, said: str, *changes: str) -> Row:
    said = f"every client another label, {said}no pooling in the stem, flips, shifts, nothing held out"
    return _lacking(kind, said, CIFAR, *changes, UNPOOLED, *MOVED, by=())


_BY_FIRST, _EPOCH = "newcomers by the first centres, ", "one local epoch, "
_BASES = "bases as they are, complete linkage, one local epoch, "
_LACKING_OTHERS = {
    "fedgroup-held": _lacking("fedgroup", "47.5% held out", FASHION, HELD),
    "fedgroup-moved": _lacking_moved("fedgroup", ""),
    "fedgroup-each": _each_moved("fedgroup", ""),
    "stocfl-stay": _lacking("stocfl", "absent members stay in averages, short batches too", FASHION, *STAY),
    "fesem-held": _lacking("fesem", f"{_BY_FIRST}47.5% held out", FASHION, CENTRES, HELD),
    "fesem-moved": _lacking_moved("fesem", _BY_FIRST, CENTRES),
    "fesem-each": _each_moved("fesem", _BY_FIRST, CENTRES),
    "kfed-epoch": _lacking("kfed", "one local epoch", FASHION, EPOCH),
    "kfed-less": _lacking(
        "kfed", f"{_EPOCH}47.5% held out, short batches too", FASHION, EPOCH, *LESS, seeds=None
    ),
    "kfed-moved": _lacking_moved("kfed", _EPOCH, EPOCH),
    "pacfl-less": _lacking(
        "pacfl", f"{_BASES}47.5% held out, short batches too", FASHION, *RAW, EPOCH, *LESS
    ),
    "pacfl-moved": _lacking_moved("pacfl", _BASES, *RAW, EPOCH),
    "flameche-paper-held": _lacking("flameche-paper", "47.5% held out", FASHION, HELD),
    "flameche-paper-moved": _lacking_moved("flameche-paper", ""),
    "flameche-robust-held": _lacking("flameche-robust", "47.5% held out", FASHION, HELD, seeds=None),
    "flameche-robust-moved": _lacking_moved("flameche-robust", ""),
    "flameche-robust-each": _each_moved("flameche-robust", ""),
}
MISSING_READINGS: dict[str, Row] = {}  # where nothing else is said, all of a group lack the same label
for _name in (name for name in MISSING if name != "ifca"):
    MISSING_READINGS[_name] = _lacking(_name, "", FASHION)
    MISSING_READINGS |= {
        other: row for other, row in _LACKING_OTHERS.items() if other.rpartition("-")[0] == _name
    }
