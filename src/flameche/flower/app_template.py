"""Templates of Flower apps: for a user's own data and model (`flameche deploy init DIR`), and for digits."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from flameche.errors import BadInput
from flameche.experiments.config import parse_experiment
from flameche.flower.settings import class_count

PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
description = "FLAMECHE on {what}"
license = "Apache-2.0"
dependencies = ["flameche[flower]"]

[tool.flwr.app]
publisher = "{publisher}"

[tool.flwr.app.components]
serverapp = "flameche.flower.server_app:app"
clientapp = "flameche.flower.client_app:app"

[tool.flwr.app.config]
experiment = "experiment.toml"
set = ""                # changes to it, as in `flameche run --set`: "rounds=5 training.lr=0.01"
seed = 0
{data}
classes = {classes}            # of own data: their number at all sites together, or their names with commas
device = "cpu"          # or "cuda", "auto"; a node's own settings take precedence
out = "runs"            # on the server
key = ""                # on the server: server.pub, for bfv, ckks and paillier
timeout = 600           # seconds to wait for a node's reply, training included
patience = 120          # seconds to wait for nodes to come online
least-nodes = 2         # a round does not start with fewer
removed = ""            # numbers of nodes that no longer belong to the federation
tensorboard = false
"""

OWN_DATA = """\
data = "own"            # "simulated": nodes use the experiment's dataset, to try the app out
load = "hooks:load"     # "": a node's settings (data) name an npz with x and y, or a folder of images"""
SIMULATED_DATA = """\
data = "simulated"      # nodes use the experiment's dataset; "own": every node has its own samples
load = ""               # a function of the app that loads own samples"""

EXPERIMENT = """\
# The experiment, the same for server and nodes. All keys are in docs/config.md.
name = "{name}"
rounds = 20
participation = 1.0      # share of the nodes that take part in a round

[data]
clients = {clients}              # nodes, numbered from 0
groups = 1

[model]
kind = "hooks:make"      # or lenet5, resnet18, resnet18-small, resnet18-unpooled, small-cnn

[training]
epochs = 5
batch = 32
lr = 1e-3

[method]
clusters = 2             # the number of groups of sites, at most

[scheme]
kind = "{scheme}"             # how metadata are encrypted: bfv, ckks, paillier, secagg, plain
# min_cluster = 3        # no sum over fewer sites is decrypted: smaller groups are not found
"""

HOOKS = '''\
"""The data and model of this federation."""

import numpy as np
from torch import nn


def load(node):
    """Load this site's samples; `node` holds its own settings, such as node["data"].

    Return images (uint8, or floats in [0, 1]): [n H W], [n H W Ch] or [n Ch H W], and labels 0, 1, 2, … [n],
    as (x, y), of which a fifth becomes test samples, or as {"x": …, "y": …, "test_x": …, "test_y": …}.
    Anything else is refused.
    """
    with np.load(node["data"]) as file:
        return dict(file)


def make(shape, classes):
    """Build the network for images of shape (Ch, H, W), from −1 to 1; its last linear layer is the head."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 2) * (width // 2), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
'''

README = """\
# {name}

`experiment.toml` describes the experiment, `hooks.py` loads a site's samples and builds the model, and
`pyproject.toml` holds the settings of server and nodes.

Try it on this machine, with simulated data:

    flameche deploy local --app . --nodes {clients} --set rounds=2 --simulated

How to deploy it at several sites: docs/deploy.md of flameche.
"""

DIGITS = """\
# The digits dataset, split among nodes of two hidden groups: the second group has swapped labels.
name = "flower-digits"
rounds = 3
participation = 1.0

[data]
dataset = "digits"
clients = 6
groups = 2
per_label = 8
heterogeneity = "csl"

[training]
epochs = 2
batch = 16

[method]
clusters = 2

[scheme]
kind = "bfv"             # server and nodes need a key: flameche keys new
"""


def write_app(
    folder: Path, clients: int, scheme: str, publisher: str = "us", classes: str = ""
) -> list[Path]:
    """Write an app into a folder that is empty or does not exist; return its files."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-")[:32].rstrip("-")
    if not name or not name[0].isalpha():
        name = f"app-{name}".rstrip("-")[:32]
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists and is not an empty folder")
    texts = {
        "pyproject.toml": PYPROJECT.format(
            name=name,
            publisher=publisher,
            classes=json.dumps(classes, ensure_ascii=False),
            what="our own data",
            data=OWN_DATA,
        ),
        "experiment.toml": EXPERIMENT.format(name=name, clients=clients, scheme=scheme),
        "hooks.py": HOOKS,
        "README.md": README.format(name=name, clients=clients),
        ".gitignore": "__pycache__/\n*.key\nruns/\ndeployment/\n",
    }
    parse_experiment(tomllib.loads(texts["experiment.toml"]))  # refuses an unknown scheme
    if classes:
        class_count(classes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
    except OSError as problem:
        raise BadInput(f"{folder} cannot be written: {problem.strerror}") from problem
    return [folder / file for file in texts]


def write_digits_app(folder: Path) -> Path:
    """Write an app for the digits dataset, split among nodes of two hidden groups; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = PYPROJECT.format(
        name="flower-app", publisher="flameche", what="the digits dataset", data=SIMULATED_DATA, classes='""'
    )
    (folder / "pyproject.toml").write_text(text)
    (folder / "experiment.toml").write_text(DIGITS)
    return folder
