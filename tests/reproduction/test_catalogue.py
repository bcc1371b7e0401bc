"""The registry of the paper's tables and figures, the runs they need, and where stored ones are found."""

import json
import tomllib
from pathlib import Path

import pytest

from flameche.errors import BadInput, StoreError
from flameche.experiments.config import config_hash, load_experiment
from flameche_reproduction.catalogue import CATALOGUE, find_entry
from flameche_reproduction.image_sets import PAPER_SETS, SETS
from flameche_reproduction.planned_runs import PlannedRun, Selection, parse_seeds, parse_shard
from flameche_reproduction.published import PublishedValue, published_value
from flameche_reproduction.results_index import ResultsFile, ResultsIndex
from flameche_reproduction.runtime_estimate import RuntimeEstimator
from flameche_reproduction.sweep import missing_runs, take_share, unique_runs

ROOT = Path(__file__).parents[2]
MAIN = ("csl", "fds", "csf")


def digits(**more):
    return Selection(datasets=("digits",), changes=("rounds=3",), **more)


@pytest.mark.parametrize("name", PAPER_SETS)
def test_a_set_is_described_as_in_its_experiment_file(name):
    ours = find_entry("csl").plan(Selection(datasets=(name,), seeds=(0,), methods=("flameche-paper",)))
    assert ours[0].hash == config_hash(load_experiment(ROOT / "experiments" / f"{name}.toml"))


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_run_of_a_table_is_a_valid_experiment_and_named_once(name):
    entry = CATALOGUE[name]
    planned = entry.plan(Selection(seeds=(0,)))
    assert bool(planned) != bool(entry.command)
    cells = [(run.dataset, run.setting, run.row, run.seed) for run in planned]
    assert len(set(cells)) == len(cells)
    for run in planned:
        assert run.experiment.data.heterogeneity == run.setting and len(run.hash) == 12
        assert run.experiment.data.dataset == run.dataset


def test_rows_of_a_table_are_different_experiments():
    for entry in CATALOGUE.values():
        hashes = {}
        for run in entry.plan(Selection(datasets=("mnist", "fashion-mnist"), settings=MAIN, seeds=(0,))):
            key = run.dataset, run.setting, run.hash, run.training
            assert hashes.setdefault(key, run.row) == run.row, f"{entry.name}: {run.row} is {hashes[key]}"


def test_a_row_of_some_sets_is_planned_for_these_alone_and_for_digits():
    def sets(row, *wanted):
        return {run.dataset for run in find_entry("recipes").plan(Selection(datasets=wanted, methods=(row,)))}

    assert sets("kfed-unpooled") == {"cifar10"} and sets("oracle-own") == {"pathmnist"}
    assert sets("kfed-unpooled", "pathmnist") == set()
    assert sets("kfed-unpooled", "digits") == {"digits"}


def test_the_first_seeds_of_everything_come_first():
    seeds = [run.seed for run in CATALOGUE["accuracy"].plan()]
    assert seeds == sorted(seeds) and len(seeds) == 6 * 3 * 11 * 5


def test_eleven_rows_both_modes_of_flameche_and_the_one_that_is_gone():
    rows = find_entry("csl").plan(Selection(datasets=("mnist",), seeds=(0,)))
    assert [run.row for run in rows][-3:] == ["flameche-paper", "flameche-robust", "flameche"]
    assert len(rows) == 11
    both = find_entry("csl").plan(Selection(datasets=("mnist",), seeds=(0,), methods=("flameche",)))
    assert [run.retired for run in both] == [False, True, False]
    assert [run.experiment.method.mode for run in both if not run.retired] == ["paper", "sketch"]


def test_changes_are_laid_over_every_run_and_make_it_another():
    plain, changed = (find_entry("csl").plan(c) for c in (Selection(datasets=("digits",)), digits()))
    assert {run.experiment.rounds for run in changed} == {3}
    assert not {run.hash for run in plain} & {run.hash for run in changed}


