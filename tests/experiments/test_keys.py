"""The key of a run: the user's stays where it is, the run's own stays until the end."""

import json
import os

import pytest

from flameche.crypto.keyfile import read_info, write_public, write_secret
from flameche.crypto.registry import make_scheme
from flameche.errors import BadInput, ConfigError, OverflowBudget, StoreError
from flameche.experiments.config import parse_experiment, to_toml
from flameche.experiments.demo import DESCRIPTION
from flameche.experiments.keys import make_scheme_for
from flameche.experiments.run import cluster_experiment, run_experiment

SMALL = {**DESCRIPTION, "rounds": 3, "training": {**DESCRIPTION["training"], "epochs": 1}}


def described(method="flameche", **scheme):
    how = {"kind": "bfv", "min_cluster": 1, **scheme}
    return parse_experiment({**SMALL, "method": {"kind": method}, "scheme": how})


@pytest.fixture
def key(tmp_path):
    return new_key(tmp_path / "client.key")


def new_key(path, kind="bfv", clients=20, **settings):
    path.unlink(missing_ok=True)
    write_secret(path, make_scheme(kind, clients=clients, **settings))
    return path


def stop(record):
    if record["round"] == 2:
        raise KeyboardInterrupt


def killed(experiment, out):
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, 0, out, on_round=stop)
    (folder,) = (file.parent for file in out.rglob("checkpoint.npz"))
    return folder


def test_the_users_key_is_never_copied_and_a_run_goes_on_with_it(key, tmp_path):
    experiment = described(key_file=str(key))
    whole, _ = run_experiment(experiment, 0, tmp_path / "whole")
    folder = killed(experiment, tmp_path / "stopped")
    secret = key.read_bytes()[-600:-500]
    assert not any(secret in file.read_bytes() for file in folder.iterdir())
    assert json.loads((folder / "key.json").read_text()) == {"fingerprint": read_info(key).fingerprint}
    again, _ = run_experiment(experiment, 0, tmp_path / "stopped")
    assert again["assignment"] == whole["assignment"]
    assert key.exists()


def test_another_key_in_the_same_place_is_refused_until_the_folder_is_removed(key, tmp_path):
    experiment = described(key_file=str(key))
    folder = killed(experiment, tmp_path / "runs")
    first = key.read_bytes()
    new_key(key)
    with pytest.raises(StoreError, match=f"{key} is not the key this run began with.*remove {folder}"):
        run_experiment(experiment, 0, tmp_path / "runs")
    key.write_bytes(first)
    summary, _ = run_experiment(experiment, 0, tmp_path / "runs")
    new_key(key)
    assert run_experiment(experiment, 0, tmp_path / "runs")[0] == summary  # a finished run needs none


def test_a_run_that_stored_nothing_may_begin_again_with_another_key(key, tmp_path):
    experiment = described(key_file=str(key))
    folder = killed(experiment, tmp_path / "runs")
    (folder / "checkpoint.npz").unlink()
    new_key(key)
    run_experiment(experiment, 0, tmp_path / "runs")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "damaged"),
        (lambda file: file.write_bytes(b""), "not a key file"),
        (lambda file: new_key(file), "not the key this run began with"),
        (lambda file: new_key(file, "ckks"), "not the key this run began with"),
    ],
    ids=["missing", "truncated", "empty", "foreign", "of another scheme"],
)
def test_a_killed_run_whose_key_is_lost_names_it_and_the_remedy(harm, said, tmp_path):
    folder = killed(described(), tmp_path)
    harm(folder / "client.key")
    with pytest.raises(StoreError) as refused:
        run_experiment(described(), 0, tmp_path)
    text = str(refused.value)
    assert f"{folder}/client.key" in text and said in text and f"{folder}" in text.split("remov")[1]
    assert refused.value.exit_code == 2 and "\n" not in text


@pytest.mark.skipif(os.name != "posix", reason="needs the file modes of POSIX")
def test_nobody_else_reads_what_an_unfinished_run_holds(tmp_path):
    folder = killed(described(), tmp_path)
    for name in ("client.key", "checkpoint.npz"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name


def test_a_key_for_fewer_clients_is_refused_and_one_for_more_is_not(key):
    with pytest.raises(ConfigError, match=r"up to 19 clients, data\.clients is 20; .*--clients 20"):
        make_scheme_for(described(key_file=str(new_key(key, clients=19))))
    make_scheme_for(described(key_file=str(new_key(key, clients=21))))


def test_settings_that_contradict_the_key_are_refused(key):
    with pytest.raises(ConfigError, match=r"scheme\.bound = 8 contradicts .*bound 64, ring of degree 4096"):
        make_scheme_for(described(key_file=str(key), bound=8.0))
    make_scheme_for(described(key_file=str(new_key(key, bound=8.0)), bound=8.0))
    new_key(key, "paillier", key_bits=3072)
    with pytest.raises(ConfigError, match=r"scheme\.key_bits = 2048 contradicts .*modulus of 3072 bits"):
        make_scheme_for(described(kind="paillier", key_file=str(key), key_bits=2048))


def test_settings_left_alone_give_way_to_the_key_and_a_note_says_so(key):
    experiment = described(key_file=str(new_key(key, bound=32.0)))
    for same in (experiment, parse_experiment({"name": "x"} | _tables(experiment))):
        assert "scheme.bound is the key's, 32, not 64" in cluster_experiment(same, 0)["notes"]


def _tables(experiment):
    import tomllib

    return tomllib.loads(to_toml(experiment))


def test_the_wrong_file_as_key_is_refused_by_name(key, tmp_path):
    write_public(tmp_path / "server.pub", make_scheme("bfv", clients=20))
    for path, said in (
        (tmp_path / "server.pub", "server's part"),
        (tmp_path / "nowhere", "cannot be read"),
        (tmp_path, "not a file"),
    ):
        with pytest.raises(BadInput, match=said) as refused:
            make_scheme_for(described(key_file=str(path)))
        assert str(path) in str(refused.value)
    with pytest.raises(ConfigError, match=r"holds a key for 'bfv', scheme\.kind is 'ckks'"):
        make_scheme_for(described(kind="ckks", key_file=str(key)))
    with pytest.raises(ConfigError, match="key_file"):
        make_scheme_for(described(key_file="~nobody-of-this-name/client.key"))


def test_relative_paths_start_from_the_current_directory(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_scheme_for(described(key_file="client.key")).info == read_info(key)


def test_beyond_the_bound_of_a_key_file_a_new_key_is_advised(key):
    with pytest.raises(OverflowBudget, match=r"declared bound 0\.5; make a new key .*--bound"):
        cluster_experiment(described(key_file=str(new_key(key, bound=0.5))), 0)


def test_a_method_without_metadata_needs_no_key(tmp_path):
    folder = killed(described("fedavg"), tmp_path)
    assert not (folder / "client.key").exists() and not (folder / "key.json").exists()
