"""StoCFL: who merges with whom, in which order, and what happens to the models."""

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

from flameche.methods.base import UNSEEN
from flameche.methods.stocfl import SEARCHED, StoCfl, merge_order, threshold_for
from tests.methods.worlds import paper_world, partition, planted_world, play


def symmetric(count, pairs, rest=0.0):
    """A similarity matrix from its pairs."""
    similar = np.full((count, count), rest)
    np.fill_diagonal(similar, 1.0)
    for (a, b), value in pairs.items():
        similar[a, b] = similar[b, a] = value
    return similar


def drawn(count, seed):
    """A random similarity matrix, all values different."""
    half = np.triu(np.random.default_rng(seed).uniform(-1, 1, (count, count)), 1)
    return half + half.T + np.eye(count)


def parts(similar, threshold):
    return connected_components(similar >= threshold, directed=False)


# The order of merging

CHAIN = symmetric(3, {(0, 1): 0.9, (1, 2): 0.8})


@pytest.mark.parametrize(
    ("sizes", "threshold", "into"),
    [
        ([1, 1, 1], 0.95, [0, 1, 2]),
        ([1, 1, 1], 0.9, [0, 0, 2]),  # a threshold that is just met counts
        ([1, 1, 1], 0.85, [0, 0, 2]),
        ([1, 1, 1], 0.8, [0, 0, 0]),  # 0 and 2 are strangers, 1 ties them
        ([1, 2, 1], 0.85, [1, 1, 2]),  # the larger lives on
        ([1, 1, 3], 0.8, [2, 2, 2]),  # 0 and 1 are two, 2 is three
        ([1, 1, 2], 0.8, [0, 0, 0]),  # two each: the first
    ],
)
def test_a_chain_merges_by_hand(sizes, threshold, into):
    assert merge_order(CHAIN, np.array(sizes), threshold).tolist() == into


def test_the_most_similar_merge_first_and_then_count_as_one():
    # 1 first joins 2 (0.9), which then counts 4 and takes in 0 (3); in the other order 0 would win.
    sizes = np.array([3, 1, 3])
    assert merge_order(symmetric(3, {(0, 1): 0.8, (1, 2): 0.9}), sizes, 0.5).tolist() == [2, 2, 2]
    assert merge_order(symmetric(3, {(0, 1): 0.9, (1, 2): 0.8}), sizes, 0.5).tolist() == [0, 0, 0]


def test_of_equally_similar_pairs_the_first_goes_first():
    similar = symmetric(3, {(0, 1): 0.9, (1, 2): 0.9})
    assert merge_order(similar, np.array([3, 1, 3]), 0.5).tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(10))
def test_whoever_is_tied_by_similar_pairs_ends_together_and_nobody_else(seed):
    similar, sizes = drawn(8, seed), np.random.default_rng(seed).integers(1, 5, 8)
    before = sizes.copy()
    for threshold in (-0.9, 0.0, 0.4, 0.7, 0.99):
        into = merge_order(similar, sizes, threshold)
        assert partition(into) == partition(parts(similar, threshold)[1])
        assert np.array_equal(into[into], into)  # an heir is its own heir
    assert np.array_equal(sizes, before)


def test_the_largest_of_all_survives_every_merger():
    for seed in range(10):
        sizes = np.array([1, 1, 1, 9, 1, 1])
        into = merge_order(drawn(6, seed), sizes, -1.0)
        assert into.tolist() == [3] * 6


# The searched threshold

BLOCKS = symmetric(4, {(0, 1): 0.9, (2, 3): 0.9}, rest=0.1)


@pytest.mark.parametrize(("wanted", "low", "high"), [(1, -1, 0.1), (2, 0.1, 0.9), (4, 0.9, 1.0)])
def test_a_threshold_between_the_similarities_is_found(wanted, low, high):
    found = threshold_for(BLOCKS, wanted)
    assert low <= found <= high and parts(BLOCKS, found)[0] == wanted


@pytest.mark.parametrize("seed", range(5))
def test_where_all_similarities_differ_every_number_of_parts_can_be_had(seed):
    similar = drawn(9, seed)
    for wanted in range(1, 10):
        assert parts(similar, threshold_for(similar, wanted))[0] == wanted


def test_an_impossible_number_of_parts_gives_the_highest_threshold_with_fewer():
    found = threshold_for(BLOCKS, 3)  # both pairs part at once: two parts or four
    assert parts(BLOCKS, found)[0] == 2
    assert found == pytest.approx(0.9, abs=1e-15) and parts(BLOCKS, found + 1e-12)[0] == 4
    assert parts(BLOCKS, threshold_for(BLOCKS, 9))[0] <= 4


# The method


def test_in_the_first_round_every_participant_is_alone_unless_similar():
    world = paper_world([[1, 0], [2, 0], [0, 3], [5, 5]])
    method = StoCfl(world, threshold=0.8)
    assert method.round(1, np.array([2, 0, 1])) is True  # 0 and 1 merge: their updates have cosine 1
    assert partition(method.assignment) == {frozenset({0, 1}), frozenset({2})}
    assert method.assignment[3] == UNSEEN and method.clusters == 2 and len(method.models) == 3
    assert method.serving()[3] == 0  # the global model
    assert method.models.params[0].tolist() == [1, 1]  # mean of (1 0), (2 0), (0 3)


def test_without_a_pull_clusters_are_averaged_by_hand():
    method = StoCfl(paper_world([[1, 0], [2, 0], [0, 3]], share=0.5), threshold=0.8, mu=0.0)
    play(method, [[0, 1, 2], [0, 2]])
    pair, alone = method.assignment[[0, 2]]
    # Halfway: 0.5 and 1 give 0.75, then from there halfway to 1.
    assert method.models.params[1 + pair].tolist() == [0.875, 0]
    assert method.models.params[1 + alone].tolist() == [0, 2.25]
    assert method.models.params[0].tolist() == [(0.75 + 0.25) / 2, (0.25 + 1.75) / 2]


