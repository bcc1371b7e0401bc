"""The law: nodes and a relay do what the simulator does."""

import numpy as np
import pytest

from flameche.crypto.keyfile import read_secret, write_public, write_secret
from flameche.crypto.registry import make_scheme
from flameche.network.message import npz_arrays
from tests.network.in_process import coordinator, experiment, federation, simulated

KEYED = ("bfv", "ckks", "paillier")


def keys_for(own, folder):
    if own.scheme.kind not in KEYED or own.method.kind != "flameche":
        return None
    folder.mkdir()
    scheme = make_scheme(own.scheme.kind, clients=own.data.clients, key_bits=own.scheme.key_bits)
    write_secret(folder / "client.key", scheme)
    write_public(folder / "server.pub", scheme)
    return folder


def both(own, tmp_path, seed=0):
    keys = keys_for(own, tmp_path / "keys")
    server = coordinator(own, federation(own, tmp_path, seed, keys), seed=seed, keys=keys)
    records = server.run()
    scheme = None if keys is None else read_secret(keys / "client.key")
    return server, records, simulated(own, seed, scheme)


def assert_equal(server, records, setup, result):
    assert [r["assignment"] for r in records] == [r["assignment"] for r in result.rounds]
    assert [r["participants"] for r in records] == [r["participants"] for r in result.rounds]
    assert [r["reclustered"] for r in records] == [r["reclustered"] for r in result.rounds]
    np.testing.assert_allclose(
        [r["accuracy"] for r in records], [r["accuracy"] for r in result.rounds], atol=1e-6
    )
    params = setup.method.models.to_arrays()["params"]
    for k, name in enumerate(server.state.names):
        if not name.startswith("init."):
            np.testing.assert_allclose(server.aggregator.models[name]["params"], params[k], atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "scheme"),
    [
        *(("paper", scheme) for scheme in ("plain", "bfv", "paillier", "secagg")),
        *(("sketch", scheme) for scheme in ("plain", "ckks", "bfv", "secagg")),
    ],
)
def test_flameche(scheme, mode, tmp_path):
    how = {"kind": scheme, "min_cluster": 1, **({"key_bits": 2048} if scheme == "paillier" else {})}
    method = {"mode": mode, **({"tau": 2} if mode == "paper" else {})}
    if scheme == "secagg" and mode == "paper":
        method["recluster_over"] = "participants"
    share = 1.0 if mode == "sketch" else 0.7  # a session takes all nodes, of which a round would draw a few
    own = experiment(scheme=how, method=method, rounds=2 if scheme == "paillier" else 3, participation=share)
    server, records, (setup, result) = both(own, tmp_path)
    assert_equal(server, records, setup, result)
    assert server.state.outcome["final"] == result.outcome.assignment.tolist()
    kept = [
        npz_arrays((tmp_path / f"site{n}" / "clusters.npz").read_bytes()) for n in range(own.data.clients)
    ]
    for arrays in [server.state.newcomer_bundle, *kept] if scheme in ("plain", "secagg") else kept:
        assert arrays["shape"].tolist() == [1, 8, 8] and arrays["classes"] == 10
        for name, expected in result.outcome.keep.items():
            np.testing.assert_allclose(arrays[name], expected, atol=1e-4)
    assert bool(server.state.newcomer_bundle) == (
        scheme in ("plain", "secagg")
    )  # else the server may not read it


def test_nodes_train_as_the_plan_says(tmp_path):
    how = {"optimiser": "sgd", "lr": 0.05, "momentum": 0.5, "augment": True, "turn": 20, "drop_last": True}
    own = experiment(method={"kind": "fedavg"}, training={"epochs": 1, "batch": 8, "threads": 1, **how})
    server, records, (setup, result) = both(own, tmp_path)
    assert_equal(server, records, setup, result)


@pytest.mark.parametrize("method", [{"kind": "fedavg"}, {"kind": "ifca", "clusters": 2, "restarts": 2}])
def test_beside_it(method, tmp_path):
    own = experiment(method=method)
    server, records, (setup, result) = both(own, tmp_path)
    assert_equal(server, records, setup, result)
