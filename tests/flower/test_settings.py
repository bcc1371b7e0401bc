"""Settings of apps and nodes: what is read, and what is refused."""

import pytest

from flameche.errors import ConfigError
from flameche.flower.settings import NodeSettings, RunSettings, ServerSettings, app_file, app_function


def test_an_app_and_its_changes_are_read(app):
    shared = RunSettings.read({"set": "rounds=5 scheme.kind=plain", "seed": 3, "data": "simulated"})
    assert (shared.experiment.rounds, shared.experiment.scheme.kind, shared.seed) == (5, "plain", 3)
    serving = ServerSettings.read({"key": "", "removed": "3, 4", "timeout": 5})
    assert (serving.key, serving.removed, serving.timeout, serving.least_nodes) == (None, (3, 4), 5.0, 2)


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret.toml", "nothing.toml"])
def test_an_experiment_lies_in_the_app_and_nowhere_else(app, name):
    with pytest.raises(ConfigError, match="the app has no file"):
        app_file(name)


@pytest.mark.parametrize(
    "reference", ["os:system", "subprocess:run", "hooks:nothing", "hooks:NUMBER", "hooks"]
)
def test_a_hook_is_a_function_of_the_app_and_of_nothing_else(app, reference):
    (app / "hooks.py").write_text("NUMBER = 3\ndef load(node):\n    return node\n")
    with pytest.raises(ConfigError):
        app_function(reference)
    assert app_function("hooks:load")(7) == 7


@pytest.mark.parametrize(
    ("read", "table", "why"),
    [
        (RunSettings.read, {"data": "mine"}, '"own" or "simulated"'),
        (RunSettings.read, {"classes": "2", "seed": -1}, "whole number"),
        (RunSettings.read, {}, 'classes = "" in the app.*at all sites together'),
        (RunSettings.read, {"classes": "1"}, 'classes = "1" in the app'),
        (RunSettings.read, {"classes": "ill, ill"}, 'classes = "ill, ill" in the app'),
        (ServerSettings.read, {"timeout": 0}, "seconds"),
        (ServerSettings.read, {"removed": "a"}, "numbers of nodes"),
        (NodeSettings.read, {"folder": "x"}, "partition-id"),
        (NodeSettings.read, {"partition-id": True, "folder": "x"}, "partition-id"),
        (NodeSettings.read, {"partition-id": 1}, "folder"),
    ],
)
def test_wrong_settings_are_told_in_one_line(app, read, table, why):
    with pytest.raises(ConfigError, match=why):
        read(table)
