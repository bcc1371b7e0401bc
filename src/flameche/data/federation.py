"""A federation: every client's samples stacked one after another, its test set, and the true groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flameche.data.choices import one_of
from flameche.data.datasets import Dataset
from flameche.data.heterogeneity import (
    SETTINGS,
    SHARES,
    SKEW_SPLITS,
    UNSKEWED,
    Transform,
    default_transforms,
    parse_transform,
    skew_variants,
)
from flameche.data.partition import Equal, Partition, PartitionOptions, Pool, dealt_twice
from flameche.data.split import (
    Indices,
    block_sizes,
    client_samples,
    deal_evenly,
    in_class_order,
    lost_by_client,
    lost_by_group,
)
from flameche.errors import DataError

SCORES = ("pool", "own")
ORDERS = ("shuffled", "file")
MISSING = ("client", "group")


@dataclass(frozen=True, eq=False)
class Samples:
    """Sets of samples, one after another: x [n Ch H W], y [n]; set i is x[offsets[i]:offsets[i+1]]."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]  # [S+1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per set [S]."""
        return np.diff(self.offsets)

    def of(self, i: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return views of the images and labels of set i."""
        if not 0 <= i < len(self):
            raise IndexError(f"set {i} of {len(self)}")
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return self.x[part], self.y[part]

    def joined(self, other: Samples) -> Samples:
        """Put set i of `other` behind set i of this one, for every i."""
        pairs = [(self.of(i), other.of(i)) for i in range(len(self))]
        return Samples(
            np.concatenate([x for pair in pairs for x, _ in pair]),
            np.concatenate([y for pair in pairs for _, y in pair]),
            self.offsets + other.offsets,
        )


@dataclass(frozen=True, eq=False)
class Federation:
    """C clients with their data and the truth about them, which no method but the oracle may read."""

    name: str
    setting: str
    classes: int
    train: Samples  # one set per client
    holdout: Samples  # one set per client, possibly empty
    test: Samples  # one set per distinct test set
    test_of: NDArray[np.int64]  # [C] which test set scores client i
    group: NDArray[np.int64]  # [C]

    @property
    def clients(self) -> int:
        """Return C."""
        return len(self.group)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (Ch, H, W) of an image."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width


def build_federation(
    dataset: Dataset,
    *,
    seed: int,
    clients: int = 100,
    groups: int | Sequence[int] = 4,
    per_label: int = 50,
    holdout: float = 0.0,
    heterogeneity: str = "none",
    transforms: Sequence[str] | None = None,
    label_skew: bool | None = None,
    skew_split: str = "even",
    missing_labels: int = 0,
    missing_by: str = "client",
    score: str = "pool",
    order: str = "shuffled",
    allow_fewer: bool = False,
    zoom: str = "crop",
    moved: Mapping[int, int] | None = None,
    partition: Partition | None = None,
) -> Federation:
    """Deal `dataset` to clients in contiguous groups and transform each group's data.

    `groups` is a number of equal blocks or the block sizes. `transforms`, one chain per group, replaces
    those of the setting. `label_skew` is on by default for "csf" only. `score` "pool" tests every client
    of a group on the whole transformed pool, "own" each on its own slice of it. Label skew, missing
    labels and holdout touch training data only; but labels that all of a group lack (`missing_by`
    "group") are in no test of it. With `allow_fewer` a class that is too small is shared out evenly, and
    a skew keeps its share of what was dealt. `moved` names clients whose data have drifted, and the group
    to which: they keep their samples, which look as that group's. Where nothing makes groups differ, all
    clients are in one. `partition` deals samples in another way than `per_label` of each class to every
    client.
    """
    one_of(heterogeneity, SETTINGS, "data.heterogeneity")
    one_of(skew_split, SKEW_SPLITS, "data.skew_split")
    one_of(score, SCORES, "data.score")
    one_of(order, ORDERS, "data.order")
    one_of(missing_by, MISSING, "data.missing_by")
    sizes = _group_sizes(groups, clients)
    _check_numbers(dataset, per_label, holdout, missing_labels)
    skewed = heterogeneity == "csf" if label_skew is None else label_skew
    if skewed and dataset.classes > len(SHARES["left"]):
        raise DataError(
            f"label skew is defined for {len(SHARES['left'])} classes, {dataset.name} has {dataset.classes}; "
            "set data.label_skew = false"
        )
    views = _views(dataset, heterogeneity, transforms, len(sizes), zoom)
    group = np.repeat(np.arange(len(sizes)), sizes)
    variants = [
        v for size in sizes for v in (skew_variants(size, skew_split) if skewed else [UNSKEWED] * size)
    ]

    partition = partition or Equal(PartitionOptions())
    pool = Pool(
        dataset.name, dataset.train_y, dataset.classes, group, seed, per_label,
        shuffle=order == "shuffled", allow_fewer=allow_fewer,
    )  # fmt: skip
    deals = dealt_twice(partition, pool)
    draws, shared = (seed, dataset.classes, missing_labels), missing_by == "group"
    if shared and missing_labels and moved:
        raise DataError(
            'data.missing_by = "group" knows no drift: whoever drifts keeps what its old group lacks'
        )
    lacking = [lost_by_group(*draws, g) for g in range(len(sizes))]
    lost = [lacking[g] if shared else lost_by_client(*draws, c) for c, g in enumerate(group.tolist())]
    train, held = [], []
    for client in range(clients):
        dealt = deals[client]
        labels = views[group[client]].labels(dataset.train_y[dealt])
        mine, out = client_samples(
            dealt, labels, dataset.classes, seed=seed, client=client, variant=variants[client],
            lost=lost[client], holdout=holdout,
        )  # fmt: skip
        if len(mine) < 2:
            more = {"equal": "raise data.per_label", "dirichlet": "raise partition.alpha"}.get(
                partition.options.kind, f'deal differently (partition.kind = "{partition.options.kind}")'
            )
            raise DataError(
                f"{dataset.name}: client {client} is left with {len(mine)} training samples, "
                f"expected at least 2; {more} or lower data.holdout, data.missing_labels or data.clients"
            )
        train.append(mine)
        held.append(out)

    for client, to in (moved or {}).items():
        group[client] = to
    tests, test_of = _test_sets(dataset, score, order, seed, group, len(sizes))
    test_group = np.arange(len(sizes)) if score == "pool" else group
    if shared:
        tests = [
            own[~np.isin(views[g].labels(dataset.test_y[own]), list(lacking[g]))]
            for own, g in zip(tests, test_group.tolist(), strict=True)
        ]
    differ = len({view.text for view in views}) > 1 or (shared and missing_labels > 0)
    return Federation(
        dataset.name,
        _setting(heterogeneity, transforms, skewed, missing_labels, missing_by)
        + ("" if partition.options.kind == "equal" else f"-{partition.options.kind}"),
        dataset.classes,
        _stack(dataset.train_x, dataset.train_y, train, group, views),
        _stack(dataset.train_x, dataset.train_y, held, group, views),
        _stack(dataset.test_x, dataset.test_y, tests, test_group, views),
        test_of,
        group if differ else np.zeros_like(group),
    )


def _setting(
    heterogeneity: str, transforms: Sequence[str] | None, skewed: bool, missing: int, by: str
) -> str:
    """Name what was built: the paper's short name, and what differs from the paper's setting of that name."""
    name = heterogeneity if transforms is None else "custom"
    if skewed != (name == "csf"):
        name += "-skewed" if skewed else "-unskewed"
    return f"{name}-missing{missing}{'' if by == 'client' else f'-{by}'}" if missing else name


def _group_sizes(groups: int | Sequence[int], clients: int) -> list[int]:
    if clients < 1:
        raise DataError(f"data.clients is {clients}, expected at least 1")
    if isinstance(groups, int):
        if not 1 <= groups <= clients:
            raise DataError(f"data.groups is {groups}, expected 1…{clients}, the number of clients")
        return block_sizes(clients, int(groups))
    sizes = [int(size) for size in groups]
    if not sizes or min(sizes) < 1 or sum(sizes) != clients:
        raise DataError(
            f"data.groups is {sizes} with sum {sum(sizes)}, expected sizes of at least 1 "
            f"that add up to {clients} clients"
        )
    return sizes


def _check_numbers(dataset: Dataset, per_label: int, holdout: float, missing_labels: int) -> None:
    if per_label < 1:
        raise DataError(f"data.per_label is {per_label}, expected at least 1")
    if not 0 <= holdout < 1:
        raise DataError(f"data.holdout is {holdout}, expected a share from 0 up to but not including 1")
    if not 0 <= missing_labels < dataset.classes:
        raise DataError(f"data.missing_labels is {missing_labels}, expected 0…{dataset.classes - 1}")


def _views(
    dataset: Dataset, setting: str, transforms: Sequence[str] | None, groups: int, zoom: str
) -> list[Transform]:
    if isinstance(transforms, str):
        raise DataError(f"data.transforms is {transforms!r}, expected a list with one transform per group")
    if transforms is None:
        transforms = default_transforms(setting, dataset.name, dataset.classes, groups)
    if len(transforms) != groups:
        raise DataError(
            f"data.transforms has {len(transforms)} entries for {groups} groups; give one per group"
        )
    channels, height, width = dataset.train_x.shape[1:]
    return [
        parse_transform(text, classes=dataset.classes, shape=(channels, height, width), zoom=zoom)
        for text in transforms
    ]


def _test_sets(
    dataset: Dataset, score: str, order: str, seed: int, group: Indices, groups: int
) -> tuple[list[Indices], Indices]:
    """Return the pool indices of each test set, and which set scores each client."""
    clients, pool = len(group), len(dataset.test_y)
    if score == "pool":
        return [np.arange(pool)] * groups, group.copy()
    if pool < clients:
        raise DataError(
            f'{dataset.name}: {pool} test samples are too few for {clients} clients; set data.score = "pool"'
        )
    members = in_class_order(dataset.test_y, dataset.classes, seed, "test", shuffle=order == "shuffled")
    deals = deal_evenly(members, clients)
    own = [np.concatenate([deal.of(client) for deal in deals]) for client in range(clients)]
    return own, np.arange(clients)


def _stack(
    x: NDArray[np.uint8], y: NDArray[np.int64], sets: list[Indices], group: Indices, views: list[Transform]
) -> Samples:
    """Gather the sets; each group's part is transformed at once."""
    sizes = np.array([len(s) for s in sets], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    chosen, owner = np.concatenate(sets), np.repeat(group, sizes)
    out_x = np.empty((len(chosen), *x.shape[1:]), np.uint8)
    out_y = np.empty(len(chosen), np.int64)
    for g, view in enumerate(views):
        part = np.flatnonzero(owner == g)
        if len(part):  # all may have drifted away
            out_x[part] = view.images(x[chosen[part]])
            out_y[part] = view.labels(y[chosen[part]])
    return Samples(out_x, out_y, offsets)
