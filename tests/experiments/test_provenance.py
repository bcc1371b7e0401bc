"""Every result that is stored says which versions, which commit and which device made it."""

import importlib
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from flameche.experiments.paper import Choice, entry_named
from flameche.experiments.provenance import COMMIT, PACKAGE, _package_sources, commit, provenance, sources
from flameche.experiments.stored import Lines
from flameche.experiments.sweep import sweep

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
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
    choice = Choice(datasets=("digits",), settings=("csl",), seeds=(0,), changes=QUICK)
    planned = entry_named(name).plan(choice)[:1]
    swept = sweep(planned, tmp_path / "runs", tmp_path / "runs.jsonl", jobs=1)
    assert not swept.failed
    (line,) = Lines(tmp_path / "runs.jsonl").read()
    check(line)


def test_lines_made_again_of_a_folder_tell_of_the_run_and_not_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Choice(datasets=("digits",), seeds=(0,), methods=("fedavg",), changes=QUICK)
    planned = entry_named("csl").plan(choice)
    sweep(planned, tmp_path / "runs", tmp_path / "first.jsonl", jobs=1)
    monkeypatch.setenv(COMMIT, "later")
    sweep(planned, tmp_path / "runs", tmp_path / "again.jsonl", jobs=1)  # finished: it is only read
    (line,) = Lines(tmp_path / "again.jsonl").read()
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
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    module = importlib.import_module(script)
    for name, value in smaller.items():
        monkeypatch.setattr(module, name, value)
    cache = [tmp_path / "cache"] if script in ("missing_table", "select_table") else []
    module.run(*words, tmp_path / "lines.jsonl", *cache)
    lines = Lines(tmp_path / "lines.jsonl").read()
    assert lines
    for line in lines:
        check(line)


def test_every_script_that_stores_lines_names_what_made_them() -> None:
    for file in sorted(EXPERIMENTS.glob("*.py")):
        text = file.read_text()
        assert 'open("a")' not in text, file.name  # Lines appends
        if ".add({" in text or ".add(line)" in text or "Lines(out).add(" in text:
            assert "provenance(" in text or "summarise(" in text, file.name


def test_a_fingerprint_is_of_all_sources_of_the_package_and_of_an_own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sources("lenet5")
    assert set(found) == {"flameche"} and len(found["flameche"]) == 12
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert _package_sources(copy) == found["flameche"]
    (copy / "web.css").write_text("no code")
    assert _package_sources(copy) == found["flameche"]
    _package_sources.cache_clear()
    (copy / "em" / "ward.py").write_text((copy / "em" / "ward.py").read_text() + "\n")
    assert _package_sources(copy) != found["flameche"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "nets.py").write_text("")
    assert set(sources("own.nets:factory")) == {"flameche", "own.nets"}
    assert set(sources("nowhere.nets:factory")) == {"flameche"}


def test_what_an_own_module_may_import_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes(module: str, file: str) -> bool:
        before = sources(f"{module}:make")[module]
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.read_text() if path.exists() else ''}# more\n")
        return sources(f"{module}:make")[module] != before

    monkeypatch.chdir(tmp_path)
    (tmp_path / "m2.py").write_text("from m import make\n")
    assert changes("m2", "m.py") and changes("m2", "m2.py")
    assert not changes("m2", "runs/x.py") and not changes("m2", "notes.txt")
    (tmp_path / "own" / "parts").mkdir(parents=True)
    for name in ("own/__init__.py", "own/nets.py", "own/parts/__init__.py", "own/parts/head.py"):
        (tmp_path / name).write_text("")
    for module in ("own", "own.nets", "own.parts.head"):
        for name in ("own/__init__.py", "own/nets.py", "own/parts/head.py"):
            assert changes(module, name)
        assert not changes(module, "m.py")
    monkeypatch.chdir(tmp_path / "own")  # a package may be where one works, too
    assert changes("nets", "own/parts/head.py")


def test_a_commit_with_other_sources_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        me = ["-c", "user.name=a", "-c", "user.email=a@b"]
        found = subprocess.run(
            ["git", "-C", str(tmp_path), *me, *words], capture_output=True, text=True, check=True
        )
        return found.stdout.strip()

    monkeypatch.delenv(COMMIT)
    monkeypatch.setattr("flameche.experiments.provenance.SOURCE", tmp_path / "none")
    assert commit() is None and provenance("cpu")["commit"] is None
    git("init", "--quiet")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "a")
    (tmp_path / "results.jsonl").write_text("{}")  # what runs write changes no code
    monkeypatch.setattr("flameche.experiments.provenance.SOURCE", tmp_path)
    assert commit() == git("rev-parse", "HEAD")
    (tmp_path / "src" / "a.py").write_text("2")
    from flameche.experiments.provenance import _of_git

    _of_git.cache_clear()
    assert commit() == git("rev-parse", "HEAD") + "-dirty"