def test_the_pull_holds_clusters_by_the_global_model_and_leaves_the_global_model_alone():
    method = StoCfl(paper_world([[4, 0], [0, 4]]), threshold=0.8, mu=1.0)
    first, second = method.round(1, np.array([0, 1])), method.round(2, np.array([0, 1]))
    assert first is second is False
    calls = method.world.trainer.calls
    assert [(r, mu) for r, _, _, mu in calls] == [(1, 0.0), (1, 1.0), (1, 0.0), (2, 1.0), (2, 0.0)]
    assert method.models.params[0].tolist() == [2, 2]
    # Halfway between the own target and (2 2), the global model as the round began.
    assert method.models.params[1 + method.assignment[0]].tolist() == [3, 1]
    assert method.models.params[1 + method.assignment[1]].tolist() == [1, 3]


def test_a_new_cluster_starts_from_the_global_model_as_it_is_then():
    method = StoCfl(paper_world([[8, 0], [0, 8]], share=0.5), threshold=0.8, mu=0.0)
    play(method, [[0], [0], [1]])
    start = method.world.trainer.calls[-2][2]
    assert start == [[6, 0]]  # 0 -> 4 -> 6 without it
    assert method.models.params[1 + method.assignment[1]].tolist() == [3, 4]
    assert method.models.params[1 + method.assignment[0]].tolist() == [6, 0]  # and the others rest


def test_first_updates_are_measured_once_from_the_initial_model():
    world = paper_world([[1, 0], [0, 1]], starts=[[5, 5]])
    method = StoCfl(world, threshold=0.99)
    play(method, [[0], [0, 1], [0, 1]])
    # Three trainings for who is new, two for others: cluster and global.
    assert world.trainer.trained(1) == [[0]] * 3
    assert world.trainer.trained(2) == [[1], [0, 1], [0, 1]] and world.trainer.trained(3) == [[0, 1]] * 2
    assert world.trainer.calls[3][2] == [[5, 5]]  # client 1's, in round 2
    assert method.psi.params.tolist() == [[-4, -5], [-5, -4]]


def test_the_larger_clusters_model_survives():
    # The pair (clients 4, 5), first in number, and the four (0-3) are strangers until client 6 ties them.
    turn = np.radians([0, 0, 0, 0, 60, 60, 30])
    world = paper_world(np.stack([np.cos(turn), np.sin(turn)], axis=1), share=0.5)
    method = StoCfl(world, threshold=0.8, mu=0.0)
    play(method, [[4, 5, 0, 1, 2, 3]])
    assert method.assignment.tolist() == [1, 1, 1, 1, 0, 0, UNSEEN]
    pair, four = method.models.params[1:].tolist()
    assert method.round(2, np.array([6, 4, 0])) is True
    assert method.clusters == 1 and set(method.assignment.tolist()) == {0}
    assert pair != four and world.trainer.calls[-2][2] == [four] * 3  # all three train it, client 6 too


def test_a_cluster_is_compared_by_its_participants_of_the_round():
    # Client 1 alone has cosine 0.6 with client 2, the mean of 0 and 1 has 0.32.
    targets = [[1, 0], [0.8, 0.6], [0, 1]]
    for present, together in (([0, 1, 2], False), ([1, 2], True)):
        method = StoCfl(paper_world(targets), threshold=0.55)
        play(method, [[0, 1], present])
        assert method.assignment[0] == method.assignment[1]
        assert bool(method.assignment[2] == method.assignment[0]) is together


def test_clusters_without_participants_do_not_merge():
    method = StoCfl(paper_world([[1, 0], [1, 0], [1, 0]]), threshold=0.5)
    play(method, [[0], [1]])
    assert method.clusters == 2
    method.round(3, np.array([0, 1]))
    assert method.clusters == 1


def test_clusters_never_split():
    method = StoCfl(planted_world(noise=2.0), threshold=0.3)
    rng, before = np.random.default_rng(0), method.assignment.copy()
    mergers = 0
    for r in range(1, 15):
        mergers += method.round(r, rng.permutation(12)[:4])
        known = np.flatnonzero(before != UNSEEN)
        together = before[known][:, None] == before[known]
        assert (method.assignment[known][:, None] == method.assignment[known])[together].all()
        before = method.assignment.copy()
    assert mergers > 2


def test_the_global_model_is_fedavgs_whatever_the_clusters():
    from flameche.methods.fedavg import FedAvg

    stocfl, fedavg = StoCfl(planted_world(), clusters=3), FedAvg(planted_world())
    play(stocfl)
    play(fedavg)
    assert torch.equal(stocfl.models.params[0], fedavg.models.params[0])


def test_a_searched_threshold_is_paid_for_and_confessed_once():
    world = planted_world()
    method = StoCfl(world, clusters=3)
    play(method)
    ledger, size = world.ledger, 40  # four weights and a buffer, of eight bytes
    assert ledger.up["tuning"].tolist() == ledger.down["tuning"].tolist() == [size] * 12
    assert ledger.tuning_runs == 1 and ledger.oracle_knowledge == [SEARCHED]
    updates = world.trainer.targets.numpy()  # from an initial model of zeros
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    assert parts(unit @ unit.T, method.threshold)[0] == 3
    assert partition(method.assignment) == partition(world.group)


def test_a_given_threshold_costs_nothing():
    world = planted_world()
    play(StoCfl(world, threshold=0.5))
    assert "tuning" not in world.ledger.up and world.ledger.tuning_runs == 0
    assert world.ledger.oracle_knowledge == [] and world.trainer.trained(0) == []
