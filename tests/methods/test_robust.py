"""Robust mode: a crowd of small clusters, and split-merge moves, from sums alone."""

import io
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.registry import make_scheme
from flameche.crypto.secagg.driver import Costs
from flameche.em.seeding import CROWD, crowd, start
from flameche.em.spherical import Centroids, m_step, statistics
from flameche.metadata.extractors import Metadata
from flameche.methods.base import UNSEEN
from flameche.methods.flameche import DECAY, Flameche
from flameche.methods.robust import (
    GATHER,
    OFTEN,
    PARTING,
    PARTS,
    PATIENCE,
    TESTING,
    TURNING,
    TURNS,
)
from flameche.protocol.client import Cohort
from flameche.simulation.engine import Checkpoint, _checkpoint, _restore
from flameche.simulation.schedule import draw_participants
from tests.conftest import clustering_world, planted_metadata
from tests.methods.worlds import paper_world, partition


def made(metadata, group, *, seed=0, least=1, scheme=None, **options):
    world = clustering_world(metadata, group, rounds=100, seed=seed)
    world.min_cluster, world.scheme = least, scheme or world.scheme
    return Flameche(world, **options)


def play(method, participants, rounds, first=1):
    """Play rounds with the schedule of the method's own seed; count the moves made."""
    world = method.world
    return sum(
        method.round(r, draw_participants(world.seed, r, world.clients, participants))
        for r in range(first, first + rounds)
    )


def found(method):
    return adjusted_rand_score(method.world.group, method.finish().assignment)


def start_from(method, part):
    """Give a method the centroids of a partition, as if its crowd had just been merged to these."""
    terms = statistics(method.cohort.phi, method.cohort.weight)
    totals = np.stack([terms[part == k].sum(axis=0) for k in range(len(method.centroids))])
    method.centroids = m_step(totals, method.centroids)
    method.robust.gathering = method.robust.crowded = False
    return method


def settled(method, part):
    """The same, where everybody has taken part."""
    terms = statistics(method.cohort.phi, method.cohort.weight)
    np.add.at(method.running, part, terms)
    method.row[:] = part
    start_from(method, part)
    method.sums.offer(np.arange(len(part)), part, np.zeros(len(part)), method.centroids)
    return method


def badly(group):
    """Put groups 0 and 1 into cluster 0, and split group 2 into clusters 1 and 2."""
    part = np.array([0, 0, 1, 3])[group]
    part[np.flatnonzero(group == 2)[::2]] = 2
    return part


def in_the_clear(vectors, **_):
    """A session's result without its cryptography, which has tests of its own."""
    costs = np.zeros(len(vectors), np.int64)
    return vectors.sum(axis=0), list(range(len(vectors))), Costs(costs, costs, 0.0, 0.0)


def missing_labels(metadata, labels=1, seed=0):
    rng, counts = np.random.default_rng(seed), metadata.counts.copy()
    for own in counts:
        own[rng.choice(counts.shape[1], labels, replace=False)] = 0
    return Metadata(metadata.phi * (counts > 0)[:, :, None], counts)


# Groups are found


@pytest.mark.parametrize(
    ("clients", "participants"), [(40, 40), (40, 8), (40, 4), (100, 100), (100, 20), (100, 10), (400, 40)]
)
@pytest.mark.parametrize("m_step", ["seen", "decayed"])
def test_planted_groups_are_found_from_any_participation(clients, participants, m_step):
    for seed in range(2):
        method = made(*planted_metadata(clients, noise=0.15, seed=seed), seed=seed, m_step=m_step)
        play(method, participants, 80)
        assert found(method) == 1.0, seed


@pytest.mark.parametrize(
    ("sizes", "participants"),
    [([60, 20, 12, 8], 100), ([8, 12, 20, 60], 20), ([40, 40, 10, 10], 20), ([70, 10, 10, 10], 20)],
)
def test_groups_of_unequal_sizes_are_found(sizes, participants):
    even, _ = planted_metadata(400, noise=0.15)
    rows = np.concatenate([100 * g + np.arange(size) for g, size in enumerate(sizes)])
    for seed in range(3):
        method = made(even.of(rows), np.repeat(np.arange(4), sizes), seed=seed)
        play(method, participants, 60)
        assert found(method) == 1.0, seed


