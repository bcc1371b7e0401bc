import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flameche.errors import StoreError
from flameche.experiments.run_folder import RunFolder, run_path, without_nan
from flameche.simulation.engine import Checkpoint


def record(r):
    return {"round": r, "accuracy": float("nan"), "ari": 0.5}


def checkpoint(r):
    return Checkpoint(r, {"a": np.arange(r)}, {"up": {}}, 1.5)


def test_a_checkpoint_and_its_rounds_come_back(tmp_path):
    with RunFolder(tmp_path) as folder:
        for r in (1, 2, 3):
            folder.add_round(record(r))
        folder.save(checkpoint(2))
    with RunFolder(tmp_path) as folder:
        found, records = folder.resume()
    assert found.round == 2 and found.arrays["a"].tolist() == [0, 1] and found.wall_s == 1.5
    assert [r["round"] for r in records] == [1, 2]  # round 3 is played again
    assert np.isnan(records[0]["accuracy"])
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 2


def test_a_line_cut_short_by_a_kill_is_forgotten(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.add_round(record(1))
        folder.save(checkpoint(1))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "accu')
    with RunFolder(tmp_path) as folder:
        assert len(folder.resume()[1]) == 1


def test_a_fresh_folder_has_nothing_to_resume(tmp_path):
    with RunFolder(tmp_path / "a" / "b") as folder:
        assert folder.resume() == (None, []) and folder.summary is None


def test_a_half_written_file_never_takes_the_place_of_a_whole_one(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.write_text("config.toml", "whole")
        with pytest.raises(ZeroDivisionError):
            folder._replace("config.toml", lambda file: file.write(b"half") / 0)
    assert (tmp_path / "config.toml").read_text() == "whole"


def test_two_processes_cannot_write_one_run(tmp_path):
    with RunFolder(tmp_path), pytest.raises(StoreError, match="another process"):
        RunFolder(tmp_path)
    RunFolder(tmp_path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user other than root, who may write everywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be written"):
        RunFolder(tmp_path / "run")


def test_a_file_in_the_way_is_refused_in_one_line(tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(StoreError, match="choose another folder with --out"):
        RunFolder(tmp_path / "runs" / "x")


def test_damaged_files_are_named(tmp_path):
    with RunFolder(tmp_path) as folder:
        (tmp_path / "summary.json").write_text("{")
        with pytest.raises(StoreError, match=r"summary\.json is damaged"):
            _ = folder.summary
        (tmp_path / "checkpoint.npz").write_bytes(b"PK\3\4 not an archive")
        with pytest.raises(StoreError, match=r"checkpoint\.npz is damaged"):
            folder.resume()
        folder.save(checkpoint(4))
        with pytest.raises(StoreError, match="lost rounds"):
            folder.resume()


def test_finishing_writes_strict_json_and_drops_the_checkpoint(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.save(checkpoint(1))
        folder.finish({"ari": float("nan"), "list": [1.0, float("inf")]})
        assert folder.summary == {"ari": None, "list": [1.0, None]}
        folder.write_clients({"client": np.arange(3)})
    assert not (tmp_path / "checkpoint.npz").exists()
    assert pd.read_parquet(tmp_path / "clients.parquet")["client"].tolist() == [0, 1, 2]
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)


def test_a_run_that_is_cleared_is_whole_or_at_its_beginning_wherever_that_is_stopped(tmp_path, monkeypatch):
    unlink = Path.unlink
    files = ("checkpoint.npz", "summary.json", "rounds.jsonl", "inputs.json", "models.npz")
    for stopped_at in range(20):
        with RunFolder(tmp_path / str(stopped_at)) as folder:
            for name in files:
                (folder.path / name).write_text("{}")
            calls = 0

            def counted(path, missing_ok=False, at=stopped_at):
                nonlocal calls
                calls += 1
                if calls > at:
                    raise KeyboardInterrupt
                unlink(path, missing_ok=missing_ok)

            monkeypatch.setattr(Path, "unlink", counted)
            with suppress(KeyboardInterrupt):
                folder.clear()
            monkeypatch.setattr(Path, "unlink", unlink)
            left = {name for name in files if (folder.path / name).exists()}
            finished = {"summary.json", "rounds.jsonl", "inputs.json", "models.npz"}
            assert left >= finished or not {"summary.json", "checkpoint.npz"} & left
    assert left == set()


def test_a_run_has_one_place(tmp_path):
    assert run_path(tmp_path, "mnist", "abc", 3) == tmp_path / "mnist" / "abc" / "3"


def test_nan_is_replaced_all_the_way_down():
    assert without_nan({"a": [float("nan"), {"b": float("-inf")}], "c": 1}) == {
        "a": [None, {"b": None}],
        "c": 1,
    }
