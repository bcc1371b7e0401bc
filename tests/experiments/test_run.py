import json
import signal
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from flameche.cli.commands import app
from flameche.errors import DataError, StoreError
from flameche.experiments.build import build, load_federation, training_plan
from flameche.experiments.config import config_hash, parse_experiment
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.schema import SchemeOptions
from flameche.training.trainer import Sgd, TrainingPlan

SMALL = {
    "name": "small",
    "rounds": 6,
    "participation": 0.5,
    "data": {"clients": 8, "per_label": 6, "heterogeneity": "csf", "label_skew": False},
    "training": {"epochs": 1, "batch": 32, "threads": 1},
}
KILLED = """
import os, signal, sys
from pathlib import Path
from flameche.experiments.config import load_experiment
from flameche.experiments.run import run_experiment

def kill(record):
    if record["round"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)

run_experiment(load_experiment(Path(sys.argv[1])), 0, Path(sys.argv[2]), on_round=kill, device="cpu")
"""
TIMES = {"seconds", "wall_s", "ledger"}
KEYS = {
    *("method", "dataset", "setting", "seed", "scheme", "rounds", "accuracy", "accuracy_per_round"),
    *("ari", "ari_final", "dbi", "ch", "k", "assignment", "bytes_up", "bytes_down"),
    *("seconds", "wall_s", "device", "versions", "config_hash"),
}


def small(**method):
    return parse_experiment({**SMALL, "method": {"kind": "flameche", **method}})


def timeless(summary):
    return {key: value for key, value in summary.items() if key not in TIMES}


def test_a_run_leaves_what_the_design_promises(tmp_path):
    experiment = small()
    summary, path = run_experiment(experiment, 0, tmp_path)
    assert path == tmp_path / "small" / config_hash(experiment) / "0"
    names = {"config.toml", "environment.json", "rounds.jsonl", "clients.parquet", "summary.json"}
    assert names <= {file.name for file in path.iterdir()}
    assert set(summary) >= KEYS
    assert json.loads((path / "summary.json").read_text()) == summary
    rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == [1, 2, 3, 4, 5, 6]
    assert rounds[-1]["bytes_up"] == summary["bytes_up"]
    clients = pd.read_parquet(path / "clients.parquet")
    assert clients["bytes_up"].sum() == summary["bytes_up"]
    assert clients["accuracy"].mean() == pytest.approx(summary["accuracy"])
    assert clients["rounds"].sum() == 24 and clients["map_x"].notna().all()


def test_a_finished_run_is_read_not_played_again(tmp_path):
    experiment = small()
    first, _ = run_experiment(experiment, 0, tmp_path)
    second, _ = run_experiment(experiment, 0, tmp_path)
    assert first == second  # wall_s included
    third, _ = run_experiment(experiment, 0, tmp_path, fresh=True)
    assert timeless(third) == timeless(first) and third["wall_s"] != first["wall_s"]


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(tmp_path):
    first, _ = run_experiment(small(), 0, tmp_path / "a")
    second, _ = run_experiment(small(), 0, tmp_path / "b")
    other, _ = run_experiment(small(), 1, tmp_path / "a")
    assert timeless(first) == timeless(second)
    assert first["accuracy_per_round"] != other["accuracy_per_round"]


def test_all_methods_share_one_schedule(tmp_path):
    drawn = []
    for kind in ("flameche", "fedavg", "oracle"):
        _, path = run_experiment(parse_experiment({**SMALL, "method": {"kind": kind}}), 0, tmp_path)
        lines = (path / "rounds.jsonl").read_text().splitlines()
        drawn.append([json.loads(line)["participants"] for line in lines])
    assert drawn[0] == drawn[1] == drawn[2]


def test_clustering_alone_finds_the_clusters_that_a_whole_run_finds(tmp_path):
    whole, _ = run_experiment(small(), 0, tmp_path)
    alone = cluster_experiment(small(), 0)
    assert alone["assignment"] == whole["assignment"] and alone["dbi"] == whole["dbi"]
    assert alone["accuracy"] is None and alone["ledger"]["up"]["model"] == 0


