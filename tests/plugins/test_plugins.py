"""A package outside the tree adds one of everything, and no line of ours knows of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flameche.crypto.plain import Plain
from flameche.crypto.registry import SchemeKind, make_scheme
from flameche.data.partition import Equal, PartitionOptions, Pool, checked, dealt_twice
from flameche.errors import ConfigError, DataError
from flameche.registry import METHODS, PARTITIONS, SCHEMES, Registry

INSTALLED = Path(__file__).parent / "installed"
EXPERIMENT = """\
name = "outside"
rounds = 2
participation = 1.0
callbacks = ["diary"]

[data]
dataset = "stripes"
clients = 6
transforms = ["none", "swap:0,1"]
per_label = 10

[partition]
kind = "halves"
first = 0.4

[training]
epochs = 1
"""


def flameche(*words, cwd, code=0):
    path = os.pathsep.join([str(INSTALLED), *(os.environ.get("PYTHONPATH") or "").split(os.pathsep)])
    done = subprocess.run(
        [sys.executable, "-m", "flameche", *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def sets(*changes):
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("outside")
    (where / "e.toml").write_text(EXPERIMENT)
    return where


def test_a_method_and_a_partition_and_a_dataset_of_others_run_and_a_callback_follows(folder):
    told = flameche("run", "e.toml", *sets("method.kind=alternate", "method.parts=3"), "--json", cwd=folder)
    summary = json.loads(told)
    summary = summary[0] if isinstance(summary, list) else summary
    assert (summary["method"], summary["label"], summary["k"]) == ("alternate", "Alternate", 3)
    assert summary["dataset"] == "stripes" and summary["assignment"] == [0, 1, 2, 0, 1, 2]
    (diary,) = folder.glob("runs/outside/*/0/diary.txt")
    assert diary.read_text().split("\n") == ["outside 0", "round 1", "round 2", "end alternate", ""]
    clients = diary.parent / "config.toml"
    assert 'kind = "halves"' in clients.read_text() and "first = 0.4" in clients.read_text()


def test_metadata_and_a_scheme_of_others_cluster(folder):
    words = ["method.clusters=2", "metadata.kind=quantiles", "metadata.levels=2", "scheme.kind=shifted"]
    summary = json.loads(flameche("cluster", "e.toml", *sets(*words), "--json", cwd=folder))
    summary = summary[0] if isinstance(summary, list) else summary
    assert summary["scheme"] == "shifted" and summary["method"] == "flameche"


def test_they_are_listed_and_in_the_report(folder):
    assert "alternate" in flameche("methods", "--json", cwd=folder)
    assert "every value shifted (acme)" in flameche("schemes", "--json", cwd=folder)
    assert "Stripes that lie or stand (acme)" in flameche("datasets", "--json", cwd=folder)
    flameche("run", "e.toml", *sets("method.kind=alternate", "method.parts=3"), cwd=folder)
    flameche("report", "runs", cwd=folder)
    assert "Alternate" in (folder / "report" / "report.html").read_text()


def test_an_error_names_them(folder):
    for change, said in {
        "method.kind=alternat": "did you mean 'alternate'?",
        "metadata.kind=quantile": "did you mean 'quantiles'?",
        "scheme.kind=shift": "did you mean 'shifted'?",
        "partition.kind=halfs": "did you mean 'halves'?",
        "data.dataset=stripe": "did you mean 'stripes'?",
        "callbacks=['diry']": "did you mean 'diary'?",
        "method.parts=3": "it belongs to kind alternate",
        "method.kind=acme_fl:NOT_A_METHOD": "is not a method",
    }.items():
        assert said in flameche("cluster", "e.toml", *sets(change), cwd=folder, code=2)


def test_a_path_does_as_well_as_a_name(folder):
    words = [*sets("method.kind=acme_fl:Alternate", "method.parts=3"), "--json"]
    summary = json.loads(flameche("run", "e.toml", *words, cwd=folder))
    summary = summary[0] if isinstance(summary, list) else summary
    assert summary["k"] == 3 and summary["label"] == "Alternate"


# The registry


def test_our_own_names_cannot_be_taken():
    with pytest.raises(ConfigError, match="cannot be given to something else"):
        METHODS.register("kfed", object)


def test_what_is_registered_must_be_of_the_right_sort():
    with pytest.raises(ConfigError, match="is not a method"):
        METHODS.register("mine", object())


def test_a_registered_thing_is_found_until_another_takes_its_place():
    numbers = Registry("numbers", "number", {"pi": "math:pi"})
    numbers.register("one", 1)
    assert (numbers["one"], list(numbers), len(numbers), "one" in numbers) == (1, ["pi", "one"], 2, True)
    numbers.register("one", 11)
    assert numbers["one"] == 11


# Partitions


def pool(clients=5, seed=0):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(4), [100, 60, 80, 40]))
    return Pool("toy", labels, 4, np.zeros(clients, np.int64), seed, per_label=8)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 1000.0])
def test_a_dirichlet_partition_deals_every_sample_once(alpha):
    kind = PARTITIONS["dirichlet"]
    dealt = kind(kind.Options(alpha=alpha)).deal(pool())
    assert (np.sort(np.concatenate(dealt)) == np.arange(280)).all()
    again = kind(kind.Options(alpha=alpha)).deal(pool())
    assert all((a == b).all() for a, b in zip(dealt, again, strict=True))


def test_the_smaller_alpha_the_more_uneven_are_classes():
    kind, uneven = PARTITIONS["dirichlet"], []
    for alpha in (0.05, 1.0, 1e4):
        dealt = kind(kind.Options(alpha=alpha)).deal(pool())
        share = np.array([np.bincount(pool().labels[own], minlength=4) for own in dealt])
        uneven.append((share / share.sum(axis=0)).std())
    assert uneven[0] > uneven[1] > 10 * uneven[2]


def test_the_equal_partition_deals_as_many_of_each_class_to_every_client():
    dealt = Equal(PartitionOptions()).deal(pool())
    assert (np.array([np.bincount(pool().labels[own]) for own in dealt]) == 8).all()


@pytest.mark.parametrize(
    ("dealt", "said"),
    [
        ([[0], [1]], "dealt to 2 clients, there are 5"),
        ([[0], [1], [2], [3], [280]], "dealt samples 0…280, there are 0…279"),
        ([[0], [1], [2], [3], [3]], "dealt 1 samples twice"),
        ([[0.5], [1], [2], [3], [4]], "expected a list of samples' indices"),
    ],
)
def test_a_partition_that_deals_wrongly_is_refused(dealt, said):
    with pytest.raises(DataError, match=said):
        checked([np.array(own) for own in dealt], pool(), "mine")


def test_a_partition_that_draws_anew_each_time_is_refused():
    class Restless(Equal):
        def deal(self, pool):
            return np.array_split(np.random.default_rng().permutation(len(pool.labels)), pool.clients)

    with pytest.raises(DataError, match="deals differently each time"):
        dealt_twice(Restless(PartitionOptions()), pool())


def test_a_partition_cannot_change_the_datasets_labels():
    class Vandal(Equal):
        def deal(self, pool):
            pool.labels[:] = 0
            return super().deal(pool)

    with pytest.raises(ValueError, match="read-only"):
        dealt_twice(Vandal(PartitionOptions()), pool())


def test_what_a_package_declares_and_cannot_be_imported_hurts_nobody_else(tmp_path, monkeypatch):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n"
    )
    lines = "[flameche.numbers]\nbad = broken_one:Thing\n"
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(lines)
    (tmp_path / "broken_one.py").write_text("raise RuntimeError('out of order')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = Registry("numbers", "number", {"pi": "math:pi"})
    assert list(numbers) == ["pi", "bad"] and set(numbers.loaded()) == {"pi"}
    with pytest.raises(
        ConfigError, match=r"number = 'bad' \(broken_one:Thing\) cannot be imported: out of order"
    ):
        numbers["bad"]


def test_the_code_of_others_is_told_and_ours_is_not():
    assert METHODS.code("kfed") == "" and METHODS.code("a.b:C") == "a.b:C"


def test_a_foreign_scheme_is_never_taken_for_the_one_in_the_clear(monkeypatch):
    class Unnamed(SchemeKind):
        def generate(self, *, clients, bound):
            return type("Mine", (Plain,), {})()

    kind = Unnamed("unnamed", "", "", "clients", "none", True)
    monkeypatch.setitem(SCHEMES._added, "unnamed", kind)
    monkeypatch.setitem(SCHEMES._found, "unnamed", kind)
    with pytest.raises(ConfigError, match="need a `name` of their own"):
        make_scheme("unnamed", clients=3)
