"""A client that comes after training: its cluster by one E-step, its model at once."""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import flameche
from flameche import cli
from flameche.data import load_dataset, parse_transform
from flameche.data.formats import read_client
from flameche.data.heterogeneity import default_transforms
from flameche.errors import DataError, StoreError
from flameche.experiments.assign_client import assign_new_client
from flameche.experiments.config import load_experiment, parse_experiment
from flameche.experiments.newcomers import (
    Finished,
    advice,
    assign_client,
    combined,
    keepsake,
    parted,
    sureness,
)
from flameche.experiments.run import run_experiment
from flameche.metadata.extractors import ClientSamples, Metadata, mean_images
from flameche.models import build_model
from flameche.training.export import save_model
from flameche.training.loop import LoopTrainer
from flameche.training.trainer import TrainingPlan
from tests.cli.conftest import refused
from tests.conftest import tiny_federation
from tests.nets import branching
from tests.test_readme import ROOT

GROUPS = default_transforms("csf", "digits", 10, 4)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The demo's federation, in both modes, and FedAvg, which keeps no centroids."""
    out, made = tmp_path_factory.mktemp("newcomers"), {}
    for name, changes in {
        "sketch": [],
        "paper": ["method.mode=paper", "scheme.kind=plain"],
        "guarded": ["method.mode=paper", "scheme.min_cluster=6", "scheme.kind=plain"],
        "pca": ["metadata.kind=mean-pca-shared", "scheme.kind=plain", "metadata.components=20"],
        "counts": ["metadata.kind=label-counts", "scheme.kind=plain"],
        "fedavg": ["method.kind=fedavg", "scheme.kind=plain"],
    }.items():
        words = [] if name in ("sketch", "paper") else ["rounds=3", "training.epochs=1"]
        experiment = load_experiment(ROOT / "experiments" / "digits.toml", [*changes, *words, f"name={name}"])
        summary, made[name] = run_experiment(experiment, 0, out)
        assert summary["ari_final"] in (1.0, None) or name in ("guarded", "counts")
    return made


def newcomers(seed, samples=60):
    """A client of each group, from images that no client of the run has: the test pool's."""
    digits, rng = load_dataset("digits"), np.random.default_rng(seed)
    for group, text in enumerate(GROUPS):
        view = parse_transform(text, classes=10, shape=(1, 8, 8))
        mine = rng.permutation(len(digits.test_y))[:samples]
        yield group, view.images(digits.test_x[mine]), view.labels(digits.test_y[mine])


def truth(path):
    """The cluster in which most clients of each group are."""
    clusters = np.array(json.loads((path / "summary.json").read_text())["assignment_final"])
    return [int(np.bincount(clusters[5 * g : 5 * g + 5]).argmax()) for g in range(4)]


# Newcomers are right


@pytest.mark.parametrize("mode", ["sketch", "paper"])
def test_clients_of_every_group_that_come_later_are_assigned_right_and_served_well(runs, mode):
    run, right = runs[mode], truth(runs[mode])
    for seed in range(5):
        for group, x, y in newcomers(seed):
            found = assign_new_client(run, (x, y))
            assert found["cluster"] == right[group] and found["margin"] > 0
            assert found["sure"] > 0.99 and not found["far"]
            assert all(note.startswith("no samples of class") for note in found["notes"])
            assert found["clients"] == 5 and found["samples"] == 60
            own = found["accuracy"][found["cluster"]]
            assert own > 0.7 and own > 0.3 + max(
                a for k, a in enumerate(found["accuracy"]) if k != found["cluster"]
            )


@pytest.mark.parametrize("mode", ["sketch", "paper"])
def test_one_that_belongs_nowhere_is_told_so(runs, mode):
    view = parse_transform("invert", classes=10, shape=(1, 8, 8))
    for _, x, y in newcomers(0):
        found = assign_new_client(runs[mode], (view.images(x), y))
        assert found["far"] and any("it may belong to none" in note for note in found["notes"])


def test_a_newcomer_whose_metadata_are_not_finite_is_refused(runs):
    run = Finished.read(runs["sketch"])
    experiment = run.experiment
    broken = experiment.model_copy(
        update={"model": experiment.model.model_copy(update={"kind": "tests.nets:Rooted"})}
    )
    _, x, y = next(newcomers(0))
    with pytest.raises(DataError, match=r"the client's metadata hold NaN or infinity.*model\.kind"):
        assign_client(replace(run, experiment=broken), x, y)