def test_a_killed_run_goes_on_and_ends_as_if_never_stopped(tmp_path):
    """kill -9 in the middle, the same command again: the summaries are equal but for times."""
    description = tmp_path / "small.toml"
    description.write_text(
        'rounds = 30\nparticipation = 0.5\n[data]\nclients = 8\nper_label = 6\nheterogeneity = "csf"\n'
        "label_skew = false\n[training]\nepochs = 2\nbatch = 8\nthreads = 1\n"
    )
    words = ["run", str(description), "--device", "cpu", "--out"]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(description), str(disturbed)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not list(disturbed.glob("small/*/0/summary.json"))
    assert list(disturbed.glob("small/*/0/checkpoint.npz"))
    for out in (disturbed, undisturbed):
        assert CliRunner().invoke(app, [*words, str(out)]).exit_code == 0
    first, second = (
        json.loads(next(out.glob("small/*/0/summary.json")).read_text()) for out in (undisturbed, disturbed)
    )
    assert timeless(first) == timeless(second)
    for key in ("up", "down", "oracle_knowledge"):
        assert first["ledger"][key] == second["ledger"][key]


def test_every_kind_of_metadata_can_be_clustered():
    found = {}
    for kind in ("random-uniform", "mean", "mean-pca-local", "mean-pca-shared", "subspace", "label-counts"):
        experiment = parse_experiment({**SMALL, "rounds": 30, "metadata": {"kind": kind}})
        found[kind] = cluster_experiment(experiment, 0)
        assert min(found[kind]["assignment"]) >= 0, kind
    # Rotated digits: class means tell the groups apart, label counts (all equal here) cannot.
    assert found["mean"]["ari_final"] > 0.6 and found["label-counts"]["ari_final"] < 0.2


def test_the_shared_extractor_seed_can_be_fixed():
    experiment = parse_experiment({**SMALL, "metadata": {"seed": 3}})
    same = build(experiment, 0, device="cpu", training=False).world.metadata.phi
    free = build(parse_experiment(SMALL), 0, device="cpu", training=False).world.metadata.phi
    assert not np.allclose(same, free)
    pinned = parse_experiment({**SMALL, "metadata": {"seed": 0}})
    assert np.array_equal(build(pinned, 0, device="cpu", training=False).world.metadata.phi, free)


def test_scores_are_taken_as_often_as_asked(tmp_path):
    experiment = parse_experiment({**SMALL, "training": {**SMALL["training"], "evaluate_every": 4}})
    summary, _ = run_experiment(experiment, 0, tmp_path)
    known = [i for i, value in enumerate(summary["accuracy_per_round"], 1) if value is not None]
    assert known == [4, 6]  # the last round always


def test_metadata_summarise_all_samples_or_those_trained_on():
    def phi(holdout, samples):
        data = {**SMALL["data"], "per_label": 10, "holdout": holdout}
        experiment = parse_experiment({**SMALL, "data": data, "metadata": {"samples": samples}})
        return build(experiment, 0, device="cpu", training=False).world.metadata.phi

    assert np.allclose(phi(0.3, "all"), phi(0.0, "train"), atol=1e-5)
    assert not np.allclose(phi(0.3, "train"), phi(0.0, "train"), atol=1e-3)


