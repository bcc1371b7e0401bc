"""How a dataset's training samples are dealt to clients; `[partition]` in an experiment names the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flameche.data.split import Indices, deal_quota, in_class_order
from flameche.errors import DataError
from flameche.rng import stream
from flameche.tables import Table


class PartitionOptions(Table):
    """What the [partition] table may say; a partition's own options add their keys."""

    kind: str = "equal"


@dataclass(frozen=True, eq=False)
class Pool:
    """What there is to deal: the training samples' labels [N], and the clients' groups [C]."""

    name: str
    labels: NDArray[np.int64]
    classes: int
    group: NDArray[np.int64]
    seed: int
    per_label: int
    shuffle: bool = True
    allow_fewer: bool = False

    @property
    def clients(self) -> int:
        """Count the clients."""
        return len(self.group)

    def by_class(self) -> list[Indices]:
        """List the samples of each class, in the order in which they are dealt."""
        return in_class_order(self.labels, self.classes, self.seed, "train", shuffle=self.shuffle)


class Partition(ABC):
    """One way to deal samples; subclasses say which client gets which.

    What follows is the same for all ways: each group's transform, a label skew, missing labels, what is held
    out, and the order of a client's samples.

    Example:
        >>> import numpy as np
        >>> from flameche.data.partition import Equal, PartitionOptions, Pool
        >>> labels, group = np.repeat([0, 1], 6), np.array([0, 0, 1])
        >>> pool = Pool("toy", labels, 2, group, seed=0, per_label=2, shuffle=False)
        >>> [own.tolist() for own in Equal(PartitionOptions()).deal(pool)]
        [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    """

    Options: ClassVar[type[PartitionOptions]] = PartitionOptions

    def __init__(self, options: PartitionOptions) -> None:
        self.options = options

    @abstractmethod
    def deal(self, pool: Pool) -> Sequence[Indices]:
        """Give each client the indices of its samples; draws come from streams of `pool.seed`."""


class Equal(Partition):
    """Every client gets `data.per_label` samples of each class, as in the paper."""

    def deal(self, pool: Pool) -> Sequence[Indices]:
        """Deal class by class."""
        deals = deal_quota(
            pool.by_class(), pool.clients, pool.per_label, name=pool.name, allow_fewer=pool.allow_fewer
        )
        return [np.concatenate([deal.of(client) for deal in deals]) for client in range(pool.clients)]


class DirichletOptions(PartitionOptions):
    """How uneven classes are over clients: the smaller `alpha`, the more."""

    kind: str = "dirichlet"
    alpha: float = Field(default=0.5, gt=0, le=1e6)


class Dirichlet(Partition):
    """Each class is dealt whole, in shares drawn from a Dirichlet distribution over the clients.

    Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", ICML 2019. All training
    samples are dealt; `data.per_label` has no part in it.
    """

    Options: ClassVar[type[PartitionOptions]] = DirichletOptions

    def deal(self, pool: Pool) -> Sequence[Indices]:
        """Draw shares class by class; a class's draw does not depend on other classes."""
        assert isinstance(self.options, DirichletOptions)
        dealt: list[list[Indices]] = [[] for _ in range(pool.clients)]
        for label, members in enumerate(pool.by_class()):
            draw = stream(pool.seed, "data", "dirichlet", label)
            share = draw.dirichlet(np.full(pool.clients, self.options.alpha))
            ends = np.rint(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
            for own, part in zip(dealt, np.split(members, ends), strict=True):
                own.append(part)
        return [np.concatenate(own) for own in dealt]


def dealt_twice(partition: Partition, pool: Pool) -> Sequence[Indices]:
    """Deal, and refuse a partition that deals differently another time: each node of a network deals anew.

    Raises:
        DataError: says what is wrong with the deal, and names the partition.
    """
    kind = partition.options.kind
    labels = pool.labels.copy()
    labels.flags.writeable = False  # they are the dataset's
    shown = replace(pool, labels=labels)
    first, second = (checked(partition.deal(shown), pool, kind) for _ in range(2))
    if any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
        raise DataError(
            f'partition.kind = "{kind}" deals differently each time; take its draws from '
            "flameche.rng.stream(pool.seed, ...)"
        )
    return first


def checked(dealt: Sequence[Indices], pool: Pool, kind: str) -> Sequence[Indices]:
    """Refuse what no partition may do: other samples than there are, or one sample for two clients.

    Raises:
        DataError: says what is wrong, and names the partition.
    """
    own = [np.asarray(each) for each in dealt] if isinstance(dealt, Sequence) else []
    if len(own) != pool.clients:
        raise DataError(f'partition.kind = "{kind}" dealt to {len(own)} clients, there are {pool.clients}')
    if any(each.ndim != 1 or (len(each) and not np.issubdtype(each.dtype, np.integer)) for each in own):
        raise DataError(f'partition.kind = "{kind}": expected a list of samples\' indices for each client')
    every = np.concatenate([each.astype(np.int64) for each in own])
    if every.size and (every.min() < 0 or every.max() >= len(pool.labels)):
        raise DataError(
            f'partition.kind = "{kind}" dealt samples {every.min()}…{every.max()}, there are '
            f"0…{len(pool.labels) - 1}"
        )
    if len(np.unique(every)) < len(every):
        raise DataError(f'partition.kind = "{kind}" dealt {len(every) - len(np.unique(every))} samples twice')
    return [each.astype(np.int64) for each in own]