def test_a_client_of_the_run_is_assigned_as_in_the_run(runs):
    experiment = load_experiment(runs["sketch"] / "config.toml")
    from flameche.experiments.build import load_federation

    federation, _ = load_federation(experiment, 0)
    clusters = json.loads((runs["sketch"] / "summary.json").read_text())["assignment_final"]
    for i in range(20):
        assert assign_new_client(runs["sketch"], federation.train.of(i))["cluster"] == clusters[i]


def test_missing_classes_are_fine_and_told(runs):
    right = truth(runs["sketch"])
    for group, x, y in newcomers(1, samples=200):
        some = y < 3
        found = assign_new_client(runs["sketch"], (x[some], y[some]))
        assert found["cluster"] == right[group] and found["missing_classes"] == [3, 4, 5, 6, 7, 8, 9]
        assert any("no samples of class 3, 4, 5, 6, 7, 8, 9" in note for note in found["notes"])


def test_a_single_image_is_assigned_with_doubt(runs):
    _, x, y = next(newcomers(0))
    found = assign_new_client(runs["sketch"], (x[:1], y[:1]))
    assert found["sure"] is None and found["cluster"] in range(4)


def test_a_shared_basis_travels_with_the_run(runs):
    right = truth(runs["pca"])
    with np.load(runs["pca"] / "clusters.npz") as kept:
        assert kept["axes"].shape == (20, 64)
    hits = [assign_new_client(runs["pca"], (x, y))["cluster"] == right[group] for group, x, y in newcomers(0)]
    assert all(hits)


def test_metadata_that_are_no_means_say_nothing_of_how_sure_they_are(runs):
    _, x, y = next(newcomers(0))
    assert assign_new_client(runs["counts"], (x, y))["sure"] is None


def test_clusters_below_the_guards_least_say_neither_size_nor_spread(runs):
    _, x, y = next(newcomers(0))
    found = assign_new_client(runs["guarded"], (x, y))
    run = Finished.read(runs["guarded"])
    small = np.flatnonzero(run.spread[:, 0] == 0)
    assert len(small) and np.isnan(run.spread[small, 1:]).all()
    k = found["cluster"]
    if k in small:
        assert found["clients"] is None and not found["far"]
        assert any("too few clients to tell" in note for note in found["notes"])


# How far, how sure


def test_parts_put_together_are_the_whole_and_parts_left_out_are_the_rest():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (37, 1, 2, 2)).astype(np.uint8), rng.integers(0, 3, 37)
    order, offsets = parted(y)
    assert sorted(order.tolist()) == list(range(37)) and np.ptp(np.diff(offsets)) <= 1
    parts = mean_images(ClientSamples(x[order], y[order], offsets, 3))
    whole = mean_images(ClientSamples(x, y, np.array([0, 37]), 3))
    together = combined(parts, np.ones((1, len(parts))))
    assert np.allclose(together.phi, whole.phi) and np.array_equal(together.counts, whole.counts)
    rest = combined(parts, 1 - np.eye(len(parts)))
    keep = order[offsets[1] :]
    without = mean_images(ClientSamples(x[keep], y[keep], np.array([0, len(keep)]), 3))
    assert np.allclose(rest.phi[0], without.phi[0]) and np.array_equal(rest.counts[0], without.counts[0])


def test_few_samples_make_fewer_parts_and_none_is_empty():
    assert [len(parted(np.zeros(n, int))[1]) - 1 for n in (1, 2, 9, 10, 11)] == [1, 2, 9, 10, 10]


def test_how_sure_is_the_jackknifes_normal_probability():
    margins = np.array([0.9, 1.0, 1.1])
    left_out = np.stack([np.zeros(3), margins], axis=1)
    error = np.sqrt(2 / 3 * 0.02)
    from scipy.stats import norm

    assert sureness(left_out, 0, 1, np.array([0.0, 0.1])) == pytest.approx(norm.cdf(0.1 / error))
    assert sureness(left_out[:1], 0, 1, np.array([0.0, 0.1])) is None
    assert sureness(np.array([[0, 1.0], [0, 1.0]]), 0, 1, np.array([0.0, 1.0])) == 1.0


