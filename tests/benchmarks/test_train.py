"""The benchmark of training, on rounds too small to tell anything but that it works."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from flameche_benchmarks import command, train
from flameche_benchmarks.machine import PeakMemory, cpu_seconds, memory_used, process_tree
from flameche_benchmarks.train import (
    CONTENDERS,
    LENET,
    cases,
    measure,
    run_contender,
    train_markdown,
    train_tables,
)

TINY = replace(LENET, clients=2, samples=8, epochs=1, batch=4, rounds=2, seconds=0.0)


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "find_spec", lambda name: None)
        return measure([TINY])


def test_every_side_is_timed_and_the_plain_loop_is_the_measure(found):
    assert [row["side"] for row in found["rows"]] == list(CONTENDERS["cpu"])
    loop, ours, flower = found["rows"]
    assert loop["ratio"] == 1.0 and ours["ratio"] == pytest.approx(loop["round_s"] / ours["round_s"])
    assert loop["rounds"] == 1 and loop["first_s"] > 0 and loop["peak_mb"] > 50
    assert flower["skipped"] == "not installed" and flower["ratio"] is None
    json.dumps(found)


def test_tables_name_all_sides(found):
    (table,) = train_tables(found)
    assert [row["side"] for row in table.rows] == ["plain loop", "ours (auto)", "Flower, Ray simulation"]
    assert "| ours (auto) |" in train_markdown(found)


def test_a_side_that_fails_says_why():
    row = run_contender(replace(TINY, model="resnet19"), "loop")
    assert row["skipped"].startswith("failed: ") and "resnet19" in row["skipped"]


def test_cases_are_the_work_of_the_issue_and_quick_ones_a_taste_of_it():
    full = cases(("lenet5", "resnet18"), (20, 100), False, "cpu")
    assert [(c.model, c.clients, c.epochs, c.batch) for c in full] == [
        ("lenet5", 20, 5, 128), ("lenet5", 100, 5, 128), ("resnet18", 20, 10, 256), ("resnet18", 100, 10, 256)
    ]  # fmt: skip
    quick = cases(("lenet5",), (20,), True, "cuda")
    assert [(c.clients, c.device) for c in quick] == [(4, "cuda")]


def test_the_command_writes_what_it_prints(monkeypatch, tmp_path, found):
    monkeypatch.setattr(train, "measure", lambda rounds, progress: found)
    args = ["train", "--device", "cpu", "--json", "--out", str(tmp_path)]
    printed = CliRunner().invoke(command.app, args)
    assert printed.exit_code == 0 and json.loads(printed.stdout) == json.loads(json.dumps(found))
    assert json.loads((tmp_path / "bench-train.json").read_text()) == json.loads(printed.stdout)
    assert (tmp_path / "bench-train.md").read_text().startswith("# Speed")
    plain = CliRunner().invoke(command.app, args[:3])
    assert "plain loop" in plain.stdout


def test_an_unknown_model_is_refused():
    assert "lenet5 or resnet18" in str(CliRunner().invoke(command.app, ["train", "--model", "x"]).exception)


def test_memory_and_time_count_whole_families():
    code = "import time; x = bytearray(60_000_000); print('there', flush=True); time.sleep(60)"
    with PeakMemory(os.getpid()) as watch:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            everybody = process_tree(os.getpid())
            assert child.pid in everybody
            assert memory_used(everybody) > memory_used([os.getpid()]) + 50_000_000
            assert cpu_seconds(everybody) >= cpu_seconds([os.getpid()]) > 0
        finally:
            child.kill()
            child.communicate()
    assert watch.peak > 0
    assert memory_used([child.pid]) == 0 and cpu_seconds([child.pid]) == 0
