"""The queue of the paper's runs: by priority, within a time, never one twice; then collected."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from flameche_reproduction.results_index import ResultsFile, ResultsIndex
from flameche_reproduction.sweep import missing_runs

ROOT = Path(__file__).parents[2]
QUICK = ["rounds=2", "training.epochs=1", "data.clients=8", "data.per_label=3"]


@pytest.fixture(scope="module")
def queue():
    spec = importlib.util.spec_from_file_location("run_queue", ROOT / "reproduction" / "run_queue.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # where its dataclasses look themselves up
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def call(queue, capsys, tmp_path, monkeypatch):
    """Call it with a plan of its own and a folder of results; give the exit code and what it printed."""
    monkeypatch.setenv("FLAMECHE_COMMIT", "")  # --commit sets it
    (tmp_path / "results").mkdir()

    def run(items, *words):
        tables = []
        for item in items:
            item = {
                "title": "a",
                "table": "csl",
                "datasets": ["digits"],
                "settings": ["csl"],
                "seeds": [0],
                "rows": ["oracle"],
                "set": QUICK,
                **item,
            }
            tables.append("[[runs]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in item.items()))
        (tmp_path / "plan.toml").write_text("\n".join(tables))
        places = ["--plan", str(tmp_path / "plan.toml"), "--results", str(tmp_path / "results")]
        code = queue.main([*places, *map(str, words)])
        return code, *capsys.readouterr()

    return run


def test_the_plan_is_sound_and_what_is_stored_is_not_run_again(queue):
    items = queue.read_plan(ROOT / "reproduction" / "plan.toml")
    runs = [run for item in items for run in item.runs()]
    todo = missing_runs(runs, ResultsIndex([], [ROOT / "results"]))
    left = {(run.dataset, run.setting, run.row, run.seed) for run in todo}
    assert ("cifar10", "fds", "fedavg", 0) not in left  # the table `recipes` has it, under another name
    assert ("pathmnist", "csl", "oracle", 0) not in left


def test_runs_go_by_priority_are_collected_and_never_run_twice(call, tmp_path):
    plan = [{"rows": ["fedavg"], "seeds": [1]}, {"rows": ["oracle", "fedavg"], "seeds": [0, 1]}]
    out = tmp_path / "out"
    words = ("run", "--out", out, "--device", "cpu", "--jobs", 1, "--commit", "abc", "--seconds", 300)
    code, said, _ = call(plan, *words)
    begun = [line.split(": begins")[0].split("· ", 1)[1] for line in said.splitlines() if "begins" in line]
    assert code == 0 and "4 runs wanted, 0 there" in said
    assert begun == ["fedavg · seed 1", "oracle · seed 0", "fedavg · seed 0", "oracle · seed 1"]
    lines = ResultsFile(out / "runs.jsonl").read()
    assert len(lines) == 4 and {line["commit"] for line in lines} == {"abc"}
    assert all(line["jobs"] == 1 and line["versions"]["torch"] for line in lines)
    (out / "runs.jsonl").unlink()  # another call on the same machine tells again what its folders hold
    code, said, _ = call(plan, *words)
    assert "4 runs wanted, 4 there" in said and "begins" not in said
    assert sorted(map(str, ResultsFile(out / "runs.jsonl").read())) == sorted(map(str, lines))
    assert "4 lines added, 0 there already" in call(plan, "collect", out)[1]
    assert "0 lines added, 4 there already" in call(plan, "collect", out)[1]
    assert len(ResultsFile(tmp_path / "results" / "main.jsonl").read()) == 4
    said = call(plan, "list", "--out", tmp_path / "elsewhere", "--device", "cpu")[1]
    assert "1 runs, 1 there, 0 left" in said and "3 runs, 3 there, 0 left" in said
    few = [{"rows": ["oracle"]}]
    assert "2 lines are not of the plan" not in call(few, "collect", out)[1]
    assert "3 lines are not of the plan" in call(few, "collect", out)[1]


def test_a_run_that_does_not_fit_is_not_begun_and_a_shorter_one_is(call, tmp_path):
    plan = [{"rows": ["oracle"], "seconds": 10_000}, {"rows": ["fedavg"], "seconds": 1}]
    words = ("--out", tmp_path / "out", "--device", "cpu", "--jobs", 1, "--seconds", 200)
    said = call(plan, "list", *words)[1]
    assert "    digits csl · oracle · seed 0: 10000 s (plan)" in said
    assert "  * digits csl · fedavg · seed 0: 1 s (plan)" in said
    code, said, _ = call(plan, "run", *words)
    assert code == 0 and "oracle" not in said and "1 runs done, 0 failed" in said
    assert [line["label"] for line in ResultsFile(tmp_path / "out" / "runs.jsonl").read()] == ["fedavg"]


def test_when_the_time_is_over_what_runs_is_ended_and_goes_on_later(call, tmp_path):
    plan = [{"rows": ["oracle"], "set": ["rounds=1000000", *QUICK[1:]], "seconds": 1}]
    how = (
        "--device",
        "cpu",
        "--jobs",
        1,
        "--seconds",
        10,
        "--begin-all",
    )  # ten, for a busy machine begins late
    code, said, _ = call(plan, "run", "--out", tmp_path / "out", *how)
    assert code == 0 and "time is over" in said and not (tmp_path / "out" / "runs.jsonl").exists()


def test_a_failed_run_is_told_by_the_exit_code(call, tmp_path):
    plan = [{"set": [*QUICK, "data.per_label=10000"]}]
    code, said, _ = call(
        plan, "run", "--out", tmp_path / "out", "--device", "cpu", "--jobs", 1, "--seconds", 200
    )
    assert code == 1 and "1 failed" in said and "error.txt" in said


def test_estimates_come_from_runs_of_the_same_kind_on_the_same_device(queue, call, tmp_path):
    plan = [{"rows": ["oracle", "fedavg"], "seeds": [0, 1], "seconds": 7}]
    call(plan, "list", "--device", "cpu")
    items = queue.read_plan(tmp_path / "plan.toml")
    done, other = (run for run in items[0].runs() if run.seed == 0)
    line = {"config_hash": done.hash, "seed": 0, "accuracy": 0.5, "dataset": "digits", "wall_s": 30.0}
    line |= {"overrides": list(done.overrides), "jobs": 2, "device": "cpu, 1 thread", "method": "oracle"}
    ResultsFile(tmp_path / "results" / "a.jsonl").add(line)
    ResultsFile(tmp_path / "results" / "a.jsonl").add(
        {**line, "seed": 5, "device": "NVIDIA H200", "wall_s": 9e9}
    )
    found = queue.Estimates(items, ResultsIndex([], [tmp_path / "results"]), "cpu", 3)
    assert found.estimate(done) == (45.0, "measured")  # beside two others where it was beside one
    assert found.estimate(other) == (21, "plan")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"rows": ["oracel"]}, "number 1: rows oracel: no such name; did you mean 'oracle'?"),
        ({"datasets": ["mnist2"]}, "number 1: datasets mnist2"),
        ({"seeds": ["0"]}, "number 1: seeds must be a list of int"),
        ({"seeds": []}, "number 1: seeds is empty"),
        ({"sets": ["rounds=2"]}, "number 1: unknown key sets"),
        ({"seconds": -1}, "number 1: seconds must be a positive number"),
        ({"table": "clusterz"}, "clusterz: no table"),
        ({"set": ["training.epoch=1"]}, "training.epoch"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_in_a_line(item, said, call):
    code, printed, error = call([item], "list", "--device", "cpu")
    assert code == 2 and not printed and said in error and error.count("\n") == 1


def test_wrong_places_and_times_are_refused(call, tmp_path):
    assert call([{}], "collect", tmp_path / "nowhere")[0] == 2
    code, _, error = call([{}], "run", "--seconds", "0", "--device", "cpu")
    assert code == 2 and "--seconds 0" in error
