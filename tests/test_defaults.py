"""Defaults and names stand in two layers: the config and the library under it. They must agree."""

import inspect
from typing import get_args

import pytest

from flameche.data import build_federation, heterogeneity
from flameche.data.sources import SOURCES
from flameche.experiments.schema import DataConfig, TrainingConfig
from flameche.methods import METHODS
from flameche.registry import DATASETS
from flameche.training.trainer import TrainingPlan


def defaults_of(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_has_options_of_its_own_name(kind):
    assert METHODS[kind].Options().kind == kind


def test_the_federation_and_its_config_agree():
    library = defaults_of(build_federation)
    assert library.pop("moved") is None  # by events, in the course of a run
    assert library.pop("partition") is None  # of a table of its own
    assert (
        library.pop("heterogeneity") == "none"
    )  # in a config so for own data alone: hashes hold the paper's
    config = DataConfig().model_dump(include=set(library))
    assert library == config and len(config) >= 12


def test_the_trainer_and_its_config_agree():
    plan, config = dict(TrainingPlan().__dict__), TrainingConfig()
    assert plan.pop("sgd") is None and config.optimiser == "adam" and config.momentum == 0
    assert plan == config.model_dump(include=set(plan))


def choices(model, field):
    annotation = model.model_fields[field].annotation
    return set(get_args(annotation)) or set()


def test_names_in_the_config_are_those_of_the_library():
    assert set(DATASETS) == set(SOURCES)
    assert choices(DataConfig, "heterogeneity") == set(heterogeneity.SETTINGS)
    assert choices(DataConfig, "zoom") == set(heterogeneity.ZOOMS)
    assert choices(DataConfig, "skew_split") == set(heterogeneity.SKEW_SPLITS)