def test_doubt_is_put_into_words():
    base = {"cluster": 1, "next": 0, "distance": 0.3, "far": False, "sure": 0.7, "reaches": [1.0, 0.2]}
    assert advice(base) == ["not sure (70%): cluster 0 is nearly as near; more samples would tell"]
    assert (
        "0.3000 from cluster 1, whose clients reach 0.2000" in advice({**base, "far": True, "sure": 1.0})[0]
    )
    assert advice({**base, "sure": None}) == []


def test_a_client_without_a_class_in_common_with_any_cluster_is_refused(runs):
    run = Finished.read(runs["sketch"])
    run.centroids.mass[:, 0] = 0
    x = np.zeros((4, 1, 8, 8), np.uint8) + 9
    with pytest.raises(DataError, match="has a class in common with the client's data"):
        assign_client(run, x, np.zeros(4, np.int64))
    run.centroids.mass[1:, 1] = 0  # class 1 is cluster 0's alone, whichever rows it has
    found = assign_client(run, x, np.ones(4, np.int64))
    assert found["next"] is None and found["margin"] is None and found["sure"] is None


# What is kept


def test_what_is_kept_is_compact_written_like_the_rest_and_before_the_summary(runs):
    run = runs["sketch"]
    with np.load(run / "clusters.npz") as kept, np.load(run / "models.npz") as models:
        assert kept["theta"].dtype == models["params"].dtype == np.float32
        assert kept["theta"].shape == (4, 10, 32) and models["params"].shape == (4, 9258)
        assert kept["spread"].shape == (4, 3) and kept["shape"].tolist() == [1, 8, 8]
    modes = {
        stat.S_IMODE((run / name).stat().st_mode) for name in ("clusters.npz", "models.npz", "summary.json")
    }
    assert len(modes) == 1
    order = [(run / name).stat().st_mtime_ns for name in ("clusters.npz", "models.npz", "summary.json")]
    assert order == sorted(order)
    assert not (runs["fedavg"] / "clusters.npz").exists() and not (runs["fedavg"] / "models.npz").exists()


def test_a_run_played_afresh_forgets_what_was_kept(tmp_path):
    experiment = load_experiment(ROOT / "experiments" / "digits.toml", ["rounds=1", "training.epochs=1"])
    _, path = run_experiment(experiment, 0, tmp_path)
    from flameche.experiments.run_folder import RunFolder

    with RunFolder(path) as folder:
        folder.clear()
    assert not (path / "clusters.npz").exists() and not (path / "models.npz").exists()


def test_who_left_is_no_part_of_what_is_kept(tmp_path):
    from flameche.experiments.build import build
    from flameche.simulation.engine import simulate

    experiment = parse_experiment(
        {"name": "x", "rounds": 6, "participation": 1.0,
         "events": [{"round": 5, "kind": "leave", "clients": [0, 7]}],
         "data": {"clients": 20, "per_label": 6, "heterogeneity": "csf", "label_skew": False}}
    )  # fmt: skip
    setup = build(experiment, 0, device="cpu", training=False)
    result = simulate(setup.method, setup.world, 20, timeline=setup.timeline)
    assert keepsake(experiment, 0, setup, result)["spread"][:, 0].sum() == 18


# Files


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("form", ["n h w", "n c h w", "n h w c", "floats"])
def test_images_may_have_their_channels_first_last_or_none(tmp_path, form):
    x, y = np.random.default_rng(0).integers(0, 256, (5, 1, 4, 6)).astype(np.uint8), np.arange(5)
    given = {"n h w": x[:, 0], "n c h w": x, "n h w c": x.transpose(0, 2, 3, 1), "floats": x[:, 0] / 255}[
        form
    ]
    found, labels = read_client(npz(tmp_path / "a.npz", x=given, y=y[:, None]), (1, 4, 6), 5)
    assert np.array_equal(found, x) and np.array_equal(labels, y)


def test_colour_images_of_three_pixels_are_read_as_the_run_has_them(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8)).astype(np.uint8), np.arange(5)
    for given in (x, x.transpose(0, 2, 3, 1)):
        assert np.array_equal(read_client(npz(tmp_path / "a.npz", x=given, y=y), (3, 8, 8), 5)[0], x)


