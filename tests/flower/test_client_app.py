"""A site's side and a run's end: a node's words, its key, models that nobody trained."""

import json
from shutil import copy2
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flwr.app import Error
from flwr.app import Message as FlowerMessage

from flameche.crypto.keyfile import PUBLIC, SECRET, read_info
from flameche.errors import BadInput, DataError, StoreError
from flameche.experiments.assign_client import assign_new_client
from flameche.experiments.config import load_experiment
from flameche.experiments.run import run_experiment
from flameche.experiments.run_folder import read_json
from flameche.flower.app_template import write_app, write_digits_app
from flameche.flower.client_app import export_model, handle, load_data
from flameche.flower.deployment import LocalNetwork, make_keys
from flameche.flower.results import RoundReporter, models_table, run_summary
from flameche.flower.settings import NodeSettings, ServerSettings
from flameche.flower.strategy import Flameche
from flameche.flower.transport import SITE_ERROR, pack
from flameche.network.message import Message, NoReply
from flameche.network.server_state import ServerState
from flameche.protocol.ledger import Ledger
from tests.flower.test_transport import _as_in_a_run, exchange  # noqa: F401
from tests.network.in_process import experiment, federation, own_data
from tests.network.test_replica import keys_for


def shared(load=""):
    return SimpleNamespace(own_data=True, load=load, classes="3", seed=0)


def site(tmp_path, data):
    return NodeSettings(3, tmp_path, None, data, "", "")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("a folder's name", "one of its folders is not a class; expected folders named numbers"),
        ("a file's name", "one of its images cannot be read"),
        ("a label", "y holds other numbers than classes 0, 1, 2, …"),
        ("a label too high", "its labels go beyond the run's classes, expected 0 to 2"),
        ("no file", "the file of its data is not there"),
        ("a pixel", "x is int64, expected uint8 or floats in [0, 1]"),
        ("a hook's words", "hooks:load failed: DataError"),
    ],
)
def test_the_operator_is_told_what_is_wrong_with_data_without_names_and_values(
    how, told, tmp_path, monkeypatch
):
    own, app = site(tmp_path, tmp_path / "data"), shared()
    if how == "a folder's name":
        (tmp_path / "data" / "smith").mkdir(parents=True)
    elif how == "a file's name":
        (tmp_path / "data" / "0").mkdir(parents=True)
        (tmp_path / "data" / "0" / "smith.png").write_text("no image")
    elif how != "a hook's words":
        own = site(tmp_path, tmp_path / "smith.npz")
        y = {"a label": -777, "a label too high": 777}.get(how, 2)
        x = np.full((3, 8, 8), 777) if how == "a pixel" else np.zeros((3, 8, 8), np.uint8)
        if how != "no file":
            np.savez(tmp_path / "smith.npz", x=x, y=np.array([0, 1, y]))
    else:
        app = shared("hooks:load")

        def failing(node):
            raise DataError("smith")

        monkeypatch.setattr("flameche.flower.client_app.app_function", lambda reference: failing)
    with pytest.raises(BadInput, match="the node's log says more") as caught:
        load_data(app, own, {})
    said = str(caught.value)
    assert said.startswith(f"node 3: {told}") and "\n" not in said
    assert "smith" not in said and "777" not in said and "smith" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("wrong", "told", "logged"),
    [
        ("no key", "node 3: its key cannot be used; the node's log says more", "smith/no.key cannot be read"),
        ("no key file", "node 3: its key cannot be used; the node's log says more", "not a key file"),
        ("another key", "the node's key is for 'ckks', scheme.kind is 'bfv'", "is for 'ckks'"),
        (
            "folder",
            "node 3: its folder cannot be used; the node's log says more",
            "cannot keep its state here",
        ),
        ("experiment", "failed: ConfigError; its node's log says more", "experiment.toml: not TOML"),
        ("dataset", "node 3: its data cannot be used; the node's log says more", "smith/data"),
        ("hook", "cannot be imported: ValueError; the node's log says more", "the diagnosis"),
    ],
)
def test_the_operator_is_not_told_where_a_sites_key_folder_and_data_are(
    wrong, told, logged, tmp_path, monkeypatch, caplog
):
    home = tmp_path / "smith"
    app = write_digits_app(home / "app")
    monkeypatch.syspath_prepend(app)
    monkeypatch.setenv("FLAMECHE_DATA", str(home / "data"))
    keys = make_keys(load_experiment(app / "experiment.toml"), home / "keys")
    run = {"data": "simulated", "set": "data.dataset=mnist" if wrong == "dataset" else ""}
    node = {"partition-id": 3, "folder": str(home / "state"), "key": str(keys / SECRET)}
    if wrong == "no key":
        node["key"] = str(home / "no.key")
    elif wrong == "no key file":
        node["key"] = str(app / "experiment.toml")
    elif wrong == "another key":
        other = load_experiment(app / "experiment.toml", ["scheme.kind=ckks"])
        node["key"] = str(make_keys(other, home / "other") / SECRET)
    elif wrong == "folder":
        (home / "state").write_text("")
    elif wrong == "experiment":
        (app / "experiment.toml").write_text("smith")
    elif wrong == "hook":
        (app / "diagnoses.py").write_text("int('the diagnosis of smith')")
        run |= {"data": "own", "classes": "3", "load": "diagnoses:load"}
    context = SimpleNamespace(run_config=run, node_config=node)
    hello = {"what": "hello", "instance": "x"}
    with caplog.at_level("ERROR", "flwr"):
        reply = handle(FlowerMessage(pack(Message(hello)), 7, "query"), context)
    assert reply.error.reason.endswith(told) and "smith" not in reply.error.reason
    assert reply.error.code == SITE_ERROR + 3 and logged in caplog.text


