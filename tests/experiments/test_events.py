"""`[[events]]` of an experiment: what is refused, who is drawn, how data drift, and runs that go on."""

import json

import numpy as np
import pytest

from flameche.data import build_federation, load_dataset
from flameche.data.heterogeneity import default_transforms, parse_transform
from flameche.errors import ConfigError
from flameche.experiments.build import build, extract_metadata, load_federation, own_samples
from flameche.experiments.config import config_hash, load_experiment, parse_experiment, to_toml
from flameche.experiments.drifts import DataDrift
from flameche.experiments.events import EventConfig
from flameche.experiments.extraction import Extraction
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.timeline import scheduled
from flameche.simulation.engine import simulate

DIGITS = {"clients": 12, "groups": 4, "per_label": 6, "heterogeneity": "csf", "label_skew": False}
QUICK = {"epochs": 1, "batch": 32, "threads": 1}
DRIFT = {"round": 3, "kind": "drift", "clients": [0, 1], "to": 2}


def described(*events, **tables):
    given = {"rounds": 6, "participation": 0.5, "data": DIGITS, "training": QUICK, **tables}
    return parse_experiment({"name": "living", **given, "events": list(events)})


# The description


def test_without_events_an_experiment_has_the_hash_it_always_had():
    assert config_hash(described()) == config_hash(parse_experiment({**_plain(), "name": "other"}))
    assert "events" not in json.dumps(described().model_dump(exclude_defaults=True))
    assert config_hash(described(DRIFT)) != config_hash(described())
    assert config_hash(described(DRIFT)) != config_hash(described({**DRIFT, "round": 4}))


def _plain():
    return {"rounds": 6, "participation": 0.5, "data": DIGITS, "training": QUICK}


def test_what_is_written_is_read_back(tmp_path):
    experiment = described(DRIFT, {"round": 2, "kind": "leave", "clients": 2})
    file = tmp_path / "living.toml"
    file.write_text(to_toml(experiment))
    assert load_experiment(file) == experiment


def test_a_list_of_tables_is_read(tmp_path):
    file = tmp_path / "living.toml"
    file.write_text(
        "rounds = 6\n[data]\nclients = 12\n[[events]]\nround = 3\nkind = 'leave'\nclients = 2\n"
        "[[events]]\nround = 4\nkind = 'drift'\nclients = [0]\nto = 1\n"
    )
    assert [e.kind for e in load_experiment(file).events] == ["leave", "drift"]


LEAVE = {"round": 3, "kind": "leave"}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({**LEAVE, "client": 2}, "unknown key 'events[0].client'; did you mean 'events[0].clients'"),
        ({**LEAVE, "clients": 0}, "events[0].clients = 0: must be greater than or equal to 1"),
        ({**LEAVE, "clients": "x"}, "must be a number of clients or the list of them"),
        ({**LEAVE, "clients": []}, "events[0].clients = []: must not be empty"),
        ({**LEAVE, "clients": [1, 2, 1]}, "an event names client 1 twice"),
        ({**LEAVE, "clients": [12]}, "an event of client 12, but data.clients = 12: 0 to 11"),
        ({**LEAVE, "clients": 13}, "an event of 13 clients, but data.clients = 12"),
        ({**LEAVE, "clients": 1, "round": 7}, "an event in round 7, but rounds = 6"),
        ({**LEAVE, "clients": 1, "round": 0}, "events[0].round = 0: must be greater than or equal to 1"),
        ({**LEAVE, "clients": 1, "kind": "leaf"}, "must be one of join, leave, drift; did you mean 'leave'?"),
        ({**LEAVE, "clients": 1, "kind": "drift"}, 'an event of kind = "drift" needs `to`'),
        ({**LEAVE, "clients": 1, "kind": "join", "to": 1}, 'an event of kind = "join" has no `to`'),
        ({**DRIFT, "to": 4}, "an event drifts to group 4, but there are 4: 0 to 3"),
        ({"kind": "leave", "clients": 1}, "round is missing"),
        (3, "events[0] = 3: must be a table"),
    ],
)
def test_an_event_that_cannot_be_is_one_line(event, said):
    with pytest.raises(ConfigError) as refused:
        described(event)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["kfed", "pacfl"])
def test_methods_that_cluster_once_refuse_events(kind):
    with pytest.raises(ConfigError, match="clusters once, when every client has been seen"):
        described(DRIFT, method={"kind": kind})


@pytest.mark.parametrize("kind", ["drift", "leave", "join"])
def test_soft_em_follows_events(kind):
    event = {**DRIFT, "kind": kind} if kind == "drift" else {**LEAVE, "kind": kind, "clients": 1}
    assert described(event, method={"kind": "flameche-soft"}).events


# Who it is about

GROUP = np.repeat(np.arange(4), 5)


def schedule(*events, seed=0):
    return scheduled([EventConfig(**event) for event in events], GROUP, seed)


