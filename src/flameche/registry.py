"""Finds the things that an experiment file names: methods, metadata kinds, schemes, datasets, partitions.

A `kind` is one of our own names, the name that another installed package gave through an entry point
(`[project.entry-points."flameche.methods"]`), one that was registered by hand (`METHODS.register`), or
"package.module:Name". Things are imported when they are first asked for.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from flameche.errors import ConfigError
from flameche.tables import Table

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Things of one sort by name; iterating gives our names first, then those of others.

    Args:
        what: what these things are, in the plural, as in "methods"; entry points are in the group
            "flameche.methods".
        key: where an experiment names one, as in "method.kind"; errors begin with it.
        builtin: our own, each as "package.module:Name".
        check: raises a ConfigError for something that is not one of these things.
        as_path: how an error describes the other way to name one; "" where a path is not allowed.

    Example:
        >>> from flameche.registry import Registry
        >>> numbers = Registry("numbers", "number", {"pi": "math:pi"})
        >>> numbers["pi"] == numbers["math:pi"]
        True
        >>> numbers.register("two", 2)
        >>> list(numbers)
        ['pi', 'two']
    """

    def __init__(
        self,
        what: str,
        key: str,
        builtin: Mapping[str, str],
        check: Callable[[str, Any], None] | None = None,
        as_path: str = "package.module:Name",
    ) -> None:
        self.what, self.key, self.as_path = what, key, as_path
        self._builtin, self._check = dict(builtin), check
        self._added: dict[str, Any] = {}
        self._found: dict[str, T] = {}
        self._installed: dict[str, EntryPoint] | None = None

    def register(self, name: str, thing: T) -> None:
        """Make a thing known by a name, until the process ends.

        Raises:
            ConfigError: the name is one of ours, or the thing is not what it should be.
        """
        if name in self._builtin or ":" in name or not name:
            raise ConfigError(f"{self.what}: the name {name!r} cannot be given to something else")
        if self._check:
            self._check(name, thing)
        self._added[name] = thing
        self._found.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._builtin, *self._entry_points(), *self._added]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))

    def __getitem__(self, name: str) -> T:
        """Give the thing of that name, or at that path.

        Raises:
            ConfigError: there is none, it cannot be imported, or it is not what it should be.
        """
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def loaded(self) -> dict[str, T]:
        """Give everything that can be imported; what another package declares and cannot be is left out."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except ConfigError:
                if name in self._builtin:
                    raise
        return found

    def code(self, name: str) -> str:
        """Tell where the code of something that is not ours stands, as "package.module:Name"; else ""."""
        if name in self._builtin:
            return ""
        if name in self._added:
            thing = self._added[name]
            return f"{getattr(thing, '__module__', type(thing).__module__)}:{name}"
        if (point := self._entry_points().get(name)) is not None:
            return point.value
        return name if is_path(name) else ""

    def problem(self, name: str, *more: str) -> str | None:
        """Say what is wrong with a name, as the end of an error's sentence; None where it is known.

        more: names that are allowed here besides.
        """
        if name in self or (self.as_path and is_path(name)):
            return None
        known = [*more, *self]
        path = f", or '{self.as_path}'" if self.as_path else ""
        near = difflib.get_close_matches(name.lower(), known, n=1)
        return f"must be one of {', '.join(known)}{path}" + (f"; did you mean {near[0]!r}?" if near else "")

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._installed is None:
            found = entry_points(group=f"flameche.{self.what}")
            self._installed = {point.name: point for point in found if point.name not in self._builtin}
        return self._installed

    def _load(self, name: str) -> T:
        installed = self._entry_points()
        if name in self._added:
            thing = self._added[name]
        elif name in self._builtin:
            thing = imported(self._builtin[name])
        elif name in installed:
            try:
                thing = installed[name].load()
            except Exception as problem:  # other people's code can fail in any way
                raise ConfigError(
                    f"{self.key} = {name!r} ({installed[name].value}) cannot be imported: {problem}"
                ) from problem
        elif self.as_path and is_path(name):
            try:
                thing = imported(name)
            except ConfigError as problem:
                raise ConfigError(f"{self.key} = {problem}") from problem
        else:
            raise ConfigError(f"{self.key} = {name!r}: {self.problem(name)}")
        if self._check:
            self._check(name, thing)
        found: T = thing
        return found


def is_path(name: str) -> bool:
    """Tell whether a name has the form package.module:Name."""
    module, colon, thing = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), thing])


def imported(path: str) -> Any:
    """Import what stands at package.module:Name.

    Raises:
        ConfigError: there is no such module, or no such name in it.
    """
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:  # an installed command does not look where the user stands
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as problem:  # a user's own code can fail in any way
        raise ConfigError(
            f"'{path}' cannot be imported: {problem}; modules are looked for in the current folder and among "
            "installed packages"
        ) from problem
    finally:
        if added:
            sys.path.remove(here)


def _check_options(key: str, name: str, thing: Any) -> None:
    own = thing.Options
    if not isinstance(own, type) or not issubclass(own, Table) or "kind" not in own.model_fields:
        raise ConfigError(
            f"{key} = {name!r}: its Options must derive from the options of our own, which have `kind`"
        )


def _check_method(name: str, thing: Any) -> None:
    lacking = [
        part
        for part in ("about", "Options", "round", "serving", "finish", "state", "restore")
        if not hasattr(thing, part)
    ]
    if not isinstance(thing, type) or lacking:
        raise ConfigError(
            f"method.kind = {name!r} is not a method: expected a class like those of flameche.methods"
            + (f"; it has no {', '.join(lacking)}" if lacking else "")
        )
    about: Any = getattr(thing, "about", None)
    if getattr(about, "needs", "") not in ("sums", "terms"):
        raise ConfigError(f"method.kind = {name!r}: its about.needs must be 'sums' or 'terms'")
    _check_options("method.kind", name, thing)


METHODS: Registry[Any] = Registry(
    "methods",
    "method.kind",
    {
        "flameche": "flameche.methods.flameche:Flameche",
        "flameche-soft": "flameche.methods.soft:Soft",
        "fedavg": "flameche.methods.fedavg:FedAvg",
        "oracle": "flameche.methods.oracle:Oracle",
        "fedgroup": "flameche.methods.fedgroup:FedGroup",
        "stocfl": "flameche.methods.stocfl:StoCfl",
        "fesem": "flameche.methods.fesem:Fesem",
        "ifca": "flameche.methods.ifca:Ifca",
        "kfed": "flameche.methods.kfed:KFed",
        "pacfl": "flameche.methods.pacfl:Pacfl",
    },
    _check_method,
    as_path="package.module:Class",
)


def _check_metadata(name: str, thing: Any) -> None:
    if not isinstance(thing, type) or not hasattr(thing, "extract") or not hasattr(thing, "Options"):
        raise ConfigError(
            f"metadata.kind = {name!r} is no kind of metadata: expected a subclass of "
            "flameche.metadata.kinds.MetadataKind"
        )
    _check_options("metadata.kind", name, thing)


METADATA: Registry[Any] = Registry(
    "metadata",
    "metadata.kind",
    {
        "random-gaussian": "flameche.metadata.kinds:RandomGaussian",
        "random-uniform": "flameche.metadata.kinds:RandomUniform",
        "mean": "flameche.metadata.kinds:Mean",
        "mean-pca-local": "flameche.metadata.kinds:MeanPcaLocal",
        "mean-pca-shared": "flameche.metadata.kinds:MeanPcaShared",
        "subspace": "flameche.metadata.kinds:Subspace",
        "label-counts": "flameche.metadata.kinds:LabelCounts",
    },
    _check_metadata,
    as_path="package.module:Class",
)


def _check_scheme(name: str, thing: Any) -> None:
    if not all(hasattr(thing, part) for part in ("generate", "opened_by", "exact", "keyed")):
        raise ConfigError(
            f"scheme.kind = {name!r} is no scheme: expected an instance of "
            "flameche.crypto.registry.SchemeKind, or of a subclass"
        )


def _check_partition(name: str, thing: Any) -> None:
    if not isinstance(thing, type) or not hasattr(thing, "deal") or not hasattr(thing, "Options"):
        raise ConfigError(
            f"partition.kind = {name!r} is no partition: expected a subclass of "
            "flameche.data.partition.Partition"
        )
    _check_options("partition.kind", name, thing)


def _check_callback(name: str, thing: Any) -> None:
    if not callable(thing) or not all(hasattr(thing, hook) for hook in ("on_start", "on_round", "on_end")):
        raise ConfigError(
            f"callbacks: {name!r} is no callback: expected a subclass of "
            "flameche.experiments.callbacks.Callback"
        )


def _check_callable(what: str) -> Callable[[str, Any], None]:
    def check(name: str, thing: Any) -> None:
        if not callable(thing):
            raise ConfigError(f"{what} {name!r} cannot be called")

    return check


SCHEMES: Registry[Any] = Registry(
    "schemes",
    "scheme.kind",
    {
        "plain": "flameche.crypto.registry:PLAIN",
        "secagg": "flameche.crypto.registry:SECAGG",
        "paillier": "flameche.crypto.registry:PAILLIER",
        "bfv": "flameche.crypto.registry:BFV",
        "ckks": "flameche.crypto.registry:CKKS",
        "ckks-paper": "flameche.crypto.registry:CKKS_PAPER",
    },
    _check_scheme,
    as_path="package.module:NAME",
)
DATASETS: Registry[Any] = Registry(
    "datasets",
    "data.dataset",
    {
        name: f"flameche.data.datasets:{name.replace('-', '_')}"
        for name in (
            "digits", "mnist", "fashion-mnist", "cifar10", "pathmnist", "tissuemnist", "mednist28",
        )
    },
    _check_callable("data.dataset"),
    as_path="package.module:function",
)  # fmt: skip
PARTITIONS: Registry[Any] = Registry(
    "partitions",
    "partition.kind",
    {"equal": "flameche.data.partition:Equal", "dirichlet": "flameche.data.partition:Dirichlet"},
    _check_partition,
    as_path="package.module:Class",
)
CALLBACKS: Registry[Any] = Registry(
    "callbacks", "callbacks", {}, _check_callback, as_path="package.module:Class"
)
MODELS: Registry[Any] = Registry(
    "models",
    "model.kind",
    {
        "lenet5": "flameche.models.lenet:LeNet5",
        "resnet18": "flameche.models.resnet:ResNet18",
        "resnet18-small": "flameche.models.resnet:SmallStem",
        "resnet18-unpooled": "flameche.models.resnet:UnpooledStem",
        "small-cnn": "flameche.models.small:SmallCNN",
    },
    as_path="package.module:factory",
)