@pytest.mark.parametrize("m_step", ["seen", "decayed"])
def test_groups_are_found_though_every_client_lacks_a_label(m_step):
    for seed in range(3):
        metadata, group = planted_metadata(100, noise=0.1, seed=seed)
        method = made(missing_labels(metadata, seed=seed), group, seed=seed, m_step=m_step)
        play(method, 20, 60)
        assert found(method) == 1.0, seed


def test_a_class_mean_of_few_samples_counts_less():
    metadata, group = planted_metadata()
    counts = metadata.counts.copy()
    counts[:, 0], counts[:, 1], counts[:, 2] = 0, 32, 640
    cohort = made(Metadata(metadata.phi, counts), group).cohort
    assert cohort.weight[0].tolist() == [0, 0.5, 1, 10 / 64, 10 / 64]
    assert np.allclose(np.linalg.norm(cohort.phi, axis=2), 1)


@pytest.mark.parametrize("clusters", [1, 2])
def test_one_or_two_clusters_leave_nothing_to_merge_and_no_move_is_tried(clusters):
    metadata, group = planted_metadata(40, groups=2, noise=0.15)
    method = made(metadata, group, clusters=clusters)
    play(method, 20, 12)
    assert not method.robust.crowded and method.robust.tried == 0
    assert play(method, 20, 3, first=13) == 0
    assert found(method) == (1.0 if clusters == 2 else 0.0)
    assert set(method.serving().tolist()) == set(range(clusters))


# The start


@pytest.mark.parametrize(
    ("clients", "clusters", "guard", "rows"),
    [
        (100, 4, 1, 12),
        (24, 4, 1, 12),
        (23, 4, 1, 8),
        (15, 4, 1, 4),
        (6, 4, 1, 4),
        (100, 4, 3, 8),
        (100, 1, 1, 3),
    ],
)
def test_a_crowd_is_three_small_clusters_for_each_where_clients_and_the_guard_allow(
    clients, clusters, guard, rows
):
    assert crowd(clients, clusters, guard) == rows


@pytest.mark.parametrize(
    ("clients", "clusters", "guard", "rows"), [(3, 2, 1, 3), (24, 4, 1, 24), (25, 4, 1, 12), (24, 4, 3, 4)]
)
def test_few_clients_begin_each_alone_where_their_sums_may_be_opened(clients, clusters, guard, rows):
    assert start(clients, clusters, guard) == rows


@pytest.mark.parametrize("over", ["seen", "decayed"])
@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("sizes", [(2, 1), (2, 2), (3, 1, 1), (4, 3, 2, 1), (8, 8, 1, 1)], ids=str)
def test_few_clients_find_their_groups_even_groups_of_one(sizes, share, over):
    clients = sum(sizes)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(len(sizes)), sizes)
        centres = 1.0 + 0.5 * rng.random((len(sizes), 5, 20))
        phi = centres[group] + 0.1 * rng.standard_normal((clients, 5, 20))
        metadata = Metadata(phi, np.full((clients, 5), 10))
        method = made(metadata, group, seed=seed, clusters=len(sizes), m_step=over)
        play(method, max(2, round(share * clients)), round(16 / share))
        assert found(method) == 1.0


@pytest.mark.parametrize("sizes", [(5, 5, 5, 5), (8, 8, 1, 1)], ids=str)
def test_few_clients_find_their_groups_though_they_have_few_classes_in_common(sizes):
    found_ari, group = [], np.repeat(np.arange(len(sizes)), sizes)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        phi = (1.0 + 0.5 * rng.random((len(sizes), 10, 30)))[group]
        metadata = Metadata(phi + 0.25 * rng.standard_normal(phi.shape), np.full(phi.shape[:2], 20))
        method = made(missing_labels(metadata, 4, seed), group, seed=seed, clusters=len(sizes))
        play(method, len(group), 10)
        found_ari.append(found(method))
    assert np.mean(found_ari) > 0.7, found_ari