def test_names_that_nothing_has_are_refused():
    with pytest.raises(BadInput, match="did you mean 'cifar10'"):
        Selection(datasets=("cifar",)).check([])
    with pytest.raises(BadInput, match="did you mean 'recluster'"):
        find_entry("reclusters")
    for text in ("x", "4..0", "-1", ""):
        with pytest.raises(BadInput):
            parse_seeds([text])
    for text in ("2/2", "a/b", "1"):
        with pytest.raises(BadInput):
            parse_shard(text)
    assert parse_seeds(["0..2", "4,2"]) == (0, 1, 2, 4)


@pytest.mark.parametrize("of", [1, 2, 7])
def test_shares_hold_every_run_once_and_about_the_same_work(of):
    from flameche_reproduction.runtime_estimate import relative_cost

    planned = unique_runs(run for name in MAIN for run in CATALOGUE[name].plan(Selection(seeds=(0,))))
    shares = [take_share(planned, (number, of)) for number in range(of)]
    assert sorted(id(run) for share in shares for run in share) == sorted(map(id, planned))
    loads = [sum(map(relative_cost, share)) for share in shares]
    assert max(loads) - min(loads) <= max(map(relative_cost, planned))
    assert [planned.index(run) for run in shares[0]] == sorted(planned.index(run) for run in shares[0])


def test_every_stored_line_of_the_main_tables_is_found_again():
    lines, stored = ResultsFile(ROOT / "results" / "main.jsonl").read(), ResultsIndex([], [ROOT / "results"])
    planned = [
        run
        for name in (*MAIN, "readings", "recipes")
        for run in CATALOGUE[name].plan(Selection(seeds=tuple(range(10))))
    ]
    for item in tomllib.loads((ROOT / "reproduction" / "plan.toml").read_text())["runs"]:
        lists = (tuple(item.get(key, [])) for key in ("datasets", "settings", "rows", "seeds", "set"))
        planned += CATALOGUE[item["table"]].plan(Selection(*lists))
    found = {(run.hash, run.seed): run for run in planned}
    for line in lines:
        run = found[line["config_hash"], line["seed"]]
        got = stored.find(run)
        assert got is not None and got["accuracy"] == line["accuracy"]
        setting = line["setting"].removesuffix("-unskewed")  # a change of the data, not another setting
        assert (line["dataset"], setting, line["method"]) == (run.dataset, run.setting, run.method)
        assert line["overrides"] == list(run.overrides)


@pytest.mark.parametrize("name", ["main", "ablations"])
def test_the_hash_of_a_stored_line_is_that_of_its_overrides(name):
    for line in ResultsFile(ROOT / "results" / f"{name}.jsonl").read():
        run = PlannedRun(line["dataset"], "", line["label"], line["seed"], tuple(line["overrides"]))
        assert run.hash == line["config_hash"]


def test_what_the_paper_printed_belongs_to_rows_that_are_there():
    assert published_value("csl", "mnist", "csl", "oracle", "accuracy") == PublishedValue(97.9, 0.19)
    assert published_value("csf", "cifar10", "csf", "flameche-robust", "ari") == PublishedValue(0.97, 0.03)
    assert published_value("csl", "mednist28", "csl", "oracle", "accuracy") is None
    text = (ROOT / "reproduction/flameche_reproduction/published.csv").read_text().splitlines()[1:]
    for table, dataset, _, row, *_ in (line.split(",") for line in text):
        rows = CATALOGUE[table].rows
        assert rows is None or any(name.partition("-")[0] == row or name == row for name in rows), row
        assert rows is None or dataset in SETS


def test_a_line_that_was_cut_short_is_left_out_and_others_follow_it(tmp_path):
    lines = ResultsFile(tmp_path / "a" / "runs.jsonl")
    lines.add({"config_hash": "x", "seed": 0, "accuracy": float("nan")})
    lines.file.write_text(lines.file.read_text() + '{"config_ha')
    assert [line["accuracy"] for line in lines.read()] == [None]
    lines.file.write_text('{"config_hash": "x", "seed": 0}')  # whole, but without its end
    lines.add({"config_hash": "y", "seed": 0})
    assert [line["config_hash"] for line in lines.read()] == ["x", "y"]
    lines.file.write_text("[1]\n{}\n")
    with pytest.raises(StoreError, match="line 1"):
        lines.read()


