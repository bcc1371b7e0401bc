"""The key of a run: drawn fresh and kept in its folder, or read from the user's file and only named there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flameche.crypto.api import KeyInfo, Scheme
from flameche.crypto.keyfile import read_secret, write_secret
from flameche.crypto.masking import SecAgg
from flameche.crypto.plain import Plain
from flameche.crypto.registry import info_of, make_scheme
from flameche.errors import BadInput, ConfigError, OutOfRange, OverflowBudget, StoreError
from flameche.experiments.protection import has_metadata
from flameche.experiments.run_folder import RunFolder
from flameche.experiments.schema import Experiment, SchemeOptions
from flameche.registry import SCHEMES


def make_scheme_for(experiment: Experiment) -> Scheme | SecAgg:
    """Make the config's scheme for sums over all its clients, with fresh keys or those of a key file."""
    how, clients = experiment.scheme, experiment.data.clients
    if how.key_file is not None:
        scheme = _users_key(how.key_file, how, clients)
        return scheme if has_metadata(experiment) else Plain()
    if not has_metadata(experiment):  # nothing to seal
        return Plain()
    own = {key: getattr(how, key) for key in set(type(how).model_fields) - set(SchemeOptions.model_fields)}
    if how.kind == "paillier":
        own["key_bits"] = how.key_bits
    made: Scheme | SecAgg = make_scheme(how.kind, clients=clients, bound=how.bound, **own)
    return made


def scheme_of_run(experiment: Experiment, folder: RunFolder) -> Scheme | SecAgg:
    """Make the run's scheme, or read its key back: what the server stored opens with that one alone."""
    keyed = SCHEMES[experiment.scheme.kind].keyed and has_metadata(experiment)
    own = keyed and experiment.scheme.key_file is None and folder.begun
    kind = SCHEMES[experiment.scheme.kind]
    if folder.begun and has_metadata(experiment) and not kind.keyed and kind.opened_by == "clients":
        raise StoreError(
            f'{folder.path} was begun under scheme.kind = "{experiment.scheme.kind}", whose keys are not '
            "kept: what is stored cannot be opened any more; --fresh runs it again"
        )
    scheme = _own_key(folder) if own else make_scheme_for(experiment)
    keep_key(experiment, scheme, folder, written=own)
    return scheme


def keep_key(
    experiment: Experiment, scheme: Scheme | SecAgg, folder: RunFolder, *, written: bool = False
) -> None:
    """Keep the key that was drawn for a run in its folder, unless it is written there; of any, its name."""
    users = experiment.scheme.key_file
    keyed = SCHEMES[experiment.scheme.kind].keyed and has_metadata(experiment)
    if keyed and users is None and not written and not isinstance(scheme, SecAgg):
        folder.key_file.unlink(missing_ok=True)  # of a run that stored nothing under it
        write_secret(folder.key_file, scheme)
    if (info := info_of(scheme)) is not None:
        folder.keep_fingerprint(info.fingerprint, folder.key_file if users is None else key_path(users))


def key_notes(how: SchemeOptions, scheme: Scheme | SecAgg) -> list[str]:
    """Tell which of a config's settings gave way to the key file's."""
    info = info_of(scheme)
    if how.key_file is None or info is None:
        return []
    return [
        f"scheme.{key} is the key's, {theirs:g}, not {ours:g}"
        for key, ours, theirs in _settings(how, info)
        if ours != theirs
    ]


def key_path(file: str) -> Path:
    """Tell where a key file is: relative paths start from the current directory."""
    try:
        return Path(file).expanduser()
    except RuntimeError as problem:
        raise ConfigError(f'scheme.key_file = "{file}": {problem}') from problem


@contextmanager
def bound_advice(experiment: Experiment) -> Iterator[None]:
    """Say what to do about metadata beyond the bound."""
    try:
        yield
    except OutOfRange as problem:
        remedy = "raise scheme.bound on all clients"
        if experiment.scheme.key_file is not None:
            remedy = "make a new key with a larger bound (flameche keys new --bound)"
        if getattr(experiment.method, "mode", "") == "paper":
            remedy += ", or scale the metadata (method.unit_norm = true)"
        raise OverflowBudget(f"{problem}; {remedy}") from problem


def _users_key(file: str, how: SchemeOptions, clients: int) -> Scheme:
    path = key_path(file)
    scheme = read_secret(path)
    info = info_of(scheme)
    assert info is not None  # a key file holds a key
    if info.scheme != how.kind:
        raise ConfigError(f"{path} holds a key for '{info.scheme}', scheme.kind is '{how.kind}'")
    if info.clients < clients:
        raise ConfigError(
            f"{path} was made for sums of up to {info.clients} clients, data.clients is {clients}; "
            f"make another: flameche keys new DIR --clients {clients}"
        )
    for key, ours, theirs in _settings(how, info):
        if ours not in (theirs, SchemeOptions.model_fields[key].default):
            raise ConfigError(
                f"scheme.{key} = {ours:g} contradicts {path}, whose settings decide: bound {info.bound:g}, "
                f"{info.parameters}; leave scheme.{key} out, or make another key"
            )
    return scheme


def _settings(how: SchemeOptions, info: KeyInfo) -> list[tuple[str, float, float]]:
    """Pair the settings that config and key both have."""
    bits = [] if info.bits is None else [("key_bits", how.key_bits, info.bits)]
    return [("bound", how.bound, info.bound), *bits]


def _own_key(folder: RunFolder) -> Scheme:
    try:
        return read_secret(folder.key_file)
    except BadInput as problem:
        raise StoreError(f"{problem}; removing {folder.path} starts the run again") from problem
