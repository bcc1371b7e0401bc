"""What made a result: fingerprints of the sources, and the commit."""

import shutil
import subprocess
from pathlib import Path

import pytest

from flameche.experiments.provenance import COMMIT, PACKAGE, _package_sources, commit, provenance, sources


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT, "abc")


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