def test_numbers_are_drawn_from_the_seed_and_from_those_who_can():
    events = [
        {"round": 5, "kind": "leave", "clients": 6},
        {"round": 3, "kind": "join", "clients": 4},
        {"round": 4, "kind": "drift", "clients": 5, "to": 1},
        {"round": 4, "kind": "drift", "clients": 5, "to": 2},
        {"round": 2, "kind": "leave", "clients": 3},
    ]
    for seed in range(30):
        found = schedule(*events, seed=seed)
        assert [(e.round, e.kind, len(e.clients)) for e in found] == [
            (2, "leave", 3), (3, "join", 4), (4, "drift", 5), (4, "drift", 5), (5, "leave", 6),
        ]  # fmt: skip
        early, late, one, two, gone = (set(e.clients.tolist()) for e in found)
        assert not early & late and not (one | two) & early and not one & two and not gone & early
        assert not (GROUP[list(one)] == 1).any() and not (GROUP[list(two)] == 2).any()
        again = schedule(*events, seed=seed)
        assert all(np.array_equal(a.clients, b.clients) for a, b in zip(found, again, strict=True))
    assert len({str(schedule(*events, seed=seed)[0].clients) for seed in range(10)}) > 5


def test_who_has_an_event_of_its_own_is_not_drawn_for_another():
    leave, drift = {"round": 2, "kind": "leave", "clients": 12}, {"round": 4, "kind": "drift", "to": 1}
    for seed in range(20):
        first, _ = schedule(leave, {**drift, "clients": [0, 7, 19]}, seed=seed)
        assert not {0, 7, 19} & set(first.clients.tolist())


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [{"round": 2, "kind": "drift", "clients": [3, 4], "to": 1},
             {"round": 2, "kind": "drift", "clients": [4], "to": 2}],
            "client 4 has two in round 2",
        ),
        (
            [{"round": 2, "kind": "leave", "clients": [3]}, {"round": 4, "kind": "leave", "clients": [3]}],
            "client 3 is not there when it leaves in round 4",
        ),
        (
            [{"round": 2, "kind": "leave", "clients": [3]}, {"round": 4, "kind": "join", "clients": [3]},
             {"round": 5, "kind": "join", "clients": [3]}],
            "client 3 is there already when it joins in round 5",
        ),
        (
            [{"round": 4, "kind": "join", "clients": [3]},
             {"round": 2, "kind": "drift", "clients": [3], "to": 1}],
            "client 3 is not there when it drifts in round 2",
        ),
        ([{"round": 2, "kind": "leave", "clients": 20}], "nobody is left in round 2"),
        (
            [{"round": 2, "kind": "leave", "clients": 18}, {"round": 3, "kind": "leave", "clients": 3}],
            "3 clients are to leave in round 3, but only 2 could",
        ),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_one_line(events, said):
    with pytest.raises(ConfigError, match=said):
        schedule(*events)


# Data


