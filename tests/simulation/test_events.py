"""Clients that come late, leave, come back and drift: who is drawn, who is told, what is judged."""

import numpy as np
import pytest

from flameche.methods.base import UNSEEN
from flameche.methods.fedavg import FedAvg
from flameche.methods.flameche import Flameche
from flameche.methods.oracle import Oracle
from flameche.rng import stream
from flameche.simulation.engine import _ari, simulate
from flameche.simulation.events import Event, Hearing, Timeline
from flameche.simulation.schedule import draw_participants
from tests.conftest import clustering_world, planted_metadata
from tests.simulation.test_engine import Memory

CLIENTS, ROUNDS = 40, 24


def event(r, kind, *clients, to=-1):
    return Event(r, kind, np.array(clients), to)


class Drift:
    """Gives drifting clients the metadata of somebody of the other group; counts how often it is asked."""

    def __init__(self, metadata, group):
        self.metadata, self.group, self.asked = metadata, group, 0

    def __call__(self, world, clients, to):
        self.asked += 1
        world.group = world.group.copy()
        world.group[clients] = to
        if world.has_metadata:
            rows = self.metadata.of(
                np.array([np.flatnonzero(self.group == g)[i % 5] for i, g in enumerate(to)])
            )
            world.known_metadata = world.metadata.with_rows(clients, rows)


def live(events, *, kind=Flameche, recorder=None, seed=0, participants=10, **options):
    metadata, group = planted_metadata(CLIENTS, noise=0.15)
    world = clustering_world(metadata, group, rounds=ROUNDS, seed=seed)
    method = kind(world, **options)
    timeline = Timeline(CLIENTS, events, Drift(metadata, group))
    return simulate(method, world, participants, recorder=recorder, timeline=timeline), method, world


def test_without_events_everybody_is_there_and_the_schedule_is_as_it_always_was():
    assert Timeline(5).present(3).tolist() == [0, 1, 2, 3, 4]
    for r in range(1, 50):
        before = np.sort(stream(7, "schedule", r).choice(100, size=20, replace=False))
        assert np.array_equal(draw_participants(7, r, 100, 20), before)
        assert np.array_equal(draw_participants(7, r, 100, 20, np.arange(100)), before)


def test_who_joins_is_absent_from_the_start_unless_it_left_before():
    timeline = Timeline(6, [event(9, "join", 1, 2), event(3, "leave", 2, 4), event(5, "join", 0)])
    assert [timeline.present(r).tolist() for r in (0, 2, 3, 5, 9)] == [
        [2, 3, 4, 5],
        [2, 3, 4, 5],
        [3, 5],
        [0, 3, 5],
        [0, 1, 2, 3, 5],
    ]


def test_only_who_is_there_is_drawn_and_as_many_as_there_are():
    here = np.array([3, 5, 11])
    assert draw_participants(0, 1, 100, 20, here).tolist() == [3, 5, 11]
    drawn = np.unique(np.concatenate([draw_participants(0, r, 100, 2, here) for r in range(30)]))
    assert drawn.tolist() == [3, 5, 11]


def test_late_joiners_and_leavers_take_part_in_their_time_alone():
    late, gone = (0, 11, 22, 33), (1, 2, 12)
    result, method, _ = live([event(8, "join", *late), event(15, "leave", *gone)])
    for record in result.rounds:
        there = set(record["participants"])
        assert record["round"] >= 8 or not there & set(late)
        assert record["round"] < 15 or not there & set(gone)
        assert len(there) == 10
    assert (method.assignment[list(gone)] == UNSEEN).all()
    assert result.ari_final == 1.0 and (result.outcome.assignment[list(gone)] == UNSEEN).all()
    assert sum(result.rounds[-1]["sizes"]) <= CLIENTS - 3


def test_a_run_begins_with_those_who_are_there():
    metadata, group = planted_metadata(CLIENTS, noise=0.15)
    world, away = clustering_world(metadata, group, rounds=3), []
    method = Flameche(world)
    timeline = Timeline(CLIENTS, [event(3, "join", 4, 5)])
    simulate(method, world, 10, timeline=timeline, on_round=lambda _: away.append(int(method.left.sum())))
    assert away == [2, 2, 0]


def test_a_drift_is_judged_by_the_truth_of_its_time():
    result, method, world = live([event(16, "drift", 0, 1, 2, to=3)], participants=CLIENTS)
    assert [world.group[i] for i in (0, 1, 2, 3)] == [3, 3, 3, 0]
    assert result.rounds[14]["ari"] == 1.0 and result.rounds[15]["ari"] == 1.0
    assert method.assignment[0] == method.assignment[39] != method.assignment[3]
    absent = np.setdiff1d(np.arange(10), draw_participants(0, ROUNDS, CLIENTS, 10))[:3]
    away, *_ = live([event(ROUNDS, "drift", *absent, to=3)])  # who had no time to say so
    assert away.rounds[-2]["ari"] == 1.0 > away.rounds[-1]["ari"] and away.ari_final == 1.0


