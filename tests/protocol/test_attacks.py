"""What can be solved from opened sums: nobody where the guard looks at them, some where it cannot.

The guard is on throughout. With hidden assignments it cannot know whose terms a sum holds (SECURITY.md).
"""

import numpy as np
import pytest

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.registry import make_scheme
from flameche.methods.flameche import Flameche
from flameche.methods.selection import select_clusters
from tests.attacks import OpenedSums, metadata_in
from tests.conftest import clustering_world, planted_metadata

BOUND, BLOCKS, FEATURES = 4.0, 4, 5
GUARD = 3


def guarded_world(kind, clients, groups):
    """A world in which no sum over fewer than three clients is opened; also its clients' metadata."""
    metadata, group = planted_metadata(
        clients=clients, groups=groups, noise=0.3, blocks=BLOCKS, features=FEATURES
    )
    world = clustering_world(metadata, group)
    world.min_cluster = GUARD
    if kind == "secagg":
        world.scheme = SecAgg(exact_codec(BOUND, clients)[0])
    else:
        world.scheme = make_scheme(kind, clients=clients, bound=BOUND)
    return world, metadata


def wrongest(solved, truth):
    """The largest error of the solved clients' metadata."""
    return max(np.abs(metadata_in(term, BLOCKS, FEATURES)[0] - truth[i]).max() for i, term in solved.items())


def test_a_sum_over_everybody_solves_for_nobody_and_a_sum_over_one_for_that_one():
    log = OpenedSums(5)
    log.add(np.arange(5), [10.0])
    assert log.solved() == {}
    log.add([2], [3.0])
    assert list(log.solved()) == [2] and log.solved()[2] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("secagg", {"m_step": "participants"}),
        ("bfv", {"m_step": "participants"}),
    ],
)
def test_sums_over_a_rounds_participants_solve_for_nobody_however_many_rounds(kind, options):
    world, _ = guarded_world(kind, clients=20, groups=2)
    method = Flameche(world, clusters=2, **options)
    log, draw = OpenedSums(20), np.random.default_rng(0)
    log.listen(method.sums)
    for r in range(1, 31):
        method.round(r, np.sort(draw.choice(20, 10, replace=False)))
    assert log.smallest >= GUARD and len(log.members) > 5 and log.solved() == {}
    sums = world.ledger
    assert sums.held_back["metadata"] > sums.asked["metadata"] / 2  # most later ones would have


def test_sums_over_the_same_clients_in_every_round_solve_for_nobody():
    world, _ = guarded_world("secagg", clients=20, groups=2)
    method, log = Flameche(world, clusters=2), OpenedSums(20)
    log.listen(method.sums)
    for r in range(1, 31):
        method.round(r, np.arange(20))
    assert len(log.members) > 20 and log.solved() == {}


@pytest.mark.parametrize("kind", ["secagg", "bfv"])
def test_choosing_how_many_clusters_there_are_solves_for_nobody(kind):
    world, _ = guarded_world(kind, clients=18, groups=2)
    select_clusters(world, 3)
    log = OpenedSums(18)
    for opening in world.ledger.openings:
        log.add(np.array(opening.clients), np.zeros(1))
    assert log.smallest >= GUARD and len(log.members) > 5 and log.solved() == {}
    for known in range(18):  # nor for one who knows its own term
        mine = OpenedSums(18, [*log.members], [*log.values])
        mine.add([known], np.zeros(1))
        assert set(mine.solved()) == {known}


def test_hidden_assignments_do_not_keep_every_client_from_being_solved():
    world, metadata = guarded_world("bfv", clients=24, groups=2)
    method = Flameche(world, clusters=2, hide_assignments=True)
    log, draw = OpenedSums(24), np.random.default_rng(0)
    log.listen(method.sums)
    for r in range(1, 61):
        method.round(r, np.sort(draw.choice(24, 12, replace=False)))
    solved = log.solved()
    assert log.smallest >= GUARD and 0 < len(solved) < 24
    assert wrongest(solved, metadata.phi) < 1e-6