def test_every_key_of_local_training_reaches_the_clients_plan():
    told = {"epochs": 3, "batch": 7, "lr": 0.5, "augment": True, "turn": 11.0, "bn_buffers": "first"}
    told |= {"drop_last": True, "optimiser": "sgd", "momentum": 0.25}
    plan = training_plan(parse_experiment({**SMALL, "training": told}))
    assert {key: getattr(plan, key) for key in told if hasattr(plan, key)} == {
        key: told[key] for key in told if key not in ("optimiser", "momentum")
    }
    assert plan.sgd == Sgd(0.5, 0.25)
    assert not any(getattr(plan, own.name) == getattr(TrainingPlan(), own.name) for own in fields(plan))


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"kind": "fedavg"}},
        {"method": {"mode": "paper", "missing": "impute"}, "data": {**SMALL["data"], "missing_labels": 2}},
        {"training": {**SMALL["training"], "augment": True, "turn": 20, "weighting": "samples"}},
        {"training": {**SMALL["training"], "bn_buffers": "local"}, "model": {"kind": "tests.nets:normed"}},
        {"method": {"clusters": "auto", "most_clusters": 4}, "data": {**SMALL["data"], "clients": 16}},
    ],
    ids=["fedavg", "impute", "augment", "local buffers", "chosen K"],
)
def test_every_kind_of_run_resumes_bit_identically(change, tmp_path, monkeypatch):
    experiment = parse_experiment({**SMALL, **change})
    whole, _ = run_experiment(experiment, 0, tmp_path / "whole")

    def stop(record):
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, 0, tmp_path / "stopped", on_round=stop)
    again, _ = run_experiment(experiment, 0, tmp_path / "stopped")
    assert timeless(again) == timeless(whole)


def test_a_changed_data_file_is_not_mixed_with_the_old_runs(tmp_path):
    def write(seed):
        rng = np.random.default_rng(seed)
        labels = np.repeat(np.arange(3), 30)
        arrays = {}
        for split in ("train", "val", "test"):
            arrays |= {
                f"{split}_images": rng.integers(0, 256, (90, 8, 8), np.uint8),
                f"{split}_labels": labels,
            }
        np.savez(tmp_path / "own.npz", **arrays)

    data = {"path": str(tmp_path / "own.npz"), "clients": 8, "per_label": 3}
    experiment = parse_experiment({**SMALL, "data": data, "method": {"clusters": 2}})
    write(0)
    first, _ = run_experiment(experiment, 0, tmp_path / "runs")
    assert run_experiment(experiment, 0, tmp_path / "runs")[0] == first
    write(1)
    with pytest.raises(StoreError, match=r"data\.path changed.*--fresh"):
        run_experiment(experiment, 0, tmp_path / "runs")
    again, path = run_experiment(experiment, 0, tmp_path / "runs", fresh=True)
    assert timeless(run_experiment(experiment, 0, tmp_path / "elsewhere")[0]) == timeless(again)
    assert again["dbi"] != first["dbi"] and json.loads((path / "summary.json").read_text()) == again


def changed(file, **keys):
    """Rewrite keys of a JSON file; None takes a key away."""
    content = {**json.loads(file.read_text()), **keys}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


OTHER = "this run was made by other sources of flameche; --fresh runs it again"


def test_a_finished_run_that_other_sources_made_says_so_until_it_is_run_again(tmp_path):
    first, path = run_experiment(small(), 0, tmp_path)
    assert run_experiment(small(), 0, tmp_path)[0] == first and set(first["sources"]) == {"flameche"}
    changed(path / "summary.json", sources={"flameche": "0" * 12}, accuracy=0.123)
    found, same = run_experiment(small(), 0, tmp_path)
    assert same == path and found["accuracy"] == 0.123 and found["notes"] == [*first["notes"], OTHER]
    again, _ = run_experiment(small(), 0, tmp_path, fresh=True)
    assert timeless(again) == timeless(first) == timeless(run_experiment(small(), 0, tmp_path)[0])


def test_a_finished_run_of_unknown_sources_says_so_unless_it_is_of_this_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("FLAMECHE_COMMIT", "abc")
    first, path = run_experiment(small(), 0, tmp_path)
    changed(path / "summary.json", sources=None)
    assert run_experiment(small(), 0, tmp_path)[0]["notes"] == first["notes"]
    monkeypatch.setenv("FLAMECHE_COMMIT", "later")
    note = "the sources by which this run was made were not recorded; --fresh runs it again"
    assert run_experiment(small(), 0, tmp_path)[0]["notes"] == [*first["notes"], note]


