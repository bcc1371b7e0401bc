"""The strategy: which arguments it takes, and which folders."""

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flameche.errors import ConfigError, FlamecheError
from flameche.experiments.config import load_experiment


def test_the_experiment_says_everything(tmp_path, app):
    from flameche.flower import Flameche

    strategy = Flameche("experiment.toml", out=tmp_path, own_data=False)
    assert strategy.experiment.name == "flower-digits"
    for given in ({"num_rounds": 99}, {"initial_arrays": object()}, {"evaluate_fn": print}):
        with pytest.raises(ConfigError):
            strategy.start(grid=None, **given)
    with pytest.raises(ConfigError, match=r"server\.pub"):
        strategy.start(grid=None, num_rounds=3)
    with pytest.raises(FlamecheError, match="start"):
        strategy.configure_train(1, None, None, None)


def test_a_simulation_is_not_taken_for_a_run_on_a_network(tmp_path, app):
    from flameche.errors import StoreError
    from flameche.flower import Flameche

    plain = load_experiment(app / "experiment.toml", ["scheme.kind=plain"])
    strategy = Flameche(plain, out=tmp_path)
    strategy.folder.mkdir(parents=True)
    (strategy.folder / "environment.json").write_text('{"device": "cpu"}')
    with pytest.raises(StoreError, match="holds a simulation"):
        strategy.start(grid=None)
