"""A real SuperLink with TLS and three nodes that prove who they are, shared by the tests of this folder."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from flameche.flower import process_reaper
from flameche.flower.app_template import write_digits_app

EXPERIMENT = """
name = "loop"
rounds = 2
participation = 1.0
[data]
dataset = "digits"
clients = 3
groups = [2, 1]
per_label = 5
heterogeneity = "csl"
[training]
epochs = 1
batch = 16
evaluate_every = 2
trainer = "loop"
[method]
clusters = 2
[scheme]
kind = "bfv"
min_cluster = 1
"""
# A node does what a file in its folder says, in the round that its name says: it sends garbage, is killed
# (and leaves its id of Flower's), or waits until the file is gone.
NAUGHTY = """
import os, signal, time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from flameche.flower.client_app import handle
from flameche.flower.transport import unpack

app = ClientApp()

def once(file):
    if found := file.exists():
        file.unlink()
    return found

@app.query()
@app.train()
@app.evaluate()
def node(message, context):
    folder = Path(context.node_config["folder"]).parent
    head = unpack(message.content).head
    if head["what"] == "round":
        number = head["round"]
        if once(folder / f"garbage-{number}"):
            return Message(RecordDict({"arrays": ArrayRecord([np.ones(3)])}), reply_to=message)
        if once(folder / f"die-{number}"):
            (folder / "id").write_text(str(context.node_id))
            os.killpg(os.getpgrp(), signal.SIGKILL)
        while (folder / f"wait-{number}").exists():
            time.sleep(0.05)
    return handle(message, context)
"""
HOOKS = """
import numpy as np

def load(node):
    number = node["partition-id"]
    if number == 2:
        raise ValueError("the diagnosis of patient 7")
    rng = np.random.default_rng(number)
    y = np.arange(30) % 3
    return rng.integers(0, 60, (30, 8, 8), np.uint8) + 60 * y[:, None, None].astype(np.uint8), y
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Write the digits app, and put its folder on Python's path, as Flower does."""
    folder = write_digits_app(tmp_path / "app")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(scope="module")  # nodes that wait look for work, which takes time from other tests
def federation(tmp_path_factory):
    """Start everything once; afterwards nothing is left running."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")
    from flameche.experiments.config import load_experiment
    from flameche.flower.deployment import LocalNetwork, ensure_certificates, make_keys

    folder = tmp_path_factory.mktemp("flower")
    app = write_digits_app(folder / "app")
    (app / "experiment.toml").write_text(EXPERIMENT)
    (app / "naughty.py").write_text(NAUGHTY)
    (app / "hooks.py").write_text(HOOKS)
    told = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(told.replace("flameche.flower.client_app:app", "naughty:app"))
    keys = make_keys(load_experiment(app / "experiment.toml"), folder / "keys")
    with LocalNetwork(folder, 3, ensure_certificates(folder / "tls")) as network:
        network.start_superlink()
        for number in range(3):
            network.start_site(number, keys)
        until(lambda: network.online() == 3)
        yield SimpleNamespace(network=network, app=app, keys=keys, folder=folder)
    assert not mentioning(folder), "processes were left behind"


def heed_interrupts():
    """What is started in the background ignores them, and hands that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def mentioning(folder):
    """Find running processes that were started for a folder: it is in their words or their environment."""
    found = []
    for pid in process_reaper.process_table():
        for what in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{what}", "rb") as file:
                    if str(folder).encode() in file.read():
                        found.append(pid)
            except OSError:
                continue
    return sorted({*found} - {os.getpid()})


def until(what, patience=600.0):
    """Wait for something."""
    end = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found
