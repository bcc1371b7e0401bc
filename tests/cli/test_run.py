"""`flameche run`, `cluster`, `select-k` and `report`: what they print, store and refuse."""

import json

import numpy as np
import pytest

from flameche.methods.sketch import FEWEST
from tests.cli.conftest import refused


def test_run_prints_one_json_document_and_nothing_else(call, experiment):
    code, out, _ = call("run", experiment, "--device", "cpu", "--json", "--out", "r")
    summary = json.loads(out)
    assert code == 0 and summary["method"] == "flameche" and summary["rounds"] == 3


def test_several_seeds_are_a_list_and_one_can_be_picked(call, experiment):
    _, out, _ = call("cluster", experiment, "--set", "seeds=[0,1]", "--json")
    assert [s["seed"] for s in json.loads(out)] == [0, 1]
    _, out, _ = call("cluster", experiment, "--set", "seeds=[0,1]", "--seed", 7, "--json")
    assert json.loads(out)["seed"] == 7


def test_run_then_report(call, experiment, tmp_path):
    for kind in ("flameche", "fedavg", "oracle"):
        code, out, _ = call("run", experiment, "--set", f"method.kind={kind}", "--device", "cpu")
        assert code == 0 and kind in out.lower()
    code, out, _ = call("report", "runs", "--out", "page")
    page = (tmp_path / "page" / "report.html").read_text()
    assert code == 0 and out.strip() == "page/report.html"
    assert all(name in page for name in ("FLAMECHE", "FedAvg", "Oracle"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.epoch=3", "training.epochs"),
        ("method.clusters=8", "must be below data.clients"),
        ("participation=0", "participation"),
        ("participation=1.5", "participation"),
        ("data.per_label=60", "data.per_label"),
        ("model.kind=lenet5", "at least 12 pixels"),
        ("model.kind=resnet", "resnet18"),
        ("data.path=nowhere.npz", "nowhere.npz"),
        ("method.kind=ifac", "method.kind"),
        ("rounds", "rounds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, experiment, override, said):
    refused(call("run", experiment, "--set", override), said)


def test_bad_files_are_one_line_and_exit_code_2(call, experiment, tmp_path):
    refused(call("run", "nowhere.toml"), "nowhere.toml", "no such file")
    (tmp_path / "broken.toml").write_text("rounds = ")
    refused(call("run", "broken.toml"), "broken.toml", "line 1")
    refused(call("report", "nowhere"), "nowhere")
    (tmp_path / "file").write_text("")
    refused(call("run", experiment, "--out", "file"), "cannot be written")
    refused(call("run", experiment, "--device", "tpu"), "expected auto, cpu or cuda")


def test_bad_data_are_one_line_and_exit_code_2(call, experiment, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.random((60, 8, 8)).astype(np.float32)
    labels = np.repeat(np.arange(3), 20)
    good = {
        f"{s}_{k}": v for s in ("train", "val", "test") for k, v in (("images", images), ("labels", labels))
    }
    words = ("--set", "data.path=own.npz", "--set", "data.per_label=2", "--set", "data.clients=8")
    np.savez(tmp_path / "own.npz", **good)
    assert call("cluster", experiment, *words)[0] == 0
    spoilt = images.copy()
    spoilt[3, 4, 4] = np.nan
    np.savez(tmp_path / "own.npz", **{**good, "train_images": spoilt})
    refused(call("cluster", experiment, *words), "NaN")
    np.savez(tmp_path / "own.npz", **{**good, "train_labels": labels - 1})
    refused(call("cluster", experiment, *words), "labels")
    (tmp_path / "own.npz").write_bytes((tmp_path / "own.npz").read_bytes()[:300])
    refused(call("cluster", experiment, *words), "own.npz")


def test_a_failed_command_leaves_stored_runs_as_they_were(call, experiment, tmp_path):
    call("run", experiment, "--device", "cpu")
    before = {f: f.read_bytes() for f in (tmp_path / "runs").rglob("*") if f.is_file()}
    refused(call("run", experiment, "--set", "data.per_label=60"))
    refused(call("run", experiment, "--set", "nonsense=1"))
    after = {f: f.read_bytes() for f in (tmp_path / "runs").rglob("*") if f.is_file()}
    assert {f: data for f, data in after.items() if f in before} == before


def test_a_refused_run_leaves_no_empty_folder(call, experiment, tmp_path):
    refused(call("run", experiment, "--set", "data.per_label=60"))
    assert not list((tmp_path / "runs").rglob("*")) or not any(
        path.is_dir() and not any(path.iterdir()) for path in (tmp_path / "runs" / "small").rglob("*")
    )


def test_a_run_that_was_finished_earlier_says_so(call, experiment):
    call("run", experiment, "--device", "cpu")
    code, out, err = call("run", experiment, "--device", "cpu")
    assert code == 0 and "finished earlier" in err and "FLAMECHE" in out


def test_a_run_made_by_other_sources_is_noted_and_run_again_with_fresh(call, experiment, tmp_path):
    first = json.loads(call("run", experiment, "--device", "cpu", "--json")[1])
    (file,) = (tmp_path / "runs").rglob("summary.json")
    file.write_text(json.dumps({**first, "sources": {"flameche": "other"}, "accuracy": 0.4321}))
    said = "this run was made by other sources of flameche; --fresh runs it again"
    for form in ((), ("--json",)):
        code, out, err = call("run", experiment, "--device", "cpu", *form)
        assert code == 0 and ("43.21" in out or "0.4321" in out) and err.count(said) == 1
    code, out, err = call("run", experiment, "--device", "cpu", "--json", "--fresh")
    assert code == 0 and said not in err and json.loads(out)["accuracy"] == first["accuracy"]
    assert call("cluster", experiment, "--fresh")[0] == 0
    assert call("select-k", experiment, "--set", "data.clients=12", "--k", "1..3", "--fresh")[0] == 0


@pytest.mark.parametrize("fresh", [False, True])
def test_ctrl_c_says_how_to_continue(call, experiment, monkeypatch, fresh):
    def stopped(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("flameche.experiments.run.run_experiment", stopped)
    code, out, err = call("run", experiment, *(["--fresh"] if fresh else []))
    assert code == 130 and out == "" and ("continues from the last checkpoint" in err) == (not fresh)
    # With --fresh, seeds that it had not come to are still what they were.
    said = (
        "without --fresh continues what was begun; stored runs that were not begun anew are shown as they are"
    )
    assert (said in err) == fresh


def test_metadata_that_are_not_finite_are_refused_before_they_are_clustered(call, experiment):
    words = ("--set", "model.kind=tests.nets:Rooted", "--device", "cpu")
    said = "metadata of clients 0, 1, 2, 3, 4 and 3 more hold NaN or infinity", "model.kind"
    for command, *more in (("cluster",), ("run",), ("select-k", "--set", "data.clients=12")):
        code, out, err = call(command, experiment, *words, *more)
        assert code == 2 and out == "" and err.count("\n") == 1
        assert said[0].replace("3 more", "7 more" if more else "3 more") in err and said[1] in err


def test_a_run_that_diverged_says_so_in_its_table_and_its_report(call, experiment, tmp_path):
    how = ("--device", "cpu", "--set", "training.optimiser=sgd", "--set", "training.lr=1e30")
    code, out, err = call("run", experiment, *how)
    assert code == 1 and out.splitlines()[-1].split()[-4] == "diverged"
    assert "training diverged" in err and "lower training.lr" in err and "Runs: runs/small/" in err
    code, out, _ = call("run", experiment, *how, "--json")  # it is stored, and diverged all the same
    summary = json.loads(out)
    assert code == 1 and summary["diverged"] and summary["accuracy"] is None
    assert call("report", "runs", "--out", "page")[0] == 0
    page = (tmp_path / "page" / "report.html").read_text()
    assert "<td class=num>diverged</td>" in page and "lower training.lr and run it again" in page
    shown = 100 * summary["accuracy_per_round"][-1]
    assert f"{shown:.2f}" not in (tmp_path / "page" / "tables" / "summary.md").read_text()


def test_without_true_groups_no_table_shows_an_ari(call, experiment):
    words = ("--set", "data.heterogeneity=none", "--device", "cpu")
    assert "ARI" in call("cluster", experiment, "--device", "cpu")[1]
    for command in ("cluster", "run"):
        code, out, _ = call(command, experiment, *words)
        assert code == 0 and "DBI" in out and "ARI" not in out and "final" not in out
    code, out, _ = call("select-k", experiment, *words, "--set", "data.clients=12", "--k", "1..3")
    assert code == 0 and {line.split()[-1] for line in out.splitlines()[2:5]} == {"–"}


def test_clustering_needs_a_method_that_clusters(call, experiment):
    refused(call("cluster", experiment, "--set", "method.kind=fedavg"), "nothing to do without training")


def test_select_k_states_its_least_number_of_clients_in_its_help_and_when_it_refuses(call, experiment):
    said = " ".join(call("select-k", "--help")[1].split())
    assert f"takes {FEWEST} clients at least" in said
    few = ("--set", "data.clients=5", "--set", "data.groups=2", "--set", "method.clusters=2")
    guarded = call("select-k", experiment, "--device", "cpu", *few, "--set", "scheme.min_cluster=3")
    refused(guarded, "5 clients are too few for scheme.min_cluster = 3, which takes 6")


def test_k_is_not_chosen_in_the_clear_under_a_scheme_that_would_seal_nothing(call, experiment):
    other = ("--device", "cpu", "--set", "method.kind=ifca", "--set", "method.clusters=2")
    sealed = call("select-k", experiment, *other, "--set", "scheme.kind=bfv")
    refused(sealed, 'scheme.kind = "bfv": method.kind = "ifca" has no metadata to seal', "in the clear")
    assert call("select-k", experiment, *other, "--set", "scheme.kind=plain")[0] == 0


def test_a_folder_with_brackets_in_its_name_is_printed_whole(call, experiment):
    for _ in range(2):
        code, _, err = call("run", experiment, "--device", "cpu", "--out", "runs [old]")
        assert code == 0 and "Runs: runs [old]/small/" in err
    assert "read from runs [old]/small/" in err