def test_a_nodes_words_cannot_steer_the_operators_terminal():
    bad = "node 3: \x1b[2Jgone\x07"
    _, _, found = exchange({3: (0.0, lambda m: FlowerMessage(Error(2, bad), reply_to=m))})
    assert found == {3: NoReply("node 3: [2Jgone")}


def test_a_node_gets_the_key_of_its_current_run(tmp_path):
    app = write_digits_app(tmp_path / "app")
    started = []
    network = SimpleNamespace(
        folder=tmp_path, certificates=None, start_node=lambda *given: started.append(given)
    )
    for scheme in ("bfv", "ckks"):
        keys = make_keys(load_experiment(app / "experiment.toml", [f"scheme.kind={scheme}"]), tmp_path / "k")
        LocalNetwork.start_site(network, 0, keys)
        copied = tmp_path / "site-0" / SECRET
        assert copied.read_bytes() == (keys / SECRET).read_bytes() and read_info(copied).scheme == scheme
        assert copied.stat().st_mode & 0o077 == 0 and started[-1][1]["key"] == str(copied)


def test_a_run_goes_on_with_the_key_that_it_began_with(tmp_path, monkeypatch):
    app = write_digits_app(tmp_path / "app")
    experiment = load_experiment(app / "experiment.toml")
    first, second = (make_keys(experiment, tmp_path / name) / PUBLIC for name in ("a", "b"))

    class Stopped(Exception):
        pass

    def stop(self, *_, **__):
        (self.path / "checkpoint.npz").write_bytes(b"")
        raise Stopped

    monkeypatch.setattr("flameche.experiments.run_folder.RunFolder.keep_environment", stop)
    for key, end in ((first, Stopped), (first, Stopped), (second, StoreError)):
        with pytest.raises(end):
            Flameche(experiment, out=tmp_path / "runs", key=key).start(grid=None)


@pytest.mark.parametrize("kind", ["plain", "secagg", "bfv"])
def test_a_client_that_comes_after_a_run_on_a_network_finds_its_cluster(kind, tmp_path, monkeypatch):
    own = experiment(scheme={"kind": kind, "min_cluster": 1}, rounds=2)
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)
    monkeypatch.setattr("flameche.flower.strategy.GridTransport", lambda grid: transport)
    key = None if keys is None else keys / PUBLIC
    strategy = Flameche(own, out=tmp_path / "runs", key=key, patience=0.1, own_data=False)
    strategy.start(grid=None)
    run, node = strategy.folder, tmp_path / "site0"
    data = own_data(own.data, 0, 3).train
    simulated, folder = run_experiment(own, 0, tmp_path / "simulated")
    expected = assign_new_client(folder, (data[0][:, 0], data[1]))
    assert expected["cluster"] == simulated["assignment_final"][3]
    same = ("cluster", "samples", "missing_classes", "sizes")

    found = assign_new_client(node, (data[0][:, 0], data[1]))
    assert [found[key] for key in same] == [expected[key] for key in same] and found["accuracy"] is None
    assert any("the operator's run folder has it" in note for note in found["notes"])
    with pytest.raises(StoreError, match="the operator's run folder has it"):
        assign_new_client(node, data, model=tmp_path / "m.pt")
    if kind == "bfv":  # the server may not read centroids
        assert not (run / "clusters.npz").exists()
        with pytest.raises(StoreError, match=r'scheme\.kind = "bfv" .* each node has them in its own folder'):
            assign_new_client(run, (data[0][:, 0], data[1]))
        copy2(run / "models.npz", node)
    whole = assign_new_client(
        node if kind == "bfv" else run, (data[0][:, 0], data[1]), model=tmp_path / "m.pt"
    )
    assert whole["accuracy"] == pytest.approx(expected["accuracy"]) and (tmp_path / "m.pt").is_file()
    for file in ("clusters.npz", "config.toml"):
        assert (node / file).stat().st_mode & 0o077 == 0


