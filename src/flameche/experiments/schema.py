"""What an experiment is: one frozen, validated description, table by table.

Contradictions between keys raise `ConfigError`; wrong single values are pydantic's, which
`config.parse_experiment` puts into words.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    model_validator,
)

from flameche.data.partition import PartitionOptions
from flameche.errors import ConfigError
from flameche.experiments.error_messages import toml_literal
from flameche.experiments.events import Events, check_events
from flameche.experiments.validation import (
    check_absent,
    check_guard,
    check_living,
    check_numbers,
    check_partition,
    check_privacy,
    check_statistics,
    check_terms,
)
from flameche.metadata.kinds import MetadataOptions
from flameche.methods.base import MethodOptions
from flameche.methods.sketch import FlamecheOptions
from flameche.registry import (
    CALLBACKS,
    DATASETS,
    METADATA,
    METHODS,
    MODELS,
    PARTITIONS,
    SCHEMES,
    Registry,
)
from flameche.tables import Count, Natural, Seed, Table


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # TOML has lists; frozen models need tuples


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must be distinct")
    return values


def _folder_name(name: str) -> str:
    # No leading dot or dash: '..' would leave the results folder, '-x' reads as an option.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise ValueError("must be up to 100 letters, digits, '.', '_' or '-', and not begin with '.' or '-'")
    return name


def _known(registry: Registry[Any], *more: str) -> AfterValidator:
    """Accept the names of a registry, paths where it allows them, and some names more."""

    def check(kind: str) -> str:
        if kind not in more and (problem := registry.problem(kind, *more)):
            raise ValueError(problem)
        return kind

    return AfterValidator(check)


def _by_kind(registry: Registry[Any], options: type[Table] | None = None) -> BeforeValidator:
    """Read a table by the options of its kind, or by those that all kinds share.

    Without a kind, the registry's first is meant.
    """

    class Kind(Table):
        kind: Annotated[str, _known(registry)] = next(iter(registry))

    def read(table: object) -> object:
        if not isinstance(table, dict):
            return table
        kind = Kind.model_validate({key: value for key, value in table.items() if key == "kind"}).kind
        own: type[Table] = getattr(registry[kind], "Options", options or Table)
        return own.model_validate({**table, "kind": kind})

    return BeforeValidator(read)


def _groups_form(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return "count"
    return "sizes" if isinstance(value, list | tuple) else None


Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_tuple), Field(min_length=1), AfterValidator(_distinct)]
Names = Annotated[tuple[str, ...], BeforeValidator(_tuple)]
Sizes = Annotated[tuple[Count, ...], BeforeValidator(_tuple), Field(min_length=1)]
Groups = Annotated[
    Annotated[Count, Tag("count")] | Annotated[Sizes, Tag("sizes")],
    Discriminator(
        _groups_form,
        custom_error_type="groups",
        custom_error_message="must be the number of groups or the list of their sizes",
    ),
]


class DataConfig(Table):
    """Which images, and how they are dealt to clients; `dataset` or `path`, never both."""

    dataset: Annotated[str, _known(DATASETS)] | None = None
    path: Annotated[str, Field(min_length=1)] | None = None
    groups: Groups = 4
    clients: Count = 100
    per_label: Count = 50
    holdout: float = Field(default=0.0, ge=0, lt=1)
    heterogeneity: Literal["none", "csl", "fds", "csf"] = "csl"
    transforms: Names | None = None
    label_skew: bool | None = None
    skew_split: Literal["even", "authors"] = "even"
    missing_labels: Natural = 0
    missing_by: Literal["client", "group"] = "client"
    score: Literal["pool", "own"] = "pool"
    order: Literal["shuffled", "file"] = "shuffled"
    test_split: Literal["default", "val", "test"] = "default"
    allow_fewer: bool = False
    zoom: Literal["crop", "resize"] = "crop"

    @property
    def group_count(self) -> int:
        """The number of groups, whichever way `groups` was written."""
        return self.groups if isinstance(self.groups, int) else len(self.groups)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: object) -> object:
        """Fill in what depends on other keys; own data are taken as they are, unless something else is said.

        The default of `heterogeneity` itself stays the paper's: stored runs are found by hashes without it.
        """
        if not isinstance(table, dict):
            return table
        table = {key: value for key, value in table.items() if value is not None}
        if "path" not in table:
            table.setdefault("dataset", "digits")
        if "transforms" in table:
            if isinstance(table["transforms"], list | tuple) and table["transforms"]:
                table.setdefault("groups", len(table["transforms"]))
        elif "path" in table and table.get("heterogeneity", "none") == "none":
            if "heterogeneity" not in table and table.get("groups", 1) != 1 and "missing_by" not in table:
                raise ConfigError(
                    f"data.groups = {toml_literal(table['groups'])} with data.path does not say how groups "
                    "differ; give data.transforms, one per group, or data.heterogeneity"
                )
            table = {"groups": 1, "heterogeneity": "none", **table}
        return table

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.dataset is not None and self.path is not None:
            raise ConfigError(
                f"data.dataset = {toml_literal(self.dataset)} and data.path exclude each other; give one"
            )
        if self.missing_by == "group" and not self.missing_labels:
            raise ConfigError('data.missing_by = "group" needs data.missing_labels; no label is missing')
        if isinstance(self.groups, int) and self.groups > self.clients:
            raise ConfigError(
                f"data.groups = {self.groups} must not exceed data.clients = {self.clients}; "
                "every group needs a client"
            )
        if isinstance(self.groups, tuple) and sum(self.groups) != self.clients:
            raise ConfigError(
                f"data.groups = {toml_literal(self.groups, 80)} sums to {sum(self.groups)}, "
                f"but data.clients = {self.clients}; the sizes must add up to the clients"
            )
        if self.transforms is not None and len(self.transforms) != self.group_count:
            raise ConfigError(
                f"data.transforms has {len(self.transforms)} entries for {self.group_count} groups; "
                "give one per group"
            )
        return self


class ModelConfig(Table):
    """The network; `head` names the layer before which features are taken."""

    kind: Annotated[str, _known(MODELS, "auto")] = "auto"
    head: Annotated[str, Field(min_length=1)] | None = None


class TrainingConfig(Table):
    """Local training and how its results are averaged; 0 threads, 0 GiB: what pays and what there is."""

    epochs: Count = 5
    batch: Count = 128
    lr: float = Field(default=1e-3, gt=0)
    optimiser: Literal["adam", "sgd"] = "adam"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    trainer: Literal["auto", "loop", "pool", "vectorised"] = "auto"
    weighting: Literal["uniform", "samples"] = "uniform"
    server_lr: float = Field(default=1.0, gt=0, le=1)
    absent: Literal["out", "stay"] = "out"
    bn_buffers: Literal["mean", "first", "member", "local"] = "mean"
    augment: bool = False
    turn: float = Field(default=0.0, ge=0, le=180)
    drop_last: bool = False
    evaluate_every: Count = 1
    threads: Natural = 0
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    memory: float = Field(default=0.0, ge=0, le=10_000)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.momentum and self.optimiser == "adam":
            raise ConfigError(
                f'training.momentum = {self.momentum:g} needs training.optimiser = "sgd"; Adam has its own'
            )
        if self.turn and not self.augment:
            raise ConfigError(f"training.turn = {self.turn:g} needs training.augment = true")
        return self


class SchemeOptions(Table):
    """How contributions are sealed.

    `bound`: the largest magnitude of a metadata value, which fixed point makes room for. `min_cluster`: no
    sum over fewer clients is opened; None is 3, and 1 in the clear, where the server sees all anyway.
    `updates`: how model updates travel.
    """

    kind: str = "plain"
    bound: float = Field(default=64.0, gt=0)
    min_cluster: Count | None = None
    key_bits: Literal[2048, 3072] = 3072
    key_file: Annotated[str, Field(min_length=1)] | None = None
    updates: Literal["clear", "secagg", "ckks"] = "clear"

    @property
    def least(self) -> int:
        """The least number of clients in a sum that is opened."""
        return self.min_cluster or (1 if self.kind == "plain" and self.updates == "clear" else 3)


class PrivacyConfig(Table):
    """Differential privacy for single records: (`epsilon`, `delta`), off without an epsilon.

    `noise`: drawn from the system's entropy ("secret"), or from the run's seed, which protects nobody.
    """

    epsilon: Annotated[float, Field(gt=0, le=1000)] | None = None
    delta: float = Field(default=1e-5, gt=0, le=0.01)
    noise: Literal["secret", "seeded"] = "secret"


class Experiment(Table):
    """Everything that a run needs to know; equal experiments with equal seeds give equal results."""

    name: Annotated[str, AfterValidator(_folder_name)]
    seeds: Seeds = (0,)
    rounds: Count = 100
    participation: float = Field(default=0.2, gt=0, le=1)
    data: DataConfig = DataConfig()
    partition: Annotated[SerializeAsAny[PartitionOptions], _by_kind(PARTITIONS)] = PartitionOptions()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    metadata: Annotated[SerializeAsAny[MetadataOptions], _by_kind(METADATA)] = MetadataOptions()
    method: Annotated[SerializeAsAny[MethodOptions], _by_kind(METHODS)] = FlamecheOptions()
    scheme: Annotated[SerializeAsAny[SchemeOptions], _by_kind(SCHEMES, SchemeOptions)] = SchemeOptions()
    privacy: PrivacyConfig = PrivacyConfig()
    events: Events = ()
    callbacks: Annotated[tuple[Annotated[str, _known(CALLBACKS)], ...], BeforeValidator(_tuple)] = ()

    @property
    def participants(self) -> int:
        """How many clients take part in a round, at least one."""
        return max(1, round(self.participation * self.data.clients))

    @model_validator(mode="before")
    @classmethod
    def _own_data_choose_k(cls, tables: Any) -> Any:
        """Choose K for own data, whose groups nobody knows, unless the file names it."""
        if not isinstance(tables, dict):
            return tables
        data, method = tables.get("data"), tables.get("method", {})
        if not (isinstance(data, dict) and isinstance(method, dict)) or data.get("path") is None:
            return tables
        chooses = (
            method.get("kind", "flameche") in ("flameche", "flameche-soft") and method.get("mode") != "paper"
        )
        return {**tables, "method": {"clusters": "auto", **method}} if chooses else tables

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_terms(self)
        self.method.check(self)
        check_absent(self)
        check_partition(self)
        check_statistics(self)
        check_guard(self)
        check_numbers(self)
        check_privacy(self)
        check_living(self)
        check_events(self.events, self.data.clients, self.data.group_count, self.rounds)
        return self
