"""Apps that are written, the allowlist of apps, and the polling intervals of nodes."""

import hashlib
import runpy
import time

import numpy as np
import pytest

from flameche.errors import BadInput, DataError, FlamecheError
from flameche.flower.app_template import write_app, write_digits_app

flwr = pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flameche.flower._fast.polling import AdaptiveSleep  # noqa: E402
from flameche.flower.app_allowlist import ALLOWED_APPS, app_hash, clientapp  # noqa: E402
from flameche.flower.client_app import data_from_function  # noqa: E402
from flameche.flower.deployment import LocalRun, run_id_of_app, run_locally  # noqa: E402


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_a_written_app_is_one_that_flower_takes_and_its_hash_is_its_own(tmp_path):
    from flwr.cli.config_utils import load_and_validate

    write_app(tmp_path / "Our scans 1", 4, "bfv")
    folder = tmp_path / "Our scans 1"
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert not warnings and config["project"]["name"] == "Our-scans-1"
    assert LocalRun(folder, tmp_path, tmp_path, 4).experiment.model.kind == "hooks:make"
    first = app_hash(folder)
    assert first == app_hash(folder) and run_id_of_app(folder, []) != run_id_of_app(folder, ["rounds=3"])
    (folder / "hooks.py").write_text("# other\n")
    assert app_hash(folder) != first
    with pytest.raises(BadInput, match="not an empty folder"):
        write_app(folder, 4, "bfv")


def test_a_written_apps_hook_takes_or_refuses_all_that_a_sites_file_holds(tmp_path):
    write_app(tmp_path / "app", 4, "bfv")
    hooks = runpy.run_path(str(tmp_path / "app" / "hooks.py"))
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2
    file = tmp_path / "site.npz"

    def loaded(**more):
        np.savez(file, x=x, y=y, **more)
        return data_from_function(hooks["load"]({"data": str(file)}), "hooks:load", "2", 0, 0)

    assert len(loaded().test[1]) == 1
    assert len(loaded(test_x=x[:3], test_y=y[:3]).test[1]) == 3
    with pytest.raises(DataError, match="holds patient, which nothing reads"):
        loaded(patient=np.arange(6))


def test_the_example_is_what_deploy_local_plays(tmp_path):
    from pathlib import Path

    example = Path(__file__).parents[2] / "examples" / "flower-app"
    written = write_digits_app(tmp_path / "flower-app")
    for name in ("pyproject.toml", "experiment.toml"):
        assert (example / name).read_text() == (written / name).read_text()


def test_more_or_fewer_nodes_than_the_experiment_has_clients_are_told(tmp_path):
    app, said = write_digits_app(tmp_path / "app"), []
    for nodes in (6, 4):
        with pytest.raises(BadInput, match=r"holds neither 0\.npz"):
            run_locally(LocalRun(app, tmp_path, tmp_path, nodes, data=tmp_path / "nobody"), said.append)
    assert said == ["4 nodes take part (--nodes), not the 6 clients of data.clients"]


def test_an_app_that_was_not_agreed_to_does_not_run(monkeypatch):
    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp as runtime

    installed = []
    monkeypatch.setattr(runtime, "install_from_fab", lambda bundle, **_: installed.append(bundle))
    monkeypatch.setenv(ALLOWED_APPS, hashlib.sha256(b"read and approved").hexdigest())
    monkeypatch.setattr(cli, "flwr_clientapp", lambda: runtime.install_from_fab(b"read and approved"))
    clientapp()
    monkeypatch.setattr(cli, "flwr_clientapp", lambda: runtime.install_from_fab(b"something else"))
    with pytest.raises(FlamecheError, match="not agreed"):
        clientapp()
    assert installed == [b"read and approved"]


def test_flower_is_still_as_we_know_it():
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.runtime import run_clientapp as runtime

    assert loop.time is time and callable(runtime.install_from_fab)


def test_pauses_are_short_after_a_message_and_grow_to_flowers():
    slept = []
    pauses = AdaptiveSleep(slept.append)
    for _ in range(40):
        pauses.sleep(3)
    assert slept[0] < 0.2 and slept == sorted(slept) and slept[-1] == 3
    pauses.sleep(0.5)
    pauses.sleep(3)
    assert slept[-2] < 0.1 and slept[-1] < 0.2
    assert pauses.monotonic() <= time.monotonic()
