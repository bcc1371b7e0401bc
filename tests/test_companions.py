"""The command line with and without the packages beside the library."""

import subprocess
import sys
from pathlib import Path

import pytest

from flameche.companions import COMMANDS, FOLDERS, is_installed
from tests.report.synthetic_runs import write_run

ROOT = Path(__file__).parents[1]
ABSENT = (
    f"import sys; sys.modules.update(dict.fromkeys({list(FOLDERS)})); from flameche.cli import main; main()"
)


def call(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which has the packages that this one has."""
    path = [str(ROOT / folder) for folder in FOLDERS.values()]
    code = f"import sys; sys.path += {[*path, *sys.path]}; {code}"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "package"), COMMANDS.items())
def test_a_command_whose_package_is_absent_says_in_a_line_how_to_get_it(name: str, package: str) -> None:
    done = call(ABSENT, name, "csl", "--stored")
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert f"`flameche {name}` needs {package}" in done.stderr
    assert f"-e ./{FOLDERS[package]}" in done.stderr
    assert (ROOT / FOLDERS[package] / "pyproject.toml").exists()


def test_a_report_on_stored_runs_says_what_it_needs_and_one_on_run_folders_needs_nothing(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "flameche", 0)
    words = ("report", str(tmp_path), "--out", str(tmp_path / "out"))
    done = call(ABSENT, *words, "--results", str(ROOT / "results"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a report on stored runs needs flameche_reproduction" in done.stderr
    assert call(ABSENT, *words).returncode == 0


def test_help_lists_the_commands_of_companions_be_they_installed_or_not() -> None:
    assert all(is_installed(package) for package in FOLDERS)
    for code in (ABSENT, "from flameche.cli import main; main()"):
        done = call(code, "--help")
        assert done.returncode == 0 and all(f" {name} " in done.stdout for name in COMMANDS)
        assert ("Not installed" in done.stdout) == (code == ABSENT)