def test_the_same_run_is_kept_once_but_with_and_without_training(tmp_path):
    lines = ResultsFile(tmp_path / "runs.jsonl")
    line = {"config_hash": "x", "seed": 0, "accuracy": 0.5}
    assert lines.merge([line]) == 1 and lines.merge([line]) == 0
    assert lines.merge([{**line, "accuracy": None, "dbi": 1.0}]) == 1


def test_a_clustering_is_found_in_a_run_with_training_but_not_the_other_way_round(tmp_path):
    run = find_entry("recluster").plan(digits(seeds=(0,)))[0]
    trained = find_entry("csl").plan(digits(seeds=(0,), methods=("flameche-paper",)))[0]
    whole = {"config_hash": run.hash, "seed": 0, "accuracy": 0.5, "dbi": 1.0}
    ResultsFile(tmp_path / "a.jsonl").add({**whole, "accuracy": None})
    assert ResultsIndex([], [tmp_path]).find(run) and run.hash != trained.hash  # another setting
    twin = type(run)(run.dataset, run.setting, "x", 0, run.overrides, training=True)
    assert ResultsIndex([], [tmp_path]).find(twin) is None
    ResultsFile(tmp_path / "a.jsonl").add(whole)
    assert (
        ResultsIndex([], [tmp_path]).find(twin)
        and missing_runs([twin, run], ResultsIndex([], [tmp_path])) == []
    )
    assert unique_runs([run, twin]) == [twin]


def test_run_folders_come_before_lines(tmp_path):
    run = find_entry("csl").plan(digits(seeds=(0,), methods=("fedavg",)))[0]
    ResultsFile(tmp_path / "a.jsonl").add({"config_hash": run.hash, "seed": 0, "accuracy": 0.1})
    folder = run.folder(tmp_path / "runs")
    folder.mkdir(parents=True)
    summary = {"accuracy": 0.9, "seed": 0, "config_hash": run.hash, "wall_s": 1.23456}
    (folder / "summary.json").write_text(json.dumps(summary))
    line = ResultsIndex([tmp_path / "runs"], [tmp_path]).find(run)
    assert line["accuracy"] == 0.9 and line["wall_s"] == 1.2 and line["overrides"] == list(run.overrides)


def test_time_is_told_by_runs_of_the_same_kind_or_guessed():
    run = find_entry("csl").plan(Selection(datasets=("mnist",), seeds=(0,), methods=("ifca",)))[0]
    line = {"dataset": "mnist", "method": "ifca", "device": "NVIDIA H200", "wall_s": 80.0, "accuracy": 0.9}
    assert RuntimeEstimator([{**line, "rounds": 50}], "cuda").estimate(run).seconds == 160
    assert (
        RuntimeEstimator([line], "cuda").estimate(run).measured
        and not RuntimeEstimator([line], "cpu").estimate(run).measured
    )
    by_net = RuntimeEstimator([{**line, "dataset": "fashion-mnist"}], "cuda").estimate(run)
    assert by_net.measured and by_net.seconds == 80


def test_the_time_of_metadata_that_clusterings_share_is_counted():
    run = find_entry("m-step").plan(Selection(datasets=("mnist",), seeds=(0,)))[0]
    line = {"dataset": "mnist", "method": run.method, "device": "cpu", "training": False}
    walls = [10.0, 1.0, 1.0]
    assert RuntimeEstimator([{**line, "wall_s": wall} for wall in walls], "cpu").estimate(run).seconds == 4


def test_an_estimate_is_by_runs_of_one_device():
    run = find_entry("csl").plan(Selection(datasets=("mnist",), seeds=(0,), methods=("ifca",)))[0]
    line = {"dataset": "mnist", "method": "ifca", "rounds": 100, "accuracy": 0.5}
    on = [("cpu, 1 thread", 900.0), ("cpu, 16 threads", 90.0), ("cpu, 16 threads", 92.0), (None, 1.0)]
    lines = [{**line, "device": device, "wall_s": wall} for device, wall in on]
    assert RuntimeEstimator(lines, "cpu").estimate(run).seconds == 91
    assert (
        not RuntimeEstimator(lines, "cuda").estimate(run).measured
    )  # a device that is not recorded is no GPU
