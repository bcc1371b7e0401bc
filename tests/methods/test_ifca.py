"""IFCA: clients choose by loss, models are averaged, and of several starts the best counts."""

import numpy as np
import pytest
import torch

from flameche.methods.base import UNSEEN
from flameche.methods.ifca import NOTHING_HELD, Ifca
from flameche.protocol.ledger import Ledger
from flameche.protocol.updates import protect_updates
from flameche.training.models import Models
from tests.methods.worlds import paper_world, play

# Two clients left of zero, two right of it, and two good starts or two bad ones.
SIDES = [[-2.0], [-3.0], [2.0], [4.0]]
GOOD, BAD = [[-1.0], [1.0]], [[0.0], [100.0]]
ZERO = Models(*torch.zeros(2, 1, 1, dtype=torch.float64))


def rows(method):
    return method.models.params[:, 0].tolist()


# One start


def test_each_client_chooses_the_planted_model_on_its_side():
    method = Ifca(paper_world(SIDES, starts=GOOD), clusters=2, restarts=1)
    assert method.round(1, np.array([0, 1, 2, 3])) is False
    assert method.assignment.tolist() == [0, 0, 1, 1]
    assert rows(method) == [-2.5, 3]
    assert method.world.trainer.calls[0][2] == [[-1], [-1], [1], [1]]  # each trained the one it chose


def test_the_choice_is_the_lowest_training_loss_and_the_first_of_equals():
    world = paper_world([[0.4], [0.5], [0.6]], starts=[[0.0], [1.0], [5.0]])
    method = Ifca(world, clusters=3, restarts=1)
    method.round(1, np.array([2, 1, 0]))
    loss = (world.trainer.targets - world.trainer.starts.T) ** 2
    assert method.assignment.tolist() == loss.argmin(dim=1).tolist() == [0, 0, 1]


def test_the_first_model_may_be_a_random_one_and_the_next_is_chosen():
    world, other = paper_world(SIDES * 10, starts=GOOD), paper_world(SIDES * 10, starts=GOOD)
    method, alone = (Ifca(w, clusters=2, restarts=1, first="random") for w in (world, other))
    method.round(1, np.arange(30))
    drawn = method.assignment.copy()
    assert 8 < drawn[:30].sum() < 22 and (drawn[30:] == UNSEEN).all()  # a coin for each
    alone.round(1, np.array([7]))
    assert alone.assignment[7] == drawn[7]  # whoever else is there
    method.models = Models(torch.tensor(GOOD).double(), method.models.buffers)  # one for each side
    method.round(2, np.arange(40))
    assert method.assignment[:30].tolist() == ([0, 0, 1, 1] * 8)[:30]
    assert set(method.assignment[30:].tolist()) == {0, 1}


def test_a_client_may_change_its_mind():
    method = Ifca(paper_world(SIDES, starts=GOOD), clusters=2, restarts=1)
    method.round(1, np.arange(4))
    method.world.trainer.targets[0] = 5.0
    method.round(2, np.array([0, 1]))
    assert method.assignment.tolist() == [1, 0, 1, 1]
    assert rows(method) == [-3, 5]


def test_a_model_that_nobody_chose_keeps_its_weights():
    method = Ifca(paper_world(SIDES, starts=BAD), clusters=2, restarts=1)
    play(method, [[0, 1], [2, 3]])
    assert method.assignment.tolist() == [0] * 4 and rows(method) == [3, 100]


def test_a_model_that_diverged_is_nobodys_choice():
    method = Ifca(paper_world(SIDES, starts=[[np.nan], [1.0]]), clusters=2, restarts=1)
    method.round(1, np.arange(4))
    assert method.assignment.tolist() == [1] * 4


def test_one_never_seen_is_served_the_model_with_the_lowest_loss():
    method = Ifca(paper_world(SIDES, starts=GOOD), clusters=2, restarts=1)
    method.round(1, np.array([0, 2]))
    assert method.assignment.tolist() == [0, UNSEEN, 1, UNSEEN]
    assert method.serving().tolist() == [0, 0, 1, 1]
    assert method.finish().assignment.tolist() == [0, 0, 1, 1]


def test_at_the_end_everybody_chooses_a_last_time():
    method = Ifca(paper_world(SIDES, starts=GOOD), clusters=2, restarts=1)
    method.round(1, np.arange(4))
    method.world.trainer.targets[0] = 5.0
    assert method.finish().assignment.tolist() == [1, 0, 1, 1]
    assert method.assignment.tolist() == [0, 0, 1, 1]


# Several starts


