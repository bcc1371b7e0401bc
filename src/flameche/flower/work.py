"""What a node does about a message: reads its settings, plays its client's part, keeps its last model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from flwr.app import Context

from flameche.crypto.registry import keyed_schemes
from flameche.errors import BadInput, ConfigError, DataError, StoreError
from flameche.experiments.deployment import OwnData, node_work, simulated_data
from flameche.flower.own_data import from_hook, from_path
from flameche.flower.settings import Own, Shared, hook
from flameche.network.node import Node, Work
from flameche.network.parcel import Parcel
from flameche.network.site import Site
from flameche.training.device import choose_device
from flameche.training.export import PROGRAM, save_model
from flameche.training.models import Models

T = TypeVar("T")
MODEL = "model.pt"  # in the node's folder: its cluster's model after the last round; model.pt2 beside it


def answer(parcel: Parcel, context: Context) -> Parcel:
    """Let this node's client answer the server."""
    shared, own = Shared.read(context.run_config), Own.read(context.node_config)
    device = choose_device(own.device or shared.device)
    given = dict(context.node_config)
    work = _told(
        own,
        "its key",
        lambda: node_work(
            shared.experiment,
            shared.seed,
            own.number,
            lambda: load(shared, own, given),
            key_file=own.key,
            device=device,
        ),
    )
    check_agreement(shared, own, work)
    site = _told(own, "its folder", lambda: Site(own.folder))
    reply = Node(work, site).handle(parcel)
    if reply.head.get("what") == "score" and parcel.head.get("round") == work.rounds:
        _told(own, "its folder", lambda: keep_model(work, parcel, site, shared.experiment.model.kind))
    return reply


def check_agreement(shared: Shared, own: Own, work: Work) -> None:
    """Refuse a run that is not the one this site agreed to, or that would not use its key."""
    if own.run and own.run != work.run:
        raise ConfigError(f"node {own.number} takes part in run {own.run} alone, this is {work.run}")
    if own.key is not None and shared.experiment.scheme.kind not in keyed_schemes():
        raise ConfigError(
            f"node {own.number} has a key, but this run's metadata would not be sealed with it "
            f'(scheme.kind = "{shared.experiment.scheme.kind}")'
        )


def load(shared: Shared, own: Own, node: dict[str, Any]) -> OwnData:
    """Load this site's samples."""
    if not shared.own_data:
        return _told(own, "its data", lambda: simulated_data(shared.experiment, shared.seed, own.number))
    where = (shared.classes, shared.seed, own.number)
    if shared.load:
        own_load = hook(shared.load)
        try:
            given = own_load(node)
        except Exception as problem:  # a user's own code can fail in any way; its words may hold values
            raise DataError(
                f"node {own.number}: {shared.load} failed: {type(problem).__name__}; the node's log says more"
            ) from problem
        return _told(own, "its data", lambda: from_hook(given, shared.load, *where))
    if own.data is None:
        raise DataError(
            f"node {own.number} has no data: name them in its settings (data), or write the app's load"
        )
    path = own.data
    return _told(own, "its data", lambda: from_path(path, *where))


def _told(own: Own, what: str, use: Callable[[], T]) -> T:
    """Tell what is wrong with something of a site's own; names of files and values stay in the node's log."""
    try:
        return use()
    except ConfigError:  # which has neither
        raise
    except BadInput as problem:
        why = (isinstance(problem, DataError) and problem.public) or f"{what} cannot be used"
        raise BadInput(f"node {own.number}: {why}; the node's log says more") from problem


def keep_model(work: Work, parcel: Parcel, site: Site, kind: str) -> None:
    """Write the model that was just scored for this client: its weights, and as a program where it can be."""
    names = sorted({name.split("/")[1] for name in parcel.arrays if name.startswith("model/")})
    sent = parcel.part(f"model/{names[0]}") if len(names) == 1 else {}
    if "params" not in sent:  # a model that nobody has trained yet
        return
    trainer: Any = work.trainer()
    rows = {key: array[None] for key, array in sent.items()}
    models: Models = trainer.initial().from_arrays(rows)
    for file in (site.path / MODEL, (site.path / MODEL).with_suffix(PROGRAM)):
        try:
            save_model(trainer, models, 0, file, kind)
            file.chmod(0o600)
        except StoreError as problem:
            if file.suffix != PROGRAM:
                raise
            logging.getLogger("flwr").warning(str(problem))  # the weights are there
