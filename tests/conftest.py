"""An empty home without a network for every test; small federations and worlds that several files use."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from flameche.crypto.plain import Plain
from flameche.data import Federation, Samples
from flameche.metadata.extractors import Metadata
from flameche.methods.base import World
from flameche.protocol.ledger import Ledger
from flameche.training.trainer import NoTrainer
from tests.offline import sitecustomize
from tests.skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401  (pytest finds them here)

OFFLINE = Path(sitecustomize.__file__).parent  # cuts the network off, here and in processes of tests
FOLDERS = {
    "HOME": "",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}
settings.register_profile("quiet", deadline=None, derandomize=True)  # other tests may hold the cores
settings.load_profile("quiet")


@pytest.fixture(scope="session", autouse=True)
def _homes(tmp_path_factory):
    """Make empty homes; what is set here holds for fixtures that several tests share."""
    folder = tmp_path_factory.mktemp("homes")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("FLAMECHE_", "FLWR_"))]:
            patch.delenv(name)
        patch.delenv("PYTHONUNBUFFERED", raising=False)  # hides lines that wait in a buffer
        patch.setenv("FLAMECHE_OFFLINE", "1")
        patch.setenv("PYTHONPATH", str(OFFLINE), prepend=os.pathsep)
        patch.setenv("MPLCONFIGDIR", str(folder / "matplotlib"))  # its list of fonts takes seconds to make
        _move_to(patch, folder / "shared")
        yield (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _empty_home(_homes, monkeypatch):
    """Give each test a home of its own, with nothing in it: no data, no cache, no settings."""
    _move_to(monkeypatch, next(_homes))


def _move_to(patch, home):
    home.mkdir()
    for name, folder in FOLDERS.items():
        patch.setenv(name, str(home / folder))


@pytest.fixture(autouse=True)
def _one_thread():
    """Whatever ran before; nets are small here, and threads that wait for each other keep cores busy."""
    torch.set_num_threads(1)


def tiny_federation(sizes=(6, 9, 5, 8), shape=(1, 8, 8), classes=3, seed=0) -> Federation:
    """Clients of unequal size in two groups, random images, two test sets."""
    rng = np.random.default_rng(seed)

    def samples(counts):
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        x = rng.integers(0, 256, (offsets[-1], *shape)).astype(np.uint8)
        return Samples(x, rng.integers(0, classes, offsets[-1]), offsets)

    group = np.arange(len(sizes)) % 2
    empty = [0] * len(sizes)
    return Federation(
        "tiny", "none", classes, samples(sizes), samples(empty), samples([10, 12]), group, group
    )


def planted_metadata(clients=40, groups=4, noise=0.05, seed=0, blocks=5, features=6):
    """Metadata of well separated groups in a narrow cone, and the groups."""
    rng = np.random.default_rng(seed)
    group = np.arange(clients) * groups // clients
    centres = 1.0 + 0.5 * rng.random((groups, blocks, features))
    phi = centres[group] + noise * rng.random((clients, blocks, features))
    return Metadata(phi, np.full((clients, blocks), 10)), group


def no_samples():
    raise AssertionError("this world has no samples")


def clustering_world(metadata, group, *, rounds=40, seed=0, trainer=None, samples=None) -> World:
    """A world in which nothing is trained."""
    clients = len(metadata)
    return World(
        clients=clients,
        rounds=rounds,
        seed=seed,
        trainer=trainer or NoTrainer(np.full(clients, 10)),
        ledger=Ledger(clients),
        scheme=Plain(),
        extract=lambda: metadata,
        samples=samples or no_samples,
        group=group,
    )
