import numpy as np
import pytest

from flameche.methods.flameche import Flameche
from flameche.methods.oracle import Oracle
from flameche.simulation.engine import Checkpoint, simulate
from flameche.simulation.schedule import draw_participants
from tests.conftest import clustering_world, planted_metadata


class Memory:
    """A recorder that remembers, and can be told to forget all after a round."""

    def __init__(self):
        self.records, self.checkpoints = [], {}

    def resume(self):
        if not self.checkpoints:
            return None, []
        last = max(self.checkpoints)
        return self.checkpoints[last], self.records[:last]

    def add_round(self, record):
        self.records.append(record)

    def save(self, checkpoint: Checkpoint):
        self.checkpoints[checkpoint.round] = checkpoint

    def forget_after(self, round):
        self.checkpoints = {r: c for r, c in self.checkpoints.items() if r <= round}
        self.records = self.records[:round]


def test_the_schedule_draws_distinct_clients_from_the_seed_alone():
    first = draw_participants(0, 3, 100, 20)
    assert len(set(first.tolist())) == 20 and first.max() < 100
    assert np.array_equal(first, draw_participants(0, 3, 100, 20))
    assert not np.array_equal(first, draw_participants(0, 4, 100, 20))
    assert not np.array_equal(first, draw_participants(1, 3, 100, 20))


def test_every_client_is_drawn_about_equally_often():
    drawn = np.concatenate([draw_participants(0, r, 50, 10) for r in range(2000)])
    share = np.bincount(drawn, minlength=50) / 2000
    assert np.abs(share - 0.2).max() < 0.05


@pytest.mark.parametrize("stop", [1, 7, 19])
def test_a_run_resumed_after_any_round_equals_one_never_stopped(stop):
    metadata, group = planted_metadata(noise=0.6)

    def play(recorder):
        world = clustering_world(metadata, group, rounds=20)
        method = Flameche(world, tau=5)
        return simulate(method, world, 8, recorder=recorder), method

    memory = Memory()
    whole, method = play(memory)
    memory.forget_after(stop)
    again, method2 = play(memory)
    assert [r["assignment"] for r in whole.rounds] == [r["assignment"] for r in again.rounds]
    assert np.array_equal(method.centroids.theta, method2.centroids.theta)
    assert np.array_equal(method.error, method2.error)
    assert whole.rounds[-1]["bytes_up"] == again.rounds[-1]["bytes_up"]


def test_records_tell_the_round():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group, rounds=3)
    seen = []
    result = simulate(Oracle(world), world, 8, on_round=seen.append)
    assert [r["round"] for r in seen] == [1, 2, 3] and seen == result.rounds
    assert seen[0]["ari"] == 1.0 and len(seen[0]["participants"]) == 8
    assert result.participations.sum() == 24


def test_the_stored_ari_is_over_seen_clients_and_the_final_one_over_all():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group, rounds=2)
    result = simulate(Flameche(world), world, 8)
    assert result.outcome.assignment is not None and len(result.outcome.assignment) == 40
    assert np.isfinite(result.ari) and np.isfinite(result.ari_final)


@pytest.mark.parametrize(("groups", "told"), [(4, True), (1, False)])
def test_over_how_many_clients_the_ari_is_is_said_only_where_there_is_one(groups, told):
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group % groups, rounds=2)
    result = simulate(Flameche(world), world, 8)
    assert np.isnan(result.ari) != told
    assert any(note.startswith("ARI is over") for note in world.notes) == told
