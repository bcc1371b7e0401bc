"""The import order, and who may know what."""

import ast
import importlib.util
import itertools
import sys
import tomllib
from pathlib import Path

import pytest

import flameche
from flameche.companions import FOLDERS

ROOT = Path(flameche.__file__).parent
ORDER = [
    *(
        "errors",
        "companions",
        "tables",
        "registry",
        "rng",
        "em",
        "metadata",
        "crypto",
        "models",
        "data",
        "training",
        "privacy",
        "protocol",
        "clustering",
        "methods",
    ),
    *("simulation", "network", "experiments", "report", "flower", "api", "cli", "__main__"),
]
# Neighbours that stand side by side: none may know another.
STRANGERS = list(itertools.combinations(("em", "metadata", "crypto", "models"), 2))
HOME = {
    "torch": {"metadata", "models", "data", "training"},
    "triton": {"training"},
    "tenseal": {"crypto"},
    "gmpy2": {"crypto"},
    "cryptography": {"crypto", "flower"},
    "flwr": {"flower"},
    "dp_accounting": {"privacy"},
    "typer": {"cli"},
    "rich": {"cli"},
    "pydantic": {"tables", "data", "metadata", "methods", "experiments"},
    "pooch": {"data"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
}
FILES = sorted(ROOT.rglob("*.py"))
REPOSITORY = Path(__file__).parents[1]
PYPROJECT = REPOSITORY / "pyproject.toml"


def package(file):
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the order"
            yield node.module
            if node.module == "flameche":
                yield from (f"flameche.{a.name}" for a in node.names if a.name != "__version__")


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_left_never_imports_right(file):
    here = package(file)
    if here == "__init__":
        return
    for name in imports(file):
        if name.startswith("flameche."):
            there = name.split(".")[1]
            assert ORDER.index(there) <= ORDER.index(here), f"{here} must not import {there}"
            assert (here, there) not in STRANGERS and (there, here) not in STRANGERS, f"{here} and {there}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_library_is_imported_only_where_it_belongs(file):
    for name in imports(file):
        home = HOME.get(name.split(".")[0])
        assert home is None or package(file) in home, f"{package(file)} must not import {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_every_file_opens_with_the_one_job_it_has(file):
    text = ast.get_docstring(ast.parse(file.read_text()))
    assert text, "no docstring"
    assert text.splitlines()[0].endswith((".", ":")) or "." in text.splitlines()[0]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_the_library_imports_no_companion(file):
    assert not {name.split(".")[0] for name in imports(file)} & set(FOLDERS)


@pytest.mark.parametrize("package", FOLDERS)
def test_benchmarks_do_not_import_the_reproduction_and_each_package_has_its_folder(package):
    folder = REPOSITORY / FOLDERS[package]
    files = sorted((folder / package).rglob("*.py"))
    assert files and tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    others = {"flameche_reproduction"} if package == "flameche_benchmarks" else set()
    assert not {name.split(".")[0] for file in files for name in imports(file)} & others


def test_the_wheel_holds_the_library_alone():
    found = tomllib.loads(PYPROJECT.read_text())["tool"]["setuptools"]
    assert found["packages"] == {"find": {"where": ["src"]}}
    folders = {place.name for place in (REPOSITORY / "src").iterdir() if place.suffix != ".egg-info"}
    assert folders - {"__pycache__"} == {"flameche"}


def test_a_companion_packages_modules_are_all_in_its_wheel():
    for package, name in FOLDERS.items():
        named = tomllib.loads((REPOSITORY / name / "pyproject.toml").read_text())["tool"]["setuptools"]
        folders = {file.parent for file in (REPOSITORY / name / package).rglob("*.py")}
        found = {".".join(place.relative_to(REPOSITORY / name).parts) for place in folders}
        assert set(named["packages"]) == found


def test_every_package_is_in_the_order():
    assert {package(f) for f in FILES} - {"__init__"} <= set(ORDER)


def test_the_server_side_of_the_protocol_never_names_a_key():
    text = (ROOT / "protocol" / "server.py").read_text()
    names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not {"client_key", "ClientKey", "Scheme", "open", "seal"} & names


def has_types(library):
    """Tell whether mypy finds types of a library here: its own, or a package of stubs."""
    spec = importlib.util.find_spec(library)
    folders = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    return any(
        (folder / "py.typed").exists() or (folder.parent / f"{library}-stubs").exists() for folder in folders
    )


def test_every_library_without_types_is_named_to_mypy_be_it_installed_or_not():
    overrides = tomllib.loads(PYPROJECT.read_text())["tool"]["mypy"]["overrides"]
    named = {name.split(".")[0] for entry in overrides for name in entry["module"]}
    used = {name.split(".")[0] for file in FILES for name in imports(file)}
    libraries = used - set(sys.stdlib_module_names) - {"flameche"}
    assert {library for library in libraries if not has_types(library)} <= named


def test_the_versions_of_python_that_pass_are_named():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    named = [name.rpartition(" ")[2] for name in project["classifiers"] if ":: Python :: 3." in name]
    assert named == ["3.11", "3.12", "3.13"] and project["requires-python"] == f">={named[0]}"