def stop(_record):
    raise KeyboardInterrupt


def test_a_run_that_other_sources_began_says_so(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_experiment(small(), 0, tmp_path, on_round=stop)
    (file,) = tmp_path.rglob("environment.json")
    changed(file, sources={"flameche": "0" * 12})
    summary, _ = run_experiment(small(), 0, tmp_path)
    assert "this run was begun by other sources of flameche; --fresh runs it again" in summary["notes"]


def test_a_run_by_an_own_model_that_has_changed_says_so(tmp_path, monkeypatch):
    folder = tmp_path / "library"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    (folder / "nets_of_mine.py").write_text("from tests.nets import normed\n")
    experiment = parse_experiment({**SMALL, "model": {"kind": "nets_of_mine:normed"}})
    first, _ = run_experiment(experiment, 0, tmp_path)
    assert set(first["sources"]) == {"flameche", "nets_of_mine"}
    (folder / "nets_of_mine.py").write_text("from tests.nets import normed  # better\n")
    found, _ = run_experiment(experiment, 0, tmp_path)
    assert found["notes"][-1] == OTHER.replace("flameche;", "nets_of_mine;")


@pytest.mark.parametrize("kind", ["plain", "paillier"])
def test_a_fresh_run_goes_on_from_nothing(kind, tmp_path):
    experiment = small().model_copy(update={"scheme": SchemeOptions(kind=kind, key_bits=2048, min_cluster=1)})
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, 0, tmp_path, on_round=stop)
    played = []
    run_experiment(
        experiment, 0, tmp_path, fresh=True, on_round=lambda record: played.append(record["round"])
    )
    assert played == [1, 2, 3, 4, 5, 6]
    (file,) = tmp_path.rglob("environment.json")
    assert "resumed" not in json.loads(file.read_text())


def test_a_fresh_run_that_is_refused_leaves_the_finished_one_as_it_was(tmp_path):
    data = tmp_path / "own.npz"
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    arrays = {f"{s}_images": images for s in ("train", "val")}
    arrays |= {f"{s}_labels": np.repeat(np.arange(3), 20) for s in ("train", "val")}
    np.savez(data, **arrays)
    experiment = parse_experiment({**SMALL, "data": {"path": str(data), "clients": 8, "per_label": 2}})
    _, path = run_experiment(experiment, 0, tmp_path / "runs")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    data.unlink()
    with pytest.raises(DataError):
        run_experiment(experiment, 0, tmp_path / "runs", fresh=True)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_own_data_of_which_nothing_is_said_keep_their_labels_and_have_no_groups(tmp_path):
    labels = np.repeat(np.arange(10), 6)
    images = np.arange(60, dtype=np.uint8)[:, None, None] * np.ones((60, 8, 8), np.uint8)
    arrays = {f"{s}_images": images for s in ("train", "val")} | {
        f"{s}_labels": labels for s in ("train", "val")
    }
    np.savez(tmp_path / "own.npz", **arrays)
    data = {"path": str(tmp_path / "own.npz"), "clients": 6, "per_label": 1}
    federation, _ = load_federation(parse_experiment({**SMALL, "data": data}), 0)
    for samples in (federation.train, federation.test):
        np.testing.assert_array_equal(samples.y, samples.x[:, 0, 0, 0] // 6)
    assert federation.group.tolist() == [0] * 6 and federation.setting == "none"


def test_a_run_resumed_elsewhere_says_so_and_keeps_where_it_began(tmp_path, monkeypatch):
    from flameche.experiments import run as module

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(small(), 0, tmp_path, on_round=stop)
    real = module.environment
    monkeypatch.setattr(module, "environment", lambda *words: {**real(*words), "torch": "9.9"})
    summary, path = run_experiment(small(), 0, tmp_path)
    kept = json.loads((path / "environment.json").read_text())
    assert kept["torch"] != "9.9" and kept["resumed"][0]["torch"] == "9.9"
    assert any("not bit-identical" in note for note in summary["notes"])
