"""A node's side, ready to be named in an app: `clientapp = "flameche.flower.client_app:app"`.

Flower starts a process for every message; what a node must still know afterwards is in its own folder. The
server receives errors as one line without paths or values; the node's own log has the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context, Error
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flameche.data.formats import check_client, check_client_keys, client_arrays
from flameche.data.image_folder import image_shape, read_image_folder
from flameche.errors import BadInput, ConfigError, DataError, FlamecheError, StoreError
from flameche.experiments.deployment import OwnData, node_setup, simulated_data
from flameche.flower.settings import NodeSettings, RunSettings, app_function, class_count, class_names
from flameche.flower.transport import SITE_ERROR, pack, unpack
from flameche.network.message import Message
from flameche.network.node import Node, NodeSetup
from flameche.network.node_storage import NodeStorage
from flameche.registry import SCHEMES
from flameche.rng import stream
from flameche.training.device import choose_device
from flameche.training.export import PROGRAM, save_model
from flameche.training.models import Models

T = TypeVar("T")
APP_ERROR = 2  # Flower's code for an app that raised
PATH = re.compile(r"(?<!\w)[/\\][\w.]")  # the start of a path, which the server must not see
MODEL = "model.pt"  # in the node's folder: its cluster's model after the last round; model.pt2 beside it
TEST_SHARE = 0.2  # of a site's samples, if it has no test samples of its own

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def handle(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer one message of the server; an error becomes one line without anything of the data."""
    try:
        return FlowerMessage(pack(answer(unpack(message.content), context)), reply_to=message)
    except FlamecheError as problem:
        reason, cause = str(problem), problem.__cause__
        if PATH.search(reason):
            reason, cause = f"failed: {type(problem).__name__}; its node's log says more", problem
        code = _error_code(problem, context)
    except Exception as problem:  # its text may contain values
        reason, cause = f"failed: {type(problem).__name__}; its node's log says more", problem
        code = APP_ERROR
    logging.getLogger("flwr").error(reason, exc_info=cause)
    return FlowerMessage(Error(code=code, reason=reason), reply_to=message)


def _error_code(problem: FlamecheError, context: Context) -> int:
    """Tell the server which site must correct something, if the node has a number."""
    number = context.node_config.get("partition-id")
    if isinstance(problem, BadInput) and type(number) is int and number >= 0:
        return SITE_ERROR + number
    return APP_ERROR


def answer(message: Message, context: Context) -> Message:
    """Let this node's client answer one message."""
    run, settings = RunSettings.read(context.run_config), NodeSettings.read(context.node_config)
    device = choose_device(settings.device or run.device)
    node_config = dict(context.node_config)
    setup = _without_details(
        settings,
        "its key",
        lambda: node_setup(
            run.experiment,
            run.seed,
            settings.number,
            lambda: load_data(run, settings, node_config),
            key_file=settings.key,
            device=device,
        ),
    )
    check_agreement(run, settings, setup)
    storage = _without_details(settings, "its folder", lambda: NodeStorage(settings.folder))
    reply = Node(setup, storage).handle(message)
    if reply.head.get("what") == "score" and message.head.get("round") == setup.rounds:
        kind = run.experiment.model.kind
        _without_details(settings, "its folder", lambda: export_model(setup, message, storage, kind))
    return reply


def check_agreement(run: RunSettings, settings: NodeSettings, setup: NodeSetup) -> None:
    """Refuse a run that is not the one this site agreed to, or that would not use its key."""
    if settings.run and settings.run != setup.run:
        raise ConfigError(
            f"node {settings.number} takes part in run {settings.run} only, this is {setup.run}"
        )
    if settings.key is not None and not SCHEMES[run.experiment.scheme.kind].keyed:
        raise ConfigError(
            f"node {settings.number} has a key, but this run would not encrypt its metadata with it "
            f'(scheme.kind = "{run.experiment.scheme.kind}")'
        )


def _without_details(settings: NodeSettings, what: str, use: Callable[[], T]) -> T:
    """Call a function; if it fails, raise an error without paths and values, which stay in the node's log."""
    try:
        return use()
    except ConfigError:  # contains neither
        raise
    except BadInput as problem:
        reason = (isinstance(problem, DataError) and problem.public) or f"{what} cannot be used"
        raise BadInput(f"node {settings.number}: {reason}; the node's log says more") from problem