GOOD = {"x": np.zeros((3, 8, 8), np.uint8), "y": np.array([0, 1, 2])}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": GOOD["x"]}, "missing y, holds x"),
        ({"images": GOOD["x"], "labels": GOOD["y"]}, "missing x and y, holds images, labels"),
        ({**GOOD, "x": np.zeros((3, 9, 8), np.uint8)}, r"images are \[1, 9, 8\], the run's are \[1, 8, 8\]"),
        ({**GOOD, "x": np.zeros((3, 3, 8, 8), np.uint8)}, "x has shape"),
        (
            {**GOOD, "x": np.zeros((3, 1, 28, 28), np.uint8)},
            r"images are \[1, 28, 28\], the run's are \[1, 8, 8\]",
        ),
        (
            {**GOOD, "x": np.zeros((3, 8, 8, 3), np.uint8)},
            r"images are \[3, 8, 8\], the run's are \[1, 8, 8\]",
        ),
        ({**GOOD, "x": np.zeros((3, 64), np.uint8)}, "x has shape"),
        ({**GOOD, "x": np.zeros((3, 8, 8), np.int32)}, "x is int32, expected uint8 or floats"),
        ({**GOOD, "x": np.full((3, 8, 8), 4095, np.uint16)}, "x is uint16.*from 4095 to 4095: rescale"),
        ({**GOOD, "x": np.full((3, 8, 8), -0.5)}, r"ranges over \[-0.5, -0.5\].*rescale"),
        ({**GOOD, "x": np.full((3, 8, 8), np.nan)}, "x has 192 NaN values"),
        ({**GOOD, "client": np.zeros(3, int)}, "holds client, which nothing reads"),
        ({**GOOD, "x": np.zeros((2, 8, 8), np.uint8)}, "x has 2 images, but y 3 labels"),
        ({**GOOD, "y": np.array([0, 1, 10])}, "y holds 10, the run's classes are 0 to 9"),
        ({**GOOD, "y": np.array([0.0, 1.0, 2.0])}, "y is float64, expected integers"),
        ({**GOOD, "y": np.array([0.0, 1.5, 2.0])}, "numbers the classes"),
        ({**GOOD, "y": np.array([-1, 0, 1])}, "y holds -1, expected classes"),
        ({"x": GOOD["x"][:0], "y": GOOD["y"][:0]}, "y is empty"),
        ({**GOOD, "y": np.array(["a", "b", "c"])}, "expected integers"),
        ({**GOOD, "y": np.array([{}, {}, {}])}, "damaged"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, arrays, said):
    with pytest.raises(DataError, match=said) as problem:
        read_client(npz(tmp_path / "a.npz", **arrays), (1, 8, 8), 10)
    assert "\n" not in str(problem.value)


def test_files_that_are_none(tmp_path):
    (tmp_path / "text.npz").write_text("no zip")
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "empty.npz").touch()
    for name in ("text.npz", "one.npy", "empty.npz", "nowhere.npz", "."):
        with pytest.raises(DataError) as problem:
            read_client(tmp_path / name, (1, 8, 8), 10)
        assert "\n" not in str(problem.value)


# The command


def copied(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    return folder


@pytest.fixture
def site(tmp_path):
    _, x, y = next(newcomers(0))
    return npz(tmp_path / "site.npz", x=x[:, 0], y=y)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line in a folder of its own; return exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["flameche", *map(str, words)])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def test_the_command_prints_cluster_margin_sizes_and_accuracy_and_writes_the_model(
    call, runs, site, tmp_path
):
    code, out, err = call("assign", runs["sketch"], "--data", site, "--model", "model.pt")
    assert code == 0 and "site: cluster" in out and "margin" in out and "sure 100.0%" in out
    assert "acc %" in out and "clients" in out and "Model: model.pt" in err
    model = build_model("auto", (1, 8, 8), 10, 0)
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True)["state_dict"])
    with np.load(site) as held:
        x, y = torch.from_numpy(held["x"])[:, None], torch.from_numpy(held["y"])
    with torch.no_grad():
        right = (model.eval()(x.float() / 127.5 - 1).argmax(1) == y).float().mean()
    _, out, _ = call("assign", runs["sketch"], "--data", site, "--client", "Lyon", "--json")
    found = json.loads(out)
    assert found["client"] == "Lyon" and found["accuracy"][found["cluster"]] == pytest.approx(float(right))
    assert set(found) >= {"distance", "next_distance", "margin", "clients", "sure", "far"}


