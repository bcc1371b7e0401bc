"""Flower for real, on this machine: a SuperLink with TLS, nodes that prove who they are."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from flameche.flower import process_reaper

pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flameche.crypto.keyfile import PUBLIC, SECRET, read_secret
from flameche.errors import StoreError
from flameche.experiments.assign_client import assign_new_client
from flameche.experiments.build import build
from flameche.experiments.config import config_hash, load_experiment
from flameche.experiments.deployment import simulated_data
from flameche.experiments.leakage import audit_run
from flameche.flower.app_allowlist import app_hash
from flameche.flower.certificates import make_node_key
from flameche.flower.deployment import LOG_PREFIX, run_id_of_app
from flameche.flower.processes import last_line
from flameche.simulation.engine import simulate
from tests.flower.conftest import heed_interrupts, mentioning, until


def run(world, out, changes="", **settings):
    """Run the app; yield what the server says, line by line."""
    told = {
        "set": changes, "out": str(out), "key": str(world.keys / PUBLIC), "patience": 600, **settings
    }  # fmt: skip
    for line in world.network.run(world.app, told):
        if LOG_PREFIX in line:
            yield line.partition(LOG_PREFIX)[2]


def read(world, out, changes=""):
    experiment = load_experiment(world.app / "experiment.toml", changes.split())
    folder = out / experiment.name / config_hash(experiment) / "0"
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return experiment, folder, json.loads((folder / "summary.json").read_text()), rounds


@pytest.fixture(scope="module")
def undisturbed(federation):
    out = federation.folder / "runs"
    said = list(run(federation, out))
    return said, *read(federation, out)


def test_nodes_do_what_the_simulator_does(federation, undisturbed):
    said, experiment, folder, summary, rounds = undisturbed
    scheme = read_secret(federation.keys / SECRET)
    setup = build(experiment, 0, device="cpu", scheme=scheme)
    result = simulate(setup.method, setup.world, experiment.participants, evaluate_every=2)
    assert [r["lost"] for r in rounds] == [{}, {}], said
    assert [r["assignment"] for r in rounds] == [r["assignment"] for r in result.rounds]
    assert summary["accuracy"] == pytest.approx(result.rounds[-1]["accuracy"], abs=1e-6)
    assert summary["assignment_final"] == result.outcome.assignment.tolist()
    assert summary["dbi"] == pytest.approx(result.outcome.dbi, abs=1e-4)
    assert summary["scheme"] == "bfv" and summary["bytes_up"] > 0
    assert (folder.parents[1] / "report.html").is_file() and (folder / "models.npz").is_file()
    audited = audit_run(folder)
    assert audited["sums"] and audited["client"] == summary["leakage"]["client"]
    assert any(line.startswith("round 2/2 · nodes 0-2 · clusters") for line in said)


def test_every_site_ends_with_its_model_and_nothing_is_open_to_others(federation, undisturbed):
    import torch

    for number in range(3):
        site = federation.folder / f"site-{number}"
        assert torch.load(site / "state" / "model.pt", weights_only=True)["state_dict"]
        assert torch.export.load(site / "state" / "model.pt2").module()
        for private in (
            site,
            site / "state",
            site / SECRET,
            site / "state" / "model.pt",
            site / "state" / "model.pt2",
        ):
            assert private.stat().st_mode & 0o077 == 0
    assert_blind(federation, undisturbed[2])


def test_a_node_and_not_the_server_can_tell_a_newcomer_its_cluster(federation, undisturbed):
    _, experiment, folder, summary, _ = undisturbed
    own = simulated_data(experiment, 0, 1)
    data = own.train[0][:, 0], own.train[1]
    found = assign_new_client(federation.folder / "site-0" / "state", data)
    assert found["cluster"] == summary["assignment_final"][1]
    with pytest.raises(StoreError, match="the server may not read centroids"):
        assign_new_client(folder, data)


def assert_blind(world, run):
    """Look for a node's metadata and for the clients' key in everything that the server wrote."""
    with np.load(world.folder / "site-0" / "state" / "metadata.npz") as file:
        phi = file["phi"][file["phi"] != 0]
    secrets = [
        (world.keys / SECRET).read_bytes()[-64:],
        phi[:8].tobytes(),
        phi[:8].astype(np.float32).tobytes(),
    ]
    folders = (world.folder / "server", run)
    files = [file for top in folders for file in top.rglob("*") if file.is_file()]
    assert len(files) > 8 and phi.size > 8
    for file in files:
        content = file.read_bytes()
        assert not any(secret in content for secret in secrets), file


def test_a_finished_run_is_not_played_twice(federation, undisturbed):
    said = list(run(federation, federation.folder / "runs"))
    notes = read(federation, federation.folder / "runs")[-2]["notes"]
    assert said[0].startswith("finished earlier") and said[1:] == [f"note: {note}" for note in notes]


def test_a_server_that_is_killed_goes_on_and_ends_the_same(federation, undisturbed):
    out, hold = federation.folder / "again", federation.folder / "site-0" / "wait-2"
    hold.touch()  # else round 2 could be over before the server is killed
    lines = run(federation, out)
    for line in lines:
        if line.startswith("round 1/2"):
            break
    family = process_reaper.descendants(federation.network.processes.ids, process_reaper.process_table())
    servers = [pid for pid in family if _name(pid) == "flwr-serverapp"]
    assert servers
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    lines.close()
    hold.unlink()
    assert (next(out.rglob("checkpoint.npz"))).is_file()
    assert_blind(federation, out)
    said = list(run(federation, out))
    assert any("resuming after round 1" in line for line in said)
    *_, summary, rounds = read(federation, out)
    before, expected = undisturbed[4], undisturbed[3]
    assert [r["assignment"] for r in rounds] == [r["assignment"] for r in before]
    for key in ("accuracy", "assignment", "assignment_final", "k"):
        assert summary[key] == expected[key]


def test_sites_bring_their_own_data_and_failures_tell_nothing_of_them(federation):
    changes, out = "method.kind=fedavg rounds=1 data.groups=1", federation.folder / "own"
    said = list(run(federation, out, changes, data="own", load="hooks:load", classes="3"))
    *_, summary, rounds = read(federation, out, changes)
    assert rounds[0]["participants"] == [0, 1] and summary["dataset"] == "own" and summary["accuracy"] > 0
    (refused,) = (line for line in said if line.startswith("a node is refused"))
    assert not any(line.startswith("waiting for nodes") for line in said)
    assert "node 2: hooks:load failed: ValueError" in refused and "diagnosis" not in "".join(said)
    assert "diagnosis" in (federation.folder / "site-2" / "node.log").read_text()


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_a_site_may_hold_on_to_what_it_agreed_to(federation, undisturbed):
    assert app_hash(federation.app) == federation.network.runs()[-1]["fab-hash"]
    assert run_id_of_app(federation.app, []) == f"{undisturbed[3]['config_hash']}-0"
    said = list(run(federation, federation.folder / "open", "scheme.kind=plain rounds=1", patience=1))
    assert sum("has a key, but this run would not encrypt its metadata" in line for line in said) == 3


def test_deploy_node_joins_and_leaves_without_a_trace(federation):
    folder = federation.folder / "fourth"
    secret, public = make_node_key(folder, "node.key")
    federation.network.register(public)
    before = federation.network.online()
    words = ["--superlink", f"127.0.0.1:{federation.network.port}", "--number", "2", "--folder", str(folder)]
    words += ["--root-certificates", str(federation.network.certificates.ca), "--identity", str(secret)]
    command = [sys.executable, "-m", "flameche", "deploy", "node", *words, "--app", str(federation.app)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_interrupts
    ) as node:
        for line in node.stdout:
            if "SuperNode ID" in line:
                break
        assert federation.network.online() == before + 1
        node.send_signal(signal.SIGINT)
        node.stdout.read()
        assert node.wait() == 130
    assert not mentioning(folder)


def test_an_unregistered_node_is_refused(federation):
    folder = federation.folder / "stranger"
    secret, _ = make_node_key(folder, "node.key")
    site = federation.network.start_node(9, {"partition-id": 1, "folder": str(folder)}, secret)
    assert site.program.wait(timeout=600) == 1
    assert "Failed to initialize the connection" in (site.folder / "node.log").read_text(), last_line(
        site.folder / "node.log"
    )
    federation.network.processes.stop([federation.network.nodes.pop(9).program])


def test_a_node_that_is_killed_or_sends_garbage_is_lost_and_the_rest_goes_on(federation):
    """FedAvg, with the fewest messages: node 1 sends garbage in round 1, node 2 is killed in round 2.

    Flower would tell after a minute that node 2 is gone; it is unregistered, so that nobody has to wait.
    """
    changes = "method.kind=fedavg rounds=2"
    out, network = federation.folder / "faults", federation.network
    (federation.folder / "site-1" / "garbage-1").touch()
    (federation.folder / "site-2" / "die-2").touch()
    for line in run(federation, out, changes, patience=8):
        if line.startswith("round 1/2"):
            until(lambda: network.nodes[2].program.poll() is not None)
            network.unregister(int((federation.folder / "site-2" / "id").read_text()))
    *_, summary, rounds = read(federation, out, changes)
    assert "not flameche's" in rounds[0]["lost"]["1"] and rounds[0]["participants"] == [0, 2]
    assert rounds[1]["lost"] == {"2": "the node is offline"} and rounds[1]["participants"] == [0, 1]
    assert summary["accuracy"] > 0 and any("lost 2 times" in note for note in summary["notes"])


def _name(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