def load_data(run: RunSettings, settings: NodeSettings, node_config: dict[str, Any]) -> OwnData:
    """Load this site's samples: simulated ones, from the app's function, or from a file or folder."""
    number = settings.number
    if not run.own_data:
        return _without_details(
            settings, "its data", lambda: simulated_data(run.experiment, run.seed, number)
        )
    options = (run.classes, run.seed, number)
    if run.load:
        load = app_function(run.load)
        try:
            returned = load(node_config)
        except Exception as problem:  # the user's own code can raise anything, with values in its text
            raise DataError(
                f"node {number}: {run.load} failed: {type(problem).__name__}; the node's log says more"
            ) from problem
        return _without_details(
            settings, "its data", lambda: data_from_function(returned, run.load, *options)
        )
    if settings.data is None:
        raise DataError(
            f"node {number} has no data: name them in its settings (data), or write the app's load function"
        )
    path = settings.data
    return _without_details(settings, "its data", lambda: data_from_path(path, *options))


def data_from_function(returned: Any, source: str, classes: str, seed: int, number: int) -> OwnData:
    """Check what an app's `load` returned: (x, y), or a mapping with x, y and perhaps test_x, test_y."""
    if isinstance(returned, OwnData):
        if returned.classes != class_count(classes):
            problem = (
                f"{source} returned data of {returned.classes} classes; "
                f'the app\'s config says classes = "{classes}"'
            )
            raise DataError(problem, public=problem)
        return returned
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = {"x": returned[0], "y": returned[1]}
    if not isinstance(returned, Mapping) or not {"x", "y"} <= returned.keys():
        problem = f"{source} returned a {type(returned).__name__}; expected images and labels: (x, y)"
        raise DataError(problem, public=problem)
    check_client_keys(source, list(returned))
    arrays = {key: np.asanyarray(value) for key, value in returned.items()}  # so masked arrays are refused
    return data_from_arrays(arrays, source, classes, seed, number)


def data_from_path(path: Path, classes: str, seed: int, number: int) -> OwnData:
    """Read an npz with x and y (and test_x, test_y), or a folder with a folder of images for each class."""
    arrays = read_image_folder(path, class_names(classes)) if path.is_dir() else client_arrays(path)
    return data_from_arrays(arrays, str(path), classes, seed, number)


def data_from_arrays(
    arrays: Mapping[str, NDArray[Any]], source: str, classes: str, seed: int, number: int
) -> OwnData:
    """Check a site's arrays, and split off test samples if it has none."""
    shape = image_shape(arrays["x"], source)
    count = class_count(classes)
    x, y = check_client(source, arrays["x"], arrays["y"], shape, count)
    if "test_x" in arrays:
        test = check_client(f"{source} (test)", arrays["test_x"], arrays["test_y"], shape, count)
        return OwnData((x, y), test, count)
    order = stream(seed, "own test samples", number).permutation(len(y))
    first = min(max(1, round(TEST_SHARE * len(y))), max(len(y) - 2, 0))
    test_at, train_at = np.sort(order[:first]), np.sort(order[first:])
    return OwnData((x[train_at], y[train_at]), (x[test_at], y[test_at]), count)


def export_model(setup: NodeSetup, message: Message, storage: NodeStorage, kind: str) -> None:
    """Write the model that was just scored for this client: its weights, and as a program where possible."""
    names = sorted({name.split("/")[1] for name in message.arrays if name.startswith("model/")})
    sent = message.section(f"model/{names[0]}") if len(names) == 1 else {}
    if "params" not in sent:  # nobody has trained it yet
        return
    trainer: Any = setup.trainer()
    rows = {key: array[None] for key, array in sent.items()}
    models: Models = trainer.initial().from_arrays(rows)
    for file in (storage.path / MODEL, (storage.path / MODEL).with_suffix(PROGRAM)):
        try:
            save_model(trainer, models, 0, file, kind)
            file.chmod(0o600)
        except StoreError as problem:
            if file.suffix != PROGRAM:
                raise
            logging.getLogger("flwr").warning(str(problem))  # the weights are written
