"""The functions of `import flameche`."""

import json
import subprocess
import sys

import pytest

import flameche
from flameche.errors import ConfigError
from tests.cli.conftest import TOML


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    return file


def test_importing_flameche_imports_neither_torch_nor_any_optional_package():
    code = (
        "import sys, flameche\n"
        "heavy = {'torch', 'tenseal', 'gmpy2', 'cryptography', 'pooch', 'flwr', 'ray', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_run_in_the_clear_needs_no_cryptographic_package(experiment):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from flameche.api import cluster, load_experiment\n"
        f"cluster(load_experiment(Path({str(experiment)!r})))\n"
        "heavy = {'tenseal', 'gmpy2', 'cryptography', 'pooch', 'flwr', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_experiment_may_be_given_as_a_path_or_a_string(experiment):
    described = flameche.load_experiment(str(experiment))
    assert described == flameche.load_experiment(experiment)
    found = [
        flameche.cluster(way, device="cpu")["assignment"] for way in (described, experiment, str(experiment))
    ]
    assert found[0] == found[1] == found[2]


def test_run_with_fresh_ignores_the_stored_run(experiment, tmp_path):
    first = flameche.run(experiment, out=tmp_path / "runs", device="cpu")
    (file,) = (tmp_path / "runs").rglob("summary.json")
    file.write_text(json.dumps({**first, "accuracy": 0.123}))
    assert flameche.run(experiment, out=tmp_path / "runs", device="cpu")["accuracy"] == 0.123
    again = flameche.run(experiment, out=tmp_path / "runs", device="cpu", fresh=True)
    assert again["accuracy"] == first["accuracy"]


@pytest.mark.parametrize("function", [flameche.cluster, flameche.run])
def test_an_argument_that_is_no_experiment_is_refused_in_one_line(function):
    with pytest.raises(ConfigError, match=r"not a dict; flameche\.experiment\(.*\) makes an experiment"):
        function({"rounds": 2})


def test_dir_lists_the_functions_of_the_package():
    assert set(flameche.__all__) <= set(dir(flameche)) and "__version__" in dir(flameche)