@pytest.mark.parametrize("score", ["pool", "own"])
@pytest.mark.parametrize("setting", [{"heterogeneity": "csl", "holdout": 0.3}, {"heterogeneity": "csf"}])
def test_a_drifted_client_keeps_its_samples_which_look_as_the_other_groups(setting, score):
    how = {"clients": 12, "groups": 4, "per_label": 6, "score": score, "label_skew": False, **setting}
    digits = load_dataset("digits")
    before = build_federation(digits, seed=0, **how)
    after = build_federation(digits, seed=0, **how, moved={1: 2, 10: 0})
    bare = build_federation(digits, seed=0, **{**how, "heterogeneity": "none"}, transforms=None)
    views = [
        parse_transform(text, classes=10, shape=(1, 8, 8))
        for text in default_transforms(setting["heterogeneity"], "digits", 10, 4)
    ]
    moved = {1: 2, 10: 0}
    assert after.group.tolist() == [moved.get(i, i // 3) for i in range(12)]
    for part in ("train", "holdout"):
        for i in range(12):
            x, y = getattr(after, part).of(i)
            x_before, y_before = getattr(before, part).of(i)
            if i not in moved:
                assert np.array_equal(x, x_before) and np.array_equal(y, y_before)
                continue
            back = np.argsort(views[i // 3].relabel)
            assert np.array_equal(y, views[moved[i]].labels(back[y_before]))
            if setting["heterogeneity"] == "csf":
                assert np.array_equal(x, views[moved[i]].images(getattr(bare, part).of(i)[0]))
            else:
                assert np.array_equal(x, x_before)
    for i in range(12):
        x, y = after.test.of(int(after.test_of[i]))
        own = int(after.test_of[i])
        bare_x, bare_y = bare.test.of(own)
        view = views[int(after.group[i])]
        assert np.array_equal(x, view.images(bare_x)) and np.array_equal(y, view.labels(bare_y))


def test_a_group_that_everybody_left_leaves_nothing_to_transform():
    after = build_federation(
        load_dataset("digits"), seed=0, clients=4, groups=2, per_label=5, heterogeneity="csl", score="own",
        moved={0: 1, 1: 1},
    )  # fmt: skip
    assert after.group.tolist() == [1, 1, 1, 1] and after.train.sizes.min() == 50


@pytest.mark.parametrize("kind", ["random-gaussian", "mean", "mean-pca-shared", "label-counts"])
def test_a_drift_brings_metadata_data_and_truth_along(kind):
    experiment = described(DRIFT, metadata={"kind": kind}, rounds=3)
    setup = build(experiment, 0, device="cpu")
    before = setup.world.metadata
    simulate(setup.method, setup.world, 6, timeline=setup.timeline)
    world, moved = setup.world, {0: 2, 1: 2}
    federation, _ = load_federation(experiment, 0, moved)
    assert np.array_equal(world.group, federation.group)
    samples = own_samples(experiment, federation)
    extraction = Extraction(experiment, federation.shape, federation.classes, 0, "cpu")
    if kind == "mean-pca-shared":  # everybody's basis is the one they began with
        extraction.kind.fit(own_samples(experiment, setup.federation))
    wanted = extraction(samples)
    assert np.allclose(world.metadata.phi, wanted.phi, atol=1e-6)
    assert np.array_equal(world.metadata.phi[2:], before.phi[2:])
    if kind == "random-gaussian":
        assert not np.allclose(world.metadata.phi[:2], before.phi[:2], atol=1e-3)
        assert np.allclose(wanted.phi, extract_metadata(experiment, federation, 0, "cpu").phi)
    trained = world.trainer._samples["train"]
    assert np.array_equal(trained.x.numpy(), federation.train.x)
    assert np.array_equal(world.trainer._test_of, federation.test_of)


class Trainer:
    """A trainer with a state, which has to survive that it is built anew."""

    def __init__(self, federation):
        self.federation, self.kept, self.closed = federation, {}, False

    def close(self):
        self.closed = True

    def state(self):
        return {"local": np.arange(3)}

    def restore(self, arrays):
        self.kept = arrays


def test_clients_keep_their_own_statistics_when_the_trainer_is_built_anew():
    experiment = described(DRIFT)
    setup = build(experiment, 0, device="cpu", training=False)
    setup.world.trainer = before = Trainer(setup.federation)
    DataDrift(
        deal=lambda moved: load_federation(experiment, 0, moved)[0],
        samples=lambda dealt: own_samples(experiment, dealt),
        extraction=Extraction(experiment, (1, 8, 8), 10, 0, "cpu"),
        trainer=Trainer,
    )(setup.world, np.array([0, 4]), np.array([3, 0]))
    assert setup.world.trainer.kept["local"].tolist() == [0, 1, 2] and before.closed
    assert setup.world.trainer.federation.group[[0, 4]].tolist() == [3, 0]


def test_clients_find_their_new_group_and_its_model_scores():
    experiment = described(
        {**DRIFT, "round": 8}, {"round": 4, "kind": "join", "clients": [6]}, rounds=14, participation=1.0
    )
    found = cluster_experiment(experiment, 0)
    assert found["ari_per_round"][6] == found["ari_per_round"][-1] == found["ari_final"] == 1.0
    k = found["assignment"]
    assert k[0] == k[1] == k[7] != k[2] and k[6] == k[7]


# Runs


class Killed(Exception):
    pass


@pytest.mark.parametrize("kind", ["flameche", "oracle", "ifca"])
def test_a_run_with_events_that_was_killed_ends_as_one_that_was_not(tmp_path, kind):
    events = [
        DRIFT,
        {"round": 5, "kind": "leave", "clients": [4, 9]},
        {"round": 2, "kind": "join", "clients": 1},
    ]
    experiment = described(*events, method={"kind": kind})
    whole, _ = run_experiment(experiment, 0, tmp_path / "whole")

    def stop(record):
        if record["round"] == 4:
            raise Killed

    with pytest.raises(Killed):
        run_experiment(experiment, 0, tmp_path / "killed", on_round=stop)
    again, folder = run_experiment(experiment, 0, tmp_path / "killed")
    assert (folder / "summary.json").exists()
    for key in ("accuracy_per_round", "ari_per_round", "assignment", "accuracy"):
        assert whole[key] == again[key], key


def test_a_table_of_clients_tells_the_truth_of_the_end_and_no_accuracy_of_who_left(tmp_path):
    import pandas as pd

    experiment = described(DRIFT, {"round": 5, "kind": "leave", "clients": [4]})
    summary, folder = run_experiment(experiment, 0, tmp_path)
    table = pd.read_parquet(folder / "clients.parquet")
    assert table["group"].tolist() == [2, 2, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert table["accuracy"].isna().tolist() == [i == 4 for i in range(12)]
    assert summary["accuracy"] == pytest.approx(table["accuracy"].mean())


def test_a_report_of_a_living_run_can_be_drawn(tmp_path):
    from flameche.report import write_report

    run_experiment(described(DRIFT, {"round": 5, "kind": "leave", "clients": [4]}), 0, tmp_path / "runs")
    assert write_report(tmp_path / "runs", tmp_path / "page").exists()