def test_readme_shows_what_happens(call, runs, tmp_path):
    from tests.test_readme import README

    section = README.split("## Living federations")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    example = (ROOT / "examples" / "newcomer.py").read_text()
    assert all(line in example for line in code.splitlines())
    exec(code, {})  # in tmp_path, where `call` stands
    _, out, _ = call("assign", runs["sketch"], "--data", "site.npz", "--model", "site.pt2")
    shown = section.split("--model site.pt2\n\n")[1].split("```")[0].splitlines()
    ours = out.splitlines()
    assert ours[0].strip() == shown[0]
    for line, wanted in zip(ours[1:], shown[1:], strict=True):
        assert (
            line.split()[:-1] == wanted.split()[:-1]
        )  # training differs in the last digits between machines


OUTSIDE = """
import sys
sys.modules["flameche"] = None  # not there
import numpy as np
import torch
from tests.nets import normed as make

held = np.load("site.npz")
images, labels = torch.from_numpy(held["x"]), torch.from_numpy(held["y"])
{snippet}
assert torch.equal(network(images[:1]).argmax(1), logits[:1].argmax(1))
print((logits.argmax(1) == labels).double().mean().item())
"""


@pytest.fixture(scope="module")
def own_model(tmp_path_factory):
    """A run with a model of the user's own, with BatchNorm."""
    words = ["scheme.kind=plain", "rounds=3", "model.kind=tests.nets:normed", "name=own"]
    experiment = load_experiment(ROOT / "experiments" / "digits.toml", words)
    return run_experiment(experiment, 0, tmp_path_factory.mktemp("own"))[1]


@pytest.mark.parametrize(("whose", "form"), [("sketch", "site.pt2"), ("own", "site.pt2"), ("own", "site.pt")])
def test_the_readmes_lines_score_the_same_without_flameche(runs, own_model, tmp_path, whose, form):
    from tests.test_readme import README

    section = README.split("## Living federations")[1].split("\n## ")[0]
    shown = [part.split("```")[0] for part in section.split("```python\n")[1:]]
    (snippet,) = [code for code in shown if f'"{form}"' in code and "network(" in code]
    _, x, y = next(newcomers(3, samples=150))
    np.savez(tmp_path / "site.npz", x=x, y=y)
    run = own_model if whose == "own" else runs[whose]
    found = assign_new_client(run, (x, y), model=tmp_path / form)
    if form == "site.pt":
        snippet += "\nimages = images.float() / scale['divide_by'] - scale['subtract']"
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE.format(snippet=snippet)], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(found["accuracy"][found["cluster"]], abs=1e-12)


def test_a_file_of_weights_says_how_to_use_them(runs, tmp_path):
    _, x, y = next(newcomers(0))
    assign_new_client(runs["sketch"], (x, y), model=tmp_path / "site.pt")
    saved = torch.load(tmp_path / "site.pt", weights_only=True)
    assert {**saved, "state_dict": None} == {
        "state_dict": None, "preprocessing": {"layout": "n c h w", "divide_by": 127.5, "subtract": 1.0},
        "shape": [1, 8, 8], "classes": 10, "model": "small-cnn",
    }  # fmt: skip


def test_a_network_that_torch_cannot_export_still_gives_its_weights(tmp_path):
    federation = tiny_federation()
    trainer = LoopTrainer(branching(federation.shape, 3), federation, TrainingPlan(), 0)
    with pytest.raises(
        StoreError, match=r'does not take model.kind = "x".*m\.pt would hold its weights'
    ) as why:
        save_model(trainer, trainer.initial(), 0, tmp_path / "m.pt2", "x")
    assert "\n" not in str(why.value) and not list(tmp_path.iterdir())
    save_model(trainer, trainer.initial(), 0, tmp_path / "m.pt", "x")
    assert torch.load(tmp_path / "m.pt", weights_only=True)["model"] == "x"


def test_the_library_does_the_same(runs, site, tmp_path):
    found = flameche.assign(runs["sketch"], site, model=tmp_path / "m.pt", device="cpu")
    with np.load(site) as held:
        again = flameche.assign(str(runs["sketch"]), (held["x"], held["y"]), device="cpu")
    assert found["cluster"] == again["cluster"] and found["accuracy"] == again["accuracy"]
    assert (tmp_path / "m.pt").exists() and again["model"] is None


