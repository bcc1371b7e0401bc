"""Lines of sweeps and of studies say which versions, which commit and which device made them."""

import importlib
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from flameche.experiments.provenance import COMMIT
from flameche_reproduction.catalogue import find_entry
from flameche_reproduction.planned_runs import Selection
from flameche_reproduction.results_index import ResultsFile
from flameche_reproduction.sweep import sweep

STUDIES = Path(__file__).parents[2] / "reproduction" / "studies"
CASE = ("a", "b", ["digits.toml"], 4, 1)
QUICK = ("rounds=2", "training.epochs=1", "data.clients=8", "data.per_label=3")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT, "abc")


def check(line: dict[str, Any]) -> None:
    assert line["versions"]["python"] == platform.python_version()
    assert line["versions"]["torch"] == torch.__version__
    assert {"flameche", "numpy"} <= set(line["versions"])
    assert line["commit"] == "abc" and line["device"].startswith("cpu, ")


@pytest.mark.parametrize("name", ["csl", "m-step"])  # with training, and a clustering alone
def test_every_line_of_a_sweep_says_what_made_it(name: str, tmp_path: Path) -> None:
    choice = Selection(datasets=("digits",), settings=("csl",), seeds=(0,), changes=QUICK)
    planned = find_entry(name).plan(choice)[:1]
    swept = sweep(planned, tmp_path / "runs", tmp_path / "runs.jsonl", jobs=1)
    assert not swept.failed
    (line,) = ResultsFile(tmp_path / "runs.jsonl").read()
    check(line)


def test_lines_made_again_of_a_folder_tell_of_the_run_and_not_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Selection(datasets=("digits",), seeds=(0,), methods=("fedavg",), changes=QUICK)
    planned = find_entry("csl").plan(choice)
    sweep(planned, tmp_path / "runs", tmp_path / "first.jsonl", jobs=1)
    monkeypatch.setenv(COMMIT, "later")
    sweep(planned, tmp_path / "runs", tmp_path / "again.jsonl", jobs=1)  # finished: it is only read
    (line,) = ResultsFile(tmp_path / "again.jsonl").read()
    check(line)


@pytest.mark.parametrize(
    ("script", "smaller", "words"),
    [
        ("clustering_table", {"RULES": {"default": []}}, (["digits"], ["csl"], 1, "cpu")),
        ("living", {"SCENARIOS": ["still"], "MODES": {"default": []}}, (["digits"], 1, "cpu")),
        ("missing_table", {"SEEDS": 1, "SETTINGS": ["csf"], "MISSING": (1,)}, (["digits"], "cpu")),
        ("scheme_table", {"SETTINGS": ["csl"]}, (["digits"], 1, ["plain"])),
        ("select_table", {"cases": lambda: [CASE], "MOST": 5}, (["plain"], "cpu")),
    ],
)
def test_every_line_of_a_script_says_what_made_it(
    script: str, smaller: dict[str, Any], words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    module = importlib.import_module(script)
    for name, value in smaller.items():
        monkeypatch.setattr(module, name, value)
    cache = [tmp_path / "cache"] if script in ("missing_table", "select_table") else []
    module.run(*words, tmp_path / "lines.jsonl", *cache)
    lines = ResultsFile(tmp_path / "lines.jsonl").read()
    assert lines
    for line in lines:
        check(line)


def test_every_script_that_stores_lines_names_what_made_them() -> None:
    for file in sorted(STUDIES.glob("*.py")):
        text = file.read_text()
        assert 'open("a")' not in text, file.name  # Lines appends
        if ".add({" in text or ".add(line)" in text or "Lines(out).add(" in text:
            assert "provenance(" in text or "summarise(" in text, file.name
