"""Whole runs under every scheme."""

import numpy as np
import pytest

from flameche.crypto.registry import secret_bytes
from flameche.errors import ConfigError
from flameche.experiments.config import parse_experiment
from flameche.experiments.demo import DESCRIPTION
from flameche.experiments.keys import make_scheme_for
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.registry import SCHEMES

SMALL = {**DESCRIPTION, "rounds": 4, "training": {**DESCRIPTION["training"], "epochs": 1}}


def described(kind="bfv", **scheme):
    return parse_experiment({**SMALL, "scheme": {"kind": kind, "min_cluster": 2, "key_bits": 2048, **scheme}})


@pytest.fixture(scope="module")
def in_the_clear():
    return cluster_experiment(described("plain"), 0)


@pytest.mark.parametrize("kind", [kind for kind in SCHEMES if kind != "plain"])
def test_a_run_under_every_scheme_clusters_as_in_the_clear(kind, tmp_path, in_the_clear):
    summary, path = run_experiment(described(kind), 0, tmp_path)
    assert summary["scheme"] == kind
    assert summary["assignment_final"] == in_the_clear["assignment_final"]
    assert summary["accuracy"] > 0.2
    assert not (path / "client.key").exists()  # a finished run needs none


@pytest.mark.parametrize("updates", ["secagg", "ckks"])
def test_protected_updates_train_the_models_of_the_clear(updates, tmp_path):
    clear, _ = run_experiment(described(), 0, tmp_path)
    hidden, _ = run_experiment(described(updates=updates), 0, tmp_path)
    assert hidden["accuracy"] == pytest.approx(clear["accuracy"], abs=0.02)
    assert hidden["ledger"]["up"]["model"] > clear["ledger"]["up"]["model"]


@pytest.mark.parametrize("kind", ["bfv", "secagg"])
def test_an_encrypted_run_resumes_with_its_own_key(kind, tmp_path):
    whole, _ = run_experiment(described(kind), 0, tmp_path / "whole")

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(described(kind), 0, tmp_path / "stopped", on_round=stop)
    again, _ = run_experiment(described(kind), 0, tmp_path / "stopped")
    for key in ("assignment", "assignment_final", "accuracy_per_round", "ari_per_round", "dbi"):
        assert again[key] == whole[key], key


def test_the_servers_checkpoint_holds_no_secret(tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(described(), 0, tmp_path, on_round=stop)
    (checkpoint,) = tmp_path.rglob("checkpoint.npz")
    (key,) = tmp_path.rglob("client.key")
    assert key.stat().st_mode & 0o077 == 0
    with np.load(checkpoint) as arrays:
        sealed = b"".join(arrays[name].tobytes() for name in arrays.files)
    secret = key.read_bytes()
    pieces = [secret[i : i + 24] for i in range(2000, len(secret) - 24, 997)]
    assert len(pieces) > 50 and not any(piece in sealed for piece in pieces)


def test_fresh_keys_differ():
    first, second = (secret_bytes(make_scheme_for(described())) for _ in range(2))
    assert first != second


@pytest.mark.parametrize("mode", ["paper", "sketch"])
def test_metadata_beyond_the_bound_are_refused_with_what_the_mode_can_do(mode):
    from flameche.errors import OverflowBudget

    small = {**described(bound=0.5).model_dump(exclude_unset=True), "method": {"mode": mode, "clusters": 2}}
    with pytest.raises(OverflowBudget, match=r"exceeds the declared bound 0\.5.*scheme\.bound") as caught:
        cluster_experiment(parse_experiment(small), 0)
    assert ("method.unit_norm" in str(caught.value)) == (mode == "paper")


def test_hidden_assignments_change_nothing_but_who_knows_them(tmp_path):
    def play(hidden):
        tables = {
            **SMALL,
            "rounds": 7,
            "participation": 0.5,
            "method": {"mode": "paper", "tau": 5, "hide_assignments": hidden},
        }
        tables["scheme"] = {"kind": "bfv", "updates": "ckks", "min_cluster": 1}
        return run_experiment(parse_experiment(tables), 1, tmp_path)[0]

    clear, hidden = play(False), play(True)
    assert hidden["ledger"]["up"]["assignment"] == 0 < clear["ledger"]["up"]["assignment"]
    assert hidden["ledger"]["down"]["model"] > 3 * clear["ledger"]["down"]["model"]
    first = next(i for i, r in enumerate(reclusterings(tmp_path, clear)) if r)
    assert hidden["ari_per_round"][:first] == clear["ari_per_round"][:first]


def reclusterings(runs, summary):
    import json

    (file,) = runs.glob(f"*/{summary['config_hash']}/{summary['seed']}/rounds.jsonl")
    return [json.loads(line)["reclustered"] for line in file.read_text().splitlines()] + [True]


@pytest.mark.parametrize(
    ("scheme", "said"),
    [({"kind": "plain"}, "opens them on the server"), ({"kind": "bfv"}, "the server sees")],
)
def test_hiding_assignments_is_refused_where_something_else_shows_them(scheme, said):
    with pytest.raises(ConfigError, match=said):
        parse_experiment({**SMALL, "method": {"mode": "paper", "hide_assignments": True}, "scheme": scheme})


@pytest.mark.parametrize("rule", ["first", "member"])
def test_one_clients_statistics_and_hidden_updates_exclude_each_other(rule):
    with pytest.raises(ConfigError, match=f'bn_buffers = "{rule}"'):
        parse_experiment({**SMALL, "training": {"bn_buffers": rule}, "scheme": {"updates": "secagg"}})