def test_row_s_k_plus_k_is_cluster_k_of_start_s():
    method = Ifca(paper_world(SIDES, starts=BAD + GOOD, held=SIDES), clusters=2, restarts=2)
    assert rows(method) == [0, 100, -1, 1]
    method.round(1, np.arange(4))
    assert rows(method) == [0.25, 100, -2.5, 3]  # all in one; left and right
    assert method.choice.tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert method.world.trainer.trained(1) == [[0, 1, 2, 3, 0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("starts", "best", "served"), [(BAD + GOOD, 1, [2, 2, 3, 3]), (GOOD + BAD, 0, [0, 0, 1, 1])]
)
def test_the_start_with_the_best_accuracy_counts(starts, best, served):
    method = Ifca(paper_world(SIDES, starts=starts, held=SIDES), clusters=2, restarts=2)
    method.round(1, np.arange(4))
    assert method.best == best and method.assignment.tolist() == [0, 0, 1, 1]
    assert method.serving().tolist() == served


def test_the_best_start_is_remembered_over_a_restart():
    first, second = (
        Ifca(paper_world(SIDES, starts=BAD + GOOD, held=SIDES), clusters=2, restarts=2) for _ in range(2)
    )
    first.round(1, np.arange(4))
    second.restore(first.state())
    second.models, second.assignment = first.models, first.assignment
    assert second.serving().tolist() == [2, 2, 3, 3]


def test_held_back_samples_decide_not_those_trained_on():
    held = np.full((4, 1), 0.25)  # what the bad start happens to know
    world = paper_world(SIDES, starts=BAD + GOOD, held=held)
    method = Ifca(world, clusters=2, restarts=2)
    method.round(1, np.arange(4))
    assert method.best == 0 and method.assignment.tolist() == [0] * 4
    assert method.validation[0].tolist() == [1, 1, 1, 1]
    assert method.validation[1] == pytest.approx(1 / (1 + np.array([2.75, 2.75, 2.75, 2.75])))
    assert NOTHING_HELD not in world.notes


def test_where_nothing_is_held_back_training_accuracy_decides_and_a_note_says_so_once():
    world = paper_world(SIDES, starts=BAD + GOOD)
    method = Ifca(world, clusters=2, restarts=2)
    play(method, [[0, 1, 2, 3]] * 2)
    assert method.best == 1 and world.notes == [NOTHING_HELD]


def test_each_clients_latest_accuracy_counts_and_those_never_seen_do_not():
    world = paper_world(SIDES, starts=BAD + GOOD, held=SIDES)
    method = Ifca(world, clusters=2, restarts=2)
    method.round(1, np.array([0, 2]))
    assert np.isnan(method.validation[:, [1, 3]]).all() and np.isfinite(method.validation[:, [0, 2]]).all()
    # Client 0's accuracy stays from round 1 while 3 is asked now.
    before = method.validation[:, 0].copy()
    method.round(2, np.array([3]))
    assert np.array_equal(method.validation[:, 0], before) and method.best == 1


def test_when_another_start_becomes_the_best_everybody_moves_with_it():
    held = [[-2.0], [0.0], [0.0], [0.0]]
    world = paper_world(SIDES, starts=GOOD + BAD, held=held)
    method = Ifca(world, clusters=2, restarts=2)
    method.round(1, np.array([0]))
    assert method.best == 0 and method.assignment.tolist() == [0, UNSEEN, UNSEEN, UNSEEN]
    world.trainer.share = 0.0
    world.trainer.targets[1:] = 1.0
    method.models = method.models.with_rows(np.array([2]), ZERO)
    method.round(2, np.array([1, 2, 3]))
    assert method.best == 1 and method.assignment.tolist() == [0] * 4
    assert set(method.serving().tolist()) == {2}


@pytest.mark.parametrize("restarts", [1, 3])
def test_all_starts_are_paid_for(restarts):
    world = paper_world(SIDES, starts=np.arange(6.0)[:, None], held=SIDES)
    method = Ifca(world, clusters=2, restarts=restarts)
    play(method, [[0, 1], [1]])
    model = 16  # one weight and a buffer, of eight bytes
    assert world.ledger.down["model"].tolist() == [restarts * 2 * model * n for n in (1, 2, 0, 0)]
    assert world.ledger.up["model"].tolist() == [restarts * model * n for n in (1, 2, 0, 0)]
    assert world.ledger.up["assignment"].tolist() == [8 * restarts * n for n in (1, 2, 0, 0)]
    assert world.ledger.tuning_runs == restarts - 1


# Protected updates


def test_a_sum_over_one_client_is_never_opened():
    world = paper_world(SIDES, starts=GOOD)
    world.updates = protect_updates("secagg", 4, 2, world.ledger)
    method = Ifca(world, clusters=2, restarts=1)
    method.round(1, np.array([0, 1, 2]))
    assert rows(method) == pytest.approx([-2.5, 1], abs=1e-9)  # client 2 is alone: its model stays as it was


class Sealed:
    """Updates of which the server passes on a sealed sum of 1000 bytes, as CKKS does."""

    model_bytes = 0

    def total(self, vectors, clients):
        self.model_bytes = 1000
        return vectors.sum(axis=0) if len(clients) else None


def test_sealed_models_are_downloaded_sealed_all_of_them():
    world = paper_world(SIDES, starts=GOOD)
    world.updates, world.ledger = Sealed(), Ledger(4)
    method = Ifca(world, clusters=2, restarts=1)
    play(method, [[0, 1, 2, 3], [0, 1]])
    assert world.ledger.down["model"].tolist() == [2 * 16 + 2 * 1000] * 2 + [2 * 16] * 2