def test_what_cannot_be_done_is_one_line_and_exit_code_two(call, runs, site, tmp_path):
    refused(call("assign", runs["fedavg"], "--data", site), 'method.kind = "fedavg" keeps no centroids')
    refused(
        call("assign", runs["sketch"].parent, "--data", site), "is not a run; expected a folder such as runs/"
    )
    refused(call("assign", "nowhere", "--data", site), "nowhere is not a run")
    refused(call("assign", runs["sketch"], "--data", "none.npz"), "none.npz: no such file")
    refused(call("assign", runs["sketch"], "--data", site, "--model", "no/such/m.pt"), "cannot be written")
    run = copied(runs["sketch"], tmp_path)
    (run / "models.npz").unlink()
    refused(
        call("assign", run, "--data", site, "--model", "m.pt"), "no models.npz, so there is no model to write"
    )
    code, out, err = call("assign", run, "--data", site)
    assert code == 0 and "site: cluster" in out and "the run's models were not kept" in err
    (run / "clusters.npz").write_bytes(b"PK\3\4 cut short")
    refused(call("assign", run, "--data", site), "clusters.npz is damaged")
    (run / "clusters.npz").unlink()
    refused(
        call("assign", run, "--data", site), "no clusters.npz, which runs of earlier versions did not keep"
    )
    (run / "summary.json").unlink()
    refused(call("assign", run, "--data", site), "the run is not finished")


@pytest.fixture(scope="session")
def diverged(runs, tmp_path_factory):
    """A run of which all models but the first are no numbers any more."""
    run = tmp_path_factory.mktemp("diverged") / "run"
    shutil.copytree(runs["sketch"], run)
    with np.load(run / "models.npz") as models:
        kept = dict(models)
    kept["params"][1:, 0] = np.nan
    np.savez(run / "models.npz", **kept)
    return run


def test_models_that_diverged_are_told_and_have_no_accuracy(diverged):
    for _, x, y in newcomers(0):
        found = assign_new_client(diverged, (x, y))
        assert found["accuracy"][0] is not None and found["accuracy"][1:] == [None] * 3
        assert any(note.startswith("training diverged") for note in found["notes"])


@pytest.mark.parametrize("name", ["site.onnx", "site", "site.pt2.zip"])
def test_a_model_is_written_in_no_form_but_those_that_there_are(runs, tmp_path, call, name):
    _, x, y = next(newcomers(0))
    site = npz(tmp_path / "own.npz", x=x, y=y)
    answer = call("assign", runs["sketch"], "--data", site, "--model", tmp_path / name)
    refused(answer, f"{name}: a model is written as FILE.pt2", "or FILE.pt")
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("file", ["site.pt", "site.pt2"])
def test_a_model_that_diverged_is_not_written(diverged, tmp_path, call, file):
    where = truth(diverged)
    group, x, y = next(each for each in newcomers(0) if where[each[0]] != 0)
    site, model = npz(tmp_path / "own.npz", x=x, y=y), tmp_path / file
    answer = call("assign", diverged, "--data", site, "--model", model)
    refused(answer, f"training diverged, so that the model of cluster {where[group]} has NaN")
    assert not model.exists()
    group, x, y = next(each for each in newcomers(0) if where[each[0]] == 0)  # whose model is sound
    assert assign_new_client(diverged, (x, y), model=model)["model"] == str(model)


def test_models_of_another_network_are_refused(runs, tmp_path):
    run = copied(runs["sketch"], tmp_path)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('kind = "auto"', 'kind = "resnet18"'))
    with np.load(run / "clusters.npz") as file:
        kept = dict(file)
    np.savez(run / "clusters.npz", **{**kept, "theta": np.ones((4, 10, 512), np.float32)})
    _, x, y = next(newcomers(0))
    with pytest.raises(StoreError, match=r"models\.npz does not fit model\.kind"):
        assign_new_client(run, (x, y))


def test_a_mean_over_no_samples_is_none():
    parts = Metadata(np.ones((2, 2, 3)), np.array([[1, 0], [3, 0]]))
    assert combined(parts, np.ones((1, 2))).phi[0].tolist() == [[1, 1, 1], [0, 0, 0]]
