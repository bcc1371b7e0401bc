"""Sweeps: several processes, failures, kills, Ray."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flameche_reproduction.catalogue import CATALOGUE
from flameche_reproduction.planned_runs import Selection
from flameche_reproduction.results_index import ResultsFile, ResultsIndex
from flameche_reproduction.run_worker import METADATA, Batch, play_batch
from flameche_reproduction.sweep import make_batches, missing_runs, sweep

TIMES = {"seconds", "server_seconds", "client_seconds", "wall_s", "device"}
QUICK = ("rounds=2", "training.epochs=1", "data.clients=8", "data.per_label=3")


def planned(*methods, seeds=(0,), changes=QUICK, table="csl"):
    choice = Selection(("digits",), ("csl",), methods, seeds, changes)
    return CATALOGUE[table].plan(choice)


def timeless(line):
    return {key: value for key, value in line.items() if key not in TIMES}


def alone(run, runs):
    """Play a run here; give its line."""
    told = []
    play_batch(Batch((run,), runs, threads=1), told.append)
    assert told[-1].kind == "done", told[-1].why
    return timeless(told[-1].line)


def test_several_processes_give_the_lines_of_one_and_nothing_is_run_twice(tmp_path):
    runs = planned("oracle", "fedavg", "flameche-paper")
    heard = []
    lines = tmp_path / "runs.jsonl"
    swept = sweep(runs, tmp_path / "runs", lines, jobs=2, on_event=lambda run, news: heard.append(news.kind))
    assert len(swept.done) == 3 and not swept.failed
    assert heard.count("begin") == 3 and heard.count("round") == 6
    found = {line["label"]: timeless(line) for line in ResultsFile(lines).read()}
    for run in runs:
        assert found[run.row] == alone(run, tmp_path / "again")
    assert (
        missing_runs(runs, ResultsIndex([], [tmp_path]))
        == []
        == missing_runs(runs, ResultsIndex([tmp_path / "runs"]))
    )
    assert not list(tmp_path.glob("runs/**/models.npz"))


def test_a_failed_run_is_kept_with_its_error_and_others_are_finished(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os, signal\ndef make(shape, classes):\n    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    greedy = planned("fedavg", changes=(*QUICK, "data.per_label=10000"))
    killed = planned("fedavg", changes=(*QUICK, "model.kind=deadly:make"))
    good = planned("oracle")
    swept = sweep([*greedy, *killed, *good], tmp_path / "runs", tmp_path / "runs.jsonl", jobs=1)
    assert swept.done == good and [run for run, _ in swept.failed] == [*greedy, *killed]
    assert "signal 9" in swept.failed[1][1]
    error = greedy[0].folder(tmp_path / "runs") / "error.txt"
    assert "Traceback" in error.read_text() and "DataError" in error.read_text()
    assert "signal 9" in (killed[0].folder(tmp_path / "runs") / "error.txt").read_text()
    assert len(ResultsFile(tmp_path / "runs.jsonl").read()) == 1


def test_an_error_is_forgotten_when_the_run_succeeds(tmp_path):
    (run,) = planned("fedavg")
    error = run.folder(tmp_path) / "error.txt"
    error.parent.mkdir(parents=True)
    error.write_text("earlier")
    alone(run, tmp_path)
    assert not error.exists()


def test_clusterings_by_the_same_metadata_extract_them_once(tmp_path):
    runs = planned(table="recluster")
    (order,) = make_batches(runs, tmp_path / "runs", "cpu", 2)
    assert order.planned == tuple(runs) and order.threads == 1
    told = []
    play_batch(order, told.append)
    lines = [news.line for news in told if news.kind == "done"]
    assert ResultsFile(tmp_path / "lines.jsonl").merge(lines) == 4
    assert len(list((tmp_path / "runs" / METADATA).iterdir())) == 1
    assert all(line["accuracy"] is None and line["dbi"] is not None for line in lines)
    assert missing_runs(runs, ResultsIndex([], [tmp_path])) == []


@pytest.mark.parametrize("row", ["kfed", "pacfl", "pacfl-raw-sum"])
def test_methods_with_metadata_of_their_own_are_clustered_without_training_too(row, tmp_path):
    changes = (*QUICK, "rounds=3", "participation=1.0", "data.per_label=8")
    [run] = [run for run in planned(row, changes=changes, table="clusters") if run.row == row]
    line = alone(run, tmp_path)
    assert not run.training and line["accuracy"] is None
    assert line["ari"] is not None and line["label"] == row
    assert missing_runs([run], ResultsIndex([], [tmp_path])) == [run]
    ResultsFile(tmp_path / "runs.jsonl").add(line)
    assert missing_runs([run], ResultsIndex([], [tmp_path])) == []


def test_a_clustering_alone_is_that_of_the_run_with_training(tmp_path):
    (clustered,) = planned("tau-10", table="recluster")
    (trained,) = planned("flameche-paper")
    assert clustered.hash == trained.hash
    ours, whole = alone(clustered, tmp_path / "a"), alone(trained, tmp_path / "b")
    for key in ("ari", "ari_final", "dbi", "ch", "k"):
        assert ours[key] == whole[key]


def test_a_run_that_another_process_plays_is_left_to_it(tmp_path):
    from flameche.experiments.run_folder import RunFolder

    (run,) = planned("fedavg")
    told = []
    with RunFolder(run.folder(tmp_path)):
        play_batch(Batch((run,), tmp_path), told.append)
    assert [news.kind for news in told] == ["begin", "busy"]
    assert not (run.folder(tmp_path) / "error.txt").exists()


def test_a_killed_sweep_goes_on_and_ends_as_if_nothing_had_happened(tmp_path):
    changes = ("rounds=60", *QUICK[1:])
    command = [sys.executable, "-m", "flameche", "reproduce", "csl", "--jobs", "1", "--device", "cpu"]
    command += ["--datasets", "digits", "--seeds", "0", "--methods", "flameche-paper"]
    command += ["--out", str(tmp_path)]
    command += [word for change in changes for word in ("--set", change)]
    (run,) = planned("flameche-paper", changes=changes)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        _wait_for(lambda: _rounds(run, tmp_path) > 2, first)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    _wait_for(lambda: not _workers(tmp_path))
    before = _rounds(run, tmp_path)
    assert before < 60 and missing_runs([run], ResultsIndex([tmp_path / "runs"], [tmp_path])) == [run]
    sweep([run], tmp_path / "runs", tmp_path / "runs.jsonl", jobs=1)
    (line,) = ResultsFile(tmp_path / "runs.jsonl").read()
    assert timeless(line) == alone(run, tmp_path / "whole")


def _rounds(run, out):
    file = run.folder(out / "runs") / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _workers(folder):
    """List processes that hold a file below a folder as their working directory and play orders."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_text()
                if "experiments.worker" in command and os.readlink(f"/proc/{entry}/cwd") == str(folder):
                    found.append(entry)
            except OSError:
                continue
    return found


def _wait_for(condition, process=None, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        assert process is None or process.poll() is None, "it ended"
        time.sleep(0.05)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_plays_the_same_runs(tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'flameche-reproduction[ray]'")
    runs = planned("fedavg")
    swept = sweep(runs, tmp_path / "runs", tmp_path / "runs.jsonl", ray="local")
    assert swept.done == runs
    (line,) = ResultsFile(tmp_path / "runs.jsonl").read()
    assert timeless(line) == alone(runs[0], tmp_path / "again")