def test_a_finished_run_on_a_network_says_its_notes_and_if_other_sources_made_it(tmp_path, monkeypatch):
    method = {"mode": "paper", "m_step": "participants"}
    own = experiment(scheme={"kind": "secagg"}, method=method, participation=0.6, rounds=2)
    transport = federation(own, tmp_path)
    monkeypatch.setattr("flameche.flower.strategy.GridTransport", lambda grid: transport)
    said = []
    strategy = Flameche(own, out=tmp_path / "runs", patience=0.1, own_data=False, log=said.append)
    strategy.start(grid=None)
    file = strategy.folder / "summary.json"
    summary = read_json(file)
    notes = [f"note: {note}" for note in summary["notes"]]
    assert any("single clients' metadata" in note for note in notes) and said[-2 - len(notes) : -2] == notes
    assert read_json(strategy.folder / "environment.json")["sources"] == summary["sources"]

    def read_again():
        said.clear()
        strategy.start(grid=None)
        return said[1:]

    assert read_again() == notes and said[0].startswith("finished earlier")
    file.write_text(json.dumps({**summary, "sources": {"flameche": "other"}}))
    other = f"other sources of flameche; remove {strategy.folder} to run it again"
    assert read_again() == [*notes, f"note: this run was made by {other}"]


def test_a_run_on_a_network_that_other_sources_began_says_so(tmp_path, monkeypatch):
    own = experiment(rounds=2)
    transport = federation(own, tmp_path)
    monkeypatch.setattr("flameche.flower.strategy.GridTransport", lambda grid: transport)

    def stop(line):
        if line.startswith("round 1/2"):
            raise KeyboardInterrupt

    how = {"out": tmp_path / "runs", "patience": 0.1, "own_data": False}
    with pytest.raises(KeyboardInterrupt):
        Flameche(own, **how, log=stop).start(grid=None)
    monkeypatch.setattr("flameche.flower.strategy.sources", lambda *named: {"flameche": "other"})
    strategy = Flameche(own, **how)
    strategy.start(grid=None)
    said = f"this run was begun by other sources of flameche; remove {strategy.folder} to run it again"
    assert said in read_json(strategy.folder / "summary.json")["notes"]


def test_models_that_nobody_trained_are_told_and_do_not_end_a_run_badly(tmp_path):
    trained = {"params": np.ones(3, np.float32), "buffers": np.zeros(0, np.float32)}
    played = SimpleNamespace(
        aggregator=SimpleNamespace(models={"1.0": {"init": np.array(0)}, "1.1": trained}),
        state=SimpleNamespace(names=["1.0", "1.1"]),
    )
    table = models_table(played)
    assert np.isnan(table["params"][0]).all() and (table["params"][1] == 1).all()
    export_model(None, Message({}, {"model/1.0/init": np.array(0)}), SimpleNamespace(path=tmp_path), "")
    assert not list(tmp_path.iterdir())


def test_who_was_lost_before_a_round_began_again_is_not_counted_twice():
    board = []
    reporter = RoundReporter(1, lambda line: None, SimpleNamespace(add=lambda *given: board.append(given)))
    reporter.report({
        "round": 1, "accuracy": None, "sizes": [3], "participants": [0, 1, 2], "reclustered": False,
        "bytes_up": 0, "bytes_down": 0, "lost": {"2": "killed", "4": "offline"},
    })  # fmt: skip
    assert board[0][1]["nodes/taking part"] == 2 and board[0][1]["nodes/lost"] == 2


def test_an_app_for_a_scheme_that_there_is_not_is_not_written(tmp_path):
    with pytest.raises(BadInput, match=r"scheme\.kind"):
        write_app(tmp_path / "app", 3, "rot13")
    assert not (tmp_path / "app").exists()


def test_a_round_has_at_least_one_node():
    assert ServerSettings.read({"least-nodes": 0}).least_nodes == 1


@pytest.mark.parametrize(
    ("least", "said"),
    [
        (1, "the server can solve sums for single clients' metadata"),
        (3, "6 clients are few for scheme.min_cluster = 3"),
    ],
)
def test_the_summary_of_a_network_run_says_what_its_sums_give_away(least, said):
    own = experiment(scheme={"kind": "secagg", "min_cluster": least})
    state, ledger = ServerState.empty(6), Ledger(6)
    state.notes = ["what nodes said"]
    played = SimpleNamespace(
        state=state, ledger=ledger, records=[], wall_s=1.0, aggregator=SimpleNamespace(models={})
    )
    notes = run_summary(own, 0, True, played)["notes"]
    assert "what nodes said" in notes and any(said in note for note in notes)