def test_events_of_one_round_drift_at_once():
    metadata, group = planted_metadata(CLIENTS, noise=0.15)
    world = clustering_world(metadata, group)
    drift = Drift(metadata, group)
    timeline = Timeline(CLIENTS, [event(2, "drift", 5, to=1), event(2, "drift", 3, 4, to=2)], drift)
    timeline.play(1, FedAvg(world), world)
    assert drift.asked == 0
    timeline.play(2, FedAvg(world), world)
    assert drift.asked == 1 and world.group[:6].tolist() == [0, 0, 0, 2, 2, 1]


EVENTS = [
    event(6, "join", 0, 11, 22, 33),
    event(9, "drift", 3, 4, 14, to=2),
    event(12, "leave", 5, 6, 36, 37),
    event(15, "drift", 3, to=1),
    event(17, "join", 5, 6),
]


@pytest.mark.parametrize("options", [{}, {"tau": 5}])
@pytest.mark.parametrize("stop", [1, 5, 6, 8, 9, 12, 14, 16, 17, 23, 24])
def test_a_run_with_events_resumed_after_any_round_equals_one_never_stopped(stop, options):
    memory = Memory()
    whole, method, world = live(EVENTS, recorder=memory, **options)
    memory.forget_after(stop)
    again, other, world_again = live(EVENTS, recorder=memory, **options)
    assert [r["assignment"] for r in whole.rounds] == [r["assignment"] for r in again.rounds]
    np.testing.assert_equal([r["ari"] for r in whole.rounds], [r["ari"] for r in again.rounds])
    assert np.array_equal(method.centroids.theta, other.centroids.theta)
    assert np.array_equal(world.group, world_again.group)
    assert np.array_equal(world.metadata.phi, world_again.metadata.phi)
    assert whole.rounds[-1]["bytes_up"] == again.rounds[-1]["bytes_up"]


@pytest.mark.parametrize("kind", [Oracle, FedAvg])
def test_a_method_that_cannot_hear_plays_on(kind):
    result, method, _ = live(EVENTS, kind=kind)
    assert not isinstance(method, Hearing) and len(result.rounds) == ROUNDS
    if kind is Oracle:
        assert {record["ari"] for record in result.rounds} == {1.0}  # it is told the truth of every round
        assert method.assignment[[3, 4]].tolist() == [1, 2]


def test_flameche_can_hear_and_is_told_at_first_who_is_not_there():
    method, timeline = live([])[1], Timeline(CLIENTS, [event(3, "join", 4, 5), event(2, "leave", 6)])
    assert isinstance(method, Hearing)
    timeline.begin(method)
    assert np.flatnonzero(method.left).tolist() == [4, 5]
    for r, away in ((1, [4, 5]), (2, [4, 5, 6]), (3, [6])):
        timeline.play(r, method, method.world)
        assert np.flatnonzero(method.left).tolist() == away


def test_ari_is_over_those_who_are_there_whatever_a_method_says_of_the_others():
    _, method, world = live([])
    assignment = world.group.copy()
    assignment[:5] = 3
    assert _ari(method, world.group, assignment, np.arange(5, CLIENTS)) == 1.0
    assert _ari(method, world.group, assignment, np.arange(CLIENTS)) < 1.0


class Scores:
    """A trainer that scores client i with i; it trains nothing."""

    def __init__(self, trainer):
        self._trainer = trainer

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    def accuracy(self, models, pick):
        return np.arange(len(pick)) / 100


def test_accuracy_is_over_those_who_are_there():
    metadata, group = planted_metadata(CLIENTS, noise=0.15)
    world = clustering_world(metadata, group, rounds=3)
    world.trainer = Scores(world.trainer)
    timeline = Timeline(CLIENTS, [event(2, "leave", *range(20)), event(3, "join", 0)])
    result = simulate(FedAvg(world), world, 10, timeline=timeline)
    whole, half, end = np.arange(40) / 100, np.arange(20, 40) / 100, np.array([0, *range(20, 40)]) / 100
    assert [r["accuracy"] for r in result.rounds] == pytest.approx([whole.mean(), half.mean(), end.mean()])
    assert result.mean_accuracy == pytest.approx(end.mean())
    assert np.isnan(result.accuracy[1:20]).all() and not np.isnan(result.accuracy[20:]).any()