def test_under_masks_few_clients_do_not_begin_alone_since_one_has_nobody_to_mask_with():
    for seed in range(3):
        metadata, group = planted_metadata(20, noise=0.1, seed=seed)
        method = made(metadata, group, seed=seed, scheme=SecAgg(exact_codec(4.0, 20)[0]))
        with patch("flameche.protocol.session.aggregate", in_the_clear):
            play(method, 20, 12)
            assert not method.robust.few and found(method) == 1.0, seed


def test_who_comes_late_to_a_small_federation_may_still_be_a_group_of_its_own():
    metadata, group = planted_metadata(10, noise=0.1)
    method = made(metadata, np.where(np.arange(10) == 9, 3, group // 2), clusters=3)
    for r in range(1, 13):
        method.round(r, np.arange(9) if r < 12 else np.arange(10))
        assert (method.assignment[9] == UNSEEN) == (r < 12)
    play(method, 10, 5, first=13)
    assert len(set(method.assignment)) == 3
    assert not method.robust.crowded and method.robust.tried == 0


def test_the_first_clients_are_scattered_evenly_and_nobodys_cluster_is_known_meanwhile():
    method, r = made(*planted_metadata(100, noise=0.1)), 0
    while method.robust.gathering:
        r += 1
        clients = draw_participants(0, r, 100, 20)
        before = method.row.copy()
        assert not method.round(r, clients)
        came = clients[before[clients] == UNSEEN]
        assert np.ptp(np.bincount(method.row[came], minlength=12)) <= 1
        stayed = before != UNSEEN
        assert np.array_equal(method.row[stayed], before[stayed])
        assert method.serving().min() >= 0
        if method.robust.gathering:
            assert (method.assignment == UNSEEN).all()
    assert len(method.seen) >= GATHER > 20 * (r - 1) * 0.8
    method.round(r + 1, np.arange(100))
    assert method.assignment.min() >= 0  # merged, for now


def test_a_crowd_is_merged_for_good_when_clients_have_come_often_enough_and_clusters_keep_their_names():
    method = made(*planted_metadata(100, noise=0.1))
    heard, names = 0, []
    for r in range(1, 60):
        clients = draw_participants(0, r, 100, 20)
        crowded = method.robust.crowded
        method.round(r, clients)
        heard += 20
        names.append(method.finish().assignment)
        if not crowded:
            break
        assert method.robust.crowded == (method.robust.gathering or heard < OFTEN * len(method.seen))
    assert not method.robust.crowded
    assert (method.centroids.mass[4:] == 0).all() and (method.centroids.mass[:4] > 0).all()
    assert method.row[method.seen].max() < 4
    assert np.array_equal(names[-1], names[-2]) and partition(names[-1]) == partition(method.world.group)


def test_a_sum_that_everybody_has_left_is_no_cluster_when_the_crowd_is_merged():
    metadata, group = planted_metadata(100, noise=0.1)
    method = made(metadata, group)
    start_from(method, np.arange(12)[group * 3])
    method.robust.crowded = True
    theta, mass = method.centroids.theta.copy(), method.centroids.mass.copy()
    theta[1], mass[1] = np.where(np.arange(6) < 3, 1.0, -1.0), 100.0  # left by all, far from all
    method.centroids = Centroids(theta, mass)
    method.round(2, np.arange(100))
    assert partition(method.assignment) == partition(group)


def test_a_decayed_sum_that_everybody_has_left_is_in_no_cluster_when_the_crowd_is_merged():
    metadata, group = planted_metadata(100, noise=0.1)
    method = start_from(made(metadata, group, m_step="decayed"), np.arange(12)[group * 3])
    method.robust.crowded, method.robust.heard = True, 1000
    method.running[1], method.centroids = 50.0, replace(method.centroids, own=np.zeros((100, 12)))
    method.centroids.own[0, 1] = 50.0
    method.round(2, np.arange(100))
    assert not method.robust.crowded and method.running[:, -1].sum() == pytest.approx(100)
    assert method.centroids.own.sum(axis=1).tolist() == [1.0] * 100


def test_clients_that_never_come_do_not_keep_the_others_from_beginning():
    metadata, group = planted_metadata(20, noise=0.05)
    method, there = made(metadata, group), np.flatnonzero(np.arange(20) % 5 > 0)
    for r in range(1, 10):
        method.round(r, np.random.default_rng(r).permutation(there)[:8])
    assert not method.robust.gathering
    assert partition(method.serving()) == partition(group)


@pytest.mark.parametrize("participants", [1, 2, 3])
def test_a_few_participants_a_round_are_enough_to_begin(participants):
    method = made(*planted_metadata(noise=0.05))
    play(method, participants, 120)
    assert not method.robust.gathering and method.serving().min() >= 0
    assert found(method) == 1.0


def test_without_draws_permuting_clients_permutes_clusters():
    metadata, group = planted_metadata(noise=0.6)
    order = np.random.default_rng(1).permutation(40)
    place = np.argsort(order)
    first, second = made(metadata, group), made(metadata.of(order), group[order])
    part = np.random.default_rng(2).integers(0, len(first.centroids), 40)  # a crowd, else drawn
    for method, own in ((first, part), (second, part[order])):
        start_from(method, own)
        method.robust.crowded, method.robust.failed = True, PATIENCE  # who makes a move is drawn too
    for r in range(2, 10):
        clients = draw_participants(0, r, 40, 25)
        first.round(r, clients)
        second.round(r, np.sort(place[clients]))
        assert np.array_equal(first.assignment[order], second.assignment)
    assert len(np.unique(first.assignment)) == 4 and not first.robust.crowded


def test_with_moves_permuted_clients_come_to_the_same_clusters():
    metadata, group = planted_metadata(100, noise=0.2)
    order = np.random.default_rng(1).permutation(100)
    methods = [made(metadata, group), made(metadata.of(order), group[order])]
    for method in methods:
        start_from(method, badly(method.world.group))
        assert play(method, 100, 12, first=2) == 1
    one, other = (method.finish().assignment for method in methods)
    assert partition(one) == partition(other[np.argsort(order)]) == partition(group)


# Moves


@pytest.mark.parametrize("participants", [100, 50, 20, 10])
@pytest.mark.parametrize("m_step", ["seen", "decayed"])
def test_two_groups_in_one_cluster_and_one_in_two_are_put_right_by_a_move_and_not_without(
    participants, m_step
):
    for seed in range(2):
        metadata, group = planted_metadata(100, noise=0.2, seed=seed)
        method, still = (settled(made(metadata, group, seed=seed, m_step=m_step), badly(group)) for _ in "ab")
        still.robust.failed = PATIENCE
        assert play(method, participants, 100, first=2) >= 1 and found(method) == 1.0, seed
        assert play(still, participants, 40, first=2) == 0 and found(still) < 0.75, seed


def test_an_emptied_clusters_old_centroid_does_not_stand_in_the_way_of_a_move():
    metadata, group = planted_metadata(100, noise=0.2)
    method = start_from(made(metadata, group), np.array([0, 0, 2, 3])[group])
    nowhere = np.ones_like(method.centroids.theta[1])  # nearest to nobody, and heavy
    theta, mass = method.centroids.theta.copy(), method.centroids.mass.copy()
    theta[1], mass[1] = np.where(np.arange(6) < 3, nowhere, -nowhere), 100.0
    method.centroids = Centroids(theta, mass)
    method.round(2, np.arange(100))
    assert set(method.assignment.tolist()) == {0, 2, 3}
    assert play(method, 100, 12, first=3) == 1 and found(method) == 1.0


@pytest.mark.parametrize("m_step", ["seen", "decayed"])
@pytest.mark.parametrize("participants", [100, 20])
def test_a_right_clustering_is_left_alone_and_after_some_failures_nothing_more_is_asked(participants, m_step):
    for seed in range(2):
        metadata, group = planted_metadata(100, noise=0.2, seed=seed)
        method = start_from(made(metadata, group, seed=seed, m_step=m_step), group)
        ledger, r = method.world.ledger, 2
        while method.robust.failed < PATIENCE:
            assert not method.round(r, draw_participants(seed, r, 100, participants))
            seen = method.seen
            assert np.array_equal(method.assignment[seen], group[seen])
            r += 1
            assert r < 200
        assert method.robust.tried >= PATIENCE and method.robust.move is None
        before = ledger.up["exchange"].copy(), ledger.down["exchange"].copy()
        assert before[0].sum() > 0 < before[1].sum()
        assert play(method, participants, 10, first=r) == 0
        assert np.array_equal(ledger.up["exchange"], before[0])
        assert np.array_equal(ledger.down["exchange"], before[1])


def test_who_makes_a_move_does_not_judge_it_and_half_of_the_cluster_is_left_to():
    metadata, group = planted_metadata(100, noise=0.2)
    method, asked = start_from(made(metadata, group), badly(group)), []
    once = method.sums.once

    def watched(phase, clients, *how):
        asked.append((type(phase).__name__, set(clients.tolist())))
        return once(phase, clients, *how)

    method.sums.once = watched
    assert play(method, 100, 4, first=2) == 1
    names = [name for name, _ in asked]
    assert names == [*["Turn"] * TURNS, *["Statistics"] * PARTS, "PairedTest"] * (len(names) // 15)
    for first in range(0, len(names), 15):
        makers = asked[first][1]
        assert all(who == makers for _, who in asked[first : first + 14])
        assert asked[first + 14][1] == set(range(100)) - makers
    assert len(asked[0][1]) == 25  # of the 50 in the cluster


def split(metadata, group, **how):
    """Play a bad start until two clusters are merged; give the method, what was before, and the move."""
    method = settled(made(metadata, group, **how), badly(group))
    seen = {}
    make = method.robust._make

    def watched(move, options, chosen):
        seen.update(was=method.assignment.copy(), move=move, pair=move.pairs[chosen].tolist())
        make(move, options, chosen)

    method.robust._make = watched
    for r in range(2, 60):
        moved = method.round(r, draw_participants(method.world.seed, r, 100, 20))
        if moved and seen["move"].cluster not in seen["pair"] and 4 not in seen["pair"]:
            return method, seen["was"], seen["move"], seen["pair"]
    raise AssertionError("no move was made")


@pytest.mark.parametrize("m_step", ["seen", "decayed"])
def test_clients_of_a_split_cluster_that_were_away_are_unseen_and_served_by_an_e_step(m_step):
    method, was, move, (i, j) = split(*planted_metadata(100, noise=0.2, seed=1), seed=1, m_step=m_step)
    c, now = move.cluster, method.assignment
    (rest,) = {0, 1, 2, 3} - {c, i, j}
    assert (now[(was == i) | (was == j)] == i).all()  # merged
    assert (now[was == rest] == rest).all() and (now[was == UNSEEN] == UNSEEN).all()
    known = (was == c) & (move.side >= 0)
    assert set(now[known].tolist()) == {c, j}
    away = (was == c) & (move.side < 0)
    assert away.any() and (now[away] == UNSEEN).all()
    serving = method.serving()
    assert np.array_equal(serving[now != UNSEEN], now[now != UNSEEN])
    nearest, _ = method.cohort.e_step(np.flatnonzero(now == UNSEEN), method.centroids)
    assert np.array_equal(serving[now == UNSEEN], nearest)
    assert partition(serving) == partition(method.world.group)  # and that is right at once


def parted(seed):
    """Groups of which one is in two clusters: some of it with another group, for want of common classes."""
    metadata, group = planted_metadata(100, noise=0.2, seed=seed)
    some, others = np.flatnonzero(group == 2)[:9], np.flatnonzero(group == 2)[9:]
    counts, part = metadata.counts.copy(), group.copy()
    counts[np.ix_(some, [2, 3, 4])], counts[np.ix_(others, [0, 1])], part[some] = 0, 0, 1
    return Metadata(metadata.phi * (counts > 0)[:, :, None], counts), group, part


@pytest.mark.parametrize("m_step", ["seen", "decayed"])
def test_a_part_of_a_group_that_is_with_another_joins_its_own_by_a_move_and_not_without(m_step):
    for seed in (0, 3):
        metadata, group, part = parted(seed)
        method, still = (settled(made(metadata, group, seed=seed, m_step=m_step), part) for _ in "ab")
        still.robust.failed = PATIENCE
        moves, make = [], method.robust._make

        def watched(move, options, chosen, method=method, moves=moves, make=make):
            moves.append((move.cluster, move.pairs[chosen].tolist()))
            models = method.models
            make(move, options, chosen)
            assert method.models is models  # nobody's goes elsewhere

        method.robust._make = watched
        assert play(method, 20, 90, first=2) and found(method) == 1.0, seed
        assert all(c in pair or 4 in pair for c, pair in moves), moves
        play(still, 20, 60, first=2)
        assert found(still) < 0.85, seed


def test_the_clients_of_a_move_take_their_models_along():
    metadata, group = planted_metadata(100, noise=0.2)
    world = paper_world(np.eye(4)[group], group=group, metadata=metadata, share=0.5)
    method, models = start_from(Flameche(world), badly(group)), {}
    make = method.robust._make

    def watched(move, options, chosen):
        models.update(before=method.models, was=method.assignment.copy(), move=move, pair=move.pairs[chosen])
        make(move, options, chosen)

    method.robust._make = watched
    for r in range(2, 12):
        if method.round(r, np.arange(100)):
            break
    move, was = models["move"], models["was"]
    (i, j), c, before, after = models["pair"], move.cluster, models["before"].params, method.models.params
    (rest,) = {0, 1, 2, 3} - {c, i, j}
    larger = i if (was == i).sum() >= (was == j).sum() else j
    assert torch.equal(after[c], before[c]) and torch.equal(after[j], before[c])  # both halves
    assert torch.equal(after[i], before[larger])
    assert torch.equal(after[rest], before[rest]) and not torch.equal(before[j], before[c])


# Sums


def test_decayed_sums_are_nine_tenths_of_those_before_and_the_rounds_own():
    metadata, group = planted_metadata(noise=0.2)
    method = start_from(made(metadata, group, m_step="decayed"), group)
    method.robust.failed = PATIENCE
    terms = statistics(method.cohort.phi, method.cohort.weight)
    expected = np.zeros_like(method.running)
    for r in range(2, 8):
        clients = draw_participants(0, r, 40, 6)
        method.round(r, clients)
        for k in np.unique(group[clients]):  # the others are left as they are
            expected[k] = DECAY * expected[k] + terms[clients[group[clients] == k]].sum(axis=0)
        assert np.allclose(method.running, expected, atol=1e-5)
        theta = expected[:, :30] / np.maximum(np.repeat(expected[:, 30:35], 6, axis=1), 1e-300)
        heard = expected[:, -1] > 0
        assert np.allclose(method.centroids.theta.reshape(-1, 30)[heard], theta[heard], atol=1e-5)


@pytest.mark.parametrize("participants", [3, 5, 20, 40])
@pytest.mark.parametrize("m_step", ["seen", "decayed"])
def test_no_sum_over_fewer_than_the_least_is_ever_opened(participants, m_step):
    opened, counts = [], []
    method = made(*planted_metadata(noise=0.3), least=3, m_step=m_step)
    once, reveal, totals = method.sums.once, Cohort.open, method.sums.totals

    def watched_open(self, total):
        value = reveal(self, total)
        opened.extend([] if value is None else [value])
        return value

    def watched_once(phase, clients, where, centroids):
        opened.clear()
        result = once(phase, clients, where, centroids)
        terms = method.cohort.terms(phase, clients, where, centroids)
        size = np.bincount(where)
        assert terms.any(axis=1).all()  # a term of zeros would hide nobody
        counts.extend(size[size >= 3].tolist())
        assert len(opened) == (size >= 3).sum()
        return result

    def watched_totals(members, assignment):
        result = totals(members, assignment)
        counts.extend(round(float(total[-1])) for total in result if total is not None)
        return result

    method.sums.once, method.sums.totals = watched_once, watched_totals
    with patch.object(Cohort, "open", watched_open):
        play(method, participants, 40)
        start_from(method, badly(method.world.group))  # whatever came of the crowd: moves, too
        play(method, participants, 20, first=41)
    assert len(counts) > 5 and min(counts) >= 3


@pytest.mark.parametrize("participants", [3, 5, 20])
def test_no_session_of_fewer_than_the_least_is_ever_held(participants):
    sessions = []

    def watched(vectors, **how):
        sessions.append(int(vectors.any(axis=1).sum()))
        return in_the_clear(vectors, **how)

    metadata, group = planted_metadata(noise=0.3)
    method = made(metadata, group, least=3, scheme=SecAgg(exact_codec(4.0, 40)[0]))
    assert method.over == "decayed"
    with patch("flameche.protocol.session.aggregate", watched):
        play(method, participants, 40)
        start_from(method, badly(group))
        play(method, participants, 20, first=41)
    assert len(sessions) > 5 and min(sessions) >= 3


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
@pytest.mark.parametrize("least", [1, 3])
def test_a_move_is_made_under_encryption_as_in_the_clear(kind, least):
    metadata, group = planted_metadata(60, noise=0.2)
    history = {}
    for name in (kind, "plain"):
        scheme = make_scheme(name, clients=60, bound=1.0)  # as much as metadata of length one need
        method = start_from(made(metadata, group, least=least, scheme=scheme), badly(group))
        moved = [method.round(r, draw_participants(0, r, 60, 45)) for r in range(2, 9)]
        history[name] = moved, method.assignment.tolist(), method.finish().assignment.tolist()
    assert history[kind] == history["plain"] and any(history["plain"][0])
    assert partition(np.array(history[kind][2])) == partition(group)


class Slightly:
    """A phase whose sums come out a little small, as CKKS may open them."""

    def __init__(self, phase):
        self.phase, self.contribute = phase, phase.contribute
        if hasattr(phase, "of"):
            self.of = lambda clients: Slightly(phase.of(clients))

    def absorb(self, totals):
        return self.phase.absorb(totals * (1 - 1e-9))


def test_counts_that_come_out_slightly_small_change_no_decision():
    tried = 0
    for seed in range(4):
        metadata, group = planted_metadata(40, noise=0.4, seed=seed)
        exact, small = (start_from(made(metadata, group, seed=seed), badly(group)) for _ in range(2))
        once = small.sums.once
        small.sums.once = lambda phase, *how, once=once: once(Slightly(phase), *how)
        for r in range(2, 50):
            clients = draw_participants(seed, r, 40, 10)
            assert exact.round(r, clients) == small.round(r, clients)
            assert np.array_equal(exact.assignment, small.assignment)
            assert exact.robust.failed == small.robust.failed
        tried += exact.robust.tried
    assert tried > 10


def test_a_move_is_made_under_masks_as_over_decayed_sums_in_the_clear():
    metadata, group = planted_metadata(60, noise=0.2)
    masked = made(metadata, group, least=3, scheme=SecAgg(exact_codec(4.0, 60)[0]))
    plain = made(metadata, group, least=3, m_step="decayed")
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        moved = []
        for method in (start_from(masked, badly(group)), start_from(plain, badly(group))):
            moved.append([method.round(r, draw_participants(0, r, 60, 45)) for r in range(2, 9)])
    assert moved[0] == moved[1] and any(moved[0])
    assert np.array_equal(masked.assignment, plain.assignment) and found(plain) == 1.0


def test_groups_are_found_with_real_masks():
    metadata, group = planted_metadata(24, groups=3, noise=0.1)
    method = made(metadata, group, clusters=3, least=3, scheme=SecAgg(exact_codec(4.0, 24)[0]))
    play(method, 24, 5)
    assert partition(method.assignment) == partition(group)
    assert (method.world.ledger.up["metadata"] > 0).all()


# Restarts


def stored(method, r):
    """Write a checkpoint as a file holds it, and read it."""
    checkpoint = _checkpoint(method, method.world, r, 0.0)
    file = io.BytesIO()
    np.savez(file, **checkpoint.arrays)
    file.seek(0)
    with np.load(file) as arrays:
        return Checkpoint(r, {key: arrays[key] for key in arrays.files}, checkpoint.ledger, 0.0)


@pytest.mark.parametrize("m_step", ["seen", "decayed"])
@pytest.mark.parametrize("participants", [20, 8])
def test_a_run_stopped_after_every_round_goes_on_bit_identically(participants, m_step):
    metadata, group = planted_metadata(100, noise=0.3)
    whole, method = (settled(made(metadata, group, least=2, m_step=m_step), badly(group)) for _ in range(2))
    stages, moves = set(), 0
    for r in range(2, 40):
        clients = draw_participants(0, r, 100, participants)
        moved = whole.round(r, clients)
        assert method.round(r, clients) == moved
        moves += moved
        stages.add(None if method.robust.move is None else method.robust.move.stage)
        checkpoint = stored(method, r)
        method = made(metadata, group, least=2, m_step=m_step)
        _restore(method, method.world, checkpoint)
        again, state = method.state(), whole.state()
        assert again.keys() == state.keys()
        assert all(np.array_equal(again[key], state[key]) for key in state), r
        assert all(again[key].dtype == state[key].dtype for key in state), r
        assert np.array_equal(method.assignment, whole.assignment)
        assert method.world.ledger.state()["up"] == whole.world.ledger.state()["up"]
    assert stages >= {TESTING, PARTING if participants == 8 else None} and moves
    assert participants == 20 or TURNING in stages  # a move that takes several rounds was interrupted in each


# Costs

TERM = 30 + 5 + 1  # numbers: five blocks of six, their masses, one
DIRECTION = 30
VERDICT = 2 * 5 + 1  # of three clusters: one pair of others, two with each half; gains, squares, one


def sent(*numbers):
    return sum(4 * n + 48 for n in numbers)  # terms go up with four bytes a number, in an envelope


def received(*numbers):
    return sum(8 * n + 48 for n in numbers)  # sums come down with eight


def test_the_start_costs_nothing_but_the_centroids_of_the_crowd():
    method, everybody = made(*planted_metadata(60, noise=0.1)), np.arange(60)
    for r in range(1, OFTEN + 1):
        method.round(r, everybody)
    ledger = method.world.ledger
    assert not method.robust.crowded and "exchange" not in ledger.up
    assert ledger.up["metadata"].tolist() == [sent(TERM)] * 60
    assert ledger.down["centroids"].tolist() == [OFTEN * CROWD * 4 * 4 * (30 + 5)] * 60


def test_the_bytes_of_a_move_are_those_counted_by_hand():
    metadata, group = planted_metadata(60, groups=3, noise=0.3)
    method, everybody = start_from(made(metadata, group, clusters=3), group), np.arange(60)
    ledger = method.world.ledger
    assert not method.round(2, everybody)  # turned and parted
    move = method.robust.move
    assert move.stage == TESTING and move.halves[:, -1].min() >= 1
    makers = move.fitted
    assert makers.sum() == 10 and set(group[makers == 1].tolist()) == {move.cluster}
    turns, parts = TURNS * [DIRECTION], PARTS * [TERM]
    up, down = sent(*turns, *parts), received(*turns, *parts, *parts)  # both halves come back
    assert ledger.up["exchange"].tolist() == (makers * up).tolist()
    assert ledger.down["exchange"].tolist() == (makers * down).tolist()
    assert not method.round(3, everybody)  # judged: the halves and the sum come, a verdict goes
    assert method.robust.failed == 1
    halves = 2 * 4 * TERM
    assert ledger.up["exchange"].tolist() == (makers * up + (1 - makers) * sent(VERDICT)).tolist()
    assert (
        ledger.down["exchange"].tolist()
        == (makers * down + (1 - makers) * (received(VERDICT) + halves)).tolist()
    )


def test_papers_mode_exchanges_nothing_beside_its_sums():
    method = made(*planted_metadata(), mode="paper", tau=2)
    play(method, 20, 6)
    assert "exchange" not in method.world.ledger.up
