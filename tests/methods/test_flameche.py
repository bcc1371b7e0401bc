"""Paper mode: Algorithm 1, rule by rule."""

import numpy as np
import pytest

from flameche.metadata.extractors import Metadata
from flameche.methods.base import UNSEEN
from flameche.methods.flameche import Flameche
from flameche.simulation.engine import simulate
from tests.conftest import clustering_world, planted_metadata


def cluster(metadata, group, *, participants=10, rounds=40, seed=0, **options):
    world = clustering_world(metadata, group, rounds=rounds, seed=seed)
    method = Flameche(world, **options)
    return simulate(method, world, participants), method


def missing_labels(metadata, seed=0):
    rng = np.random.default_rng(seed)
    counts = metadata.counts.copy()
    counts[np.arange(len(counts)), rng.integers(0, counts.shape[1], len(counts))] = 0
    return Metadata(metadata.phi * (counts > 0)[:, :, None], counts)


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found(seed):
    result, _ = cluster(*planted_metadata(seed=seed), seed=seed)
    assert result.ari_final == 1.0


def test_as_many_rounds_as_it_takes_at_full_participation_reach_a_fixed_point():
    metadata, group = planted_metadata(noise=0.4)
    _, method = cluster(metadata, group, participants=40, tau=0)
    before = method.assignment.copy()
    method.round(41, np.arange(40))
    assert np.array_equal(method.assignment, before)


def test_permuting_clients_permutes_assignments():
    metadata, group = planted_metadata(noise=0.4)
    order = np.random.default_rng(1).permutation(40)
    first, second = (
        Flameche(clustering_world(meta, truth), tau=0)
        for meta, truth in ((metadata, group), (metadata.of(order), group[order]))
    )
    part = np.arange(40) % 4
    for method, start in ((first, part), (second, part[order])):  # the same first partition
        everybody = np.arange(40)
        method.sums.offer(everybody, start, np.zeros(40), method.centroids)
        method.assignment[:] = start
        method._m_step(everybody)
        method.init = "given"
        for r in range(1, 6):
            method.round(r, everybody)
    assert np.array_equal(first.assignment[order], second.assignment)


def test_the_first_round_starts_from_a_balanced_random_partition():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group)
    method = Flameche(world)
    method._partition(np.arange(12))
    assert (method.assignment == UNSEEN).all()
    assert method.centroids.mass[:, 0].tolist() == [3, 3, 3, 3]


def test_vectors_catch_nearly_everybody_in_one_cluster_in_a_narrow_cone():
    biggest = []
    for seed in range(10):
        metadata, group = planted_metadata(seed=seed)
        world = clustering_world(metadata, group, seed=seed)
        method = Flameche(world, init="vectors", tau=0)
        method.round(1, np.arange(40))
        biggest.append(np.bincount(method.assignment).max())
    assert np.mean(biggest) > 30


def test_the_centroids_are_means_over_all_seen_clients_or_over_participants():
    metadata, group = planted_metadata()
    for over, members in (("seen", np.arange(30)), ("participants", np.arange(15, 30))):
        world = clustering_world(metadata, group)
        method = Flameche(world, m_step=over, tau=0)
        method.round(1, np.arange(15))
        method.round(2, np.arange(15, 30))
        for k in range(4):
            mine = members[method.assignment[members] == k]
            if len(mine):
                assert np.allclose(method.centroids.theta[k], metadata.phi[mine].mean(axis=0), atol=1e-6)


def test_a_cluster_without_participants_keeps_model_and_centroid():
    metadata, group = planted_metadata()
    _, method = cluster(metadata, group, m_step="participants", tau=0)
    k = method.assignment[0]
    others = np.flatnonzero(method.assignment != k)
    before = method.centroids.theta[k].copy()
    method.round(41, others)
    assert np.array_equal(method.centroids.theta[k], before)


def test_reclustering_shares_the_worst_cluster_with_the_empty_ones():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group, rounds=100)
    method = Flameche(world, tau=1, empty="seen")
    everybody = np.arange(40)
    method.sums.offer(everybody, np.zeros(40, np.int64), np.zeros(40), method.centroids)
    method.assignment[:] = np.where(group == 0, 0, 1)  # clusters 2 and 3 are empty
    method.error[:] = np.where(group == 0, 0.1, 0.2)
    method._m_step(everybody)
    kept = method.centroids.theta[0].copy()
    assert method._recluster(5, everybody)
    assert set(method.assignment[group == 0].tolist()) == {0}
    assert set(method.assignment[group != 0].tolist()) == {1, 2, 3}
    assert np.array_equal(method.centroids.theta[0], kept)
    for k in (1, 2, 3):
        mine = method.assignment == k
        assert np.allclose(method.centroids.theta[k], metadata.phi[mine].mean(axis=0), atol=1e-6)


def test_the_two_rules_differ_in_who_is_asked():
    metadata, group = planted_metadata()
    for rule, fires in (("seen", False), ("participants", True)):
        world = clustering_world(metadata, group, rounds=100)
        method = Flameche(world, empty=rule)
        everybody = np.arange(40)
        method.sums.offer(everybody, np.zeros(40, np.int64), np.zeros(40), method.centroids)
        method.assignment[:] = group
        method._m_step(everybody)
        assert method._recluster(10, np.flatnonzero(group < 3)) is fires


@pytest.mark.parametrize(("last", "fires"), [(True, True), (False, False)])
def test_no_reclustering_in_the_last_round_unless_asked(last, fires):
    metadata, group = planted_metadata(groups=2)
    world = clustering_world(metadata, group, rounds=2)
    method = Flameche(world, tau=2, init="vectors", clusters=9, recluster_last=last)
    method.round(1, np.arange(40))
    assert len(np.unique(method.assignment)) < 9  # some cluster is empty
    assert method.round(2, np.arange(40)) is fires


def test_reclustering_sums_only_participants_where_the_m_step_does():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group, rounds=100)
    method = Flameche(world, tau=0, m_step="participants")
    for r in (1, 2, 3):
        method.round(r, np.arange(40))
    few = np.flatnonzero(group < 2)[::4]
    method.round(4, few)
    added = []
    method.sums.totals, original = (
        lambda members, cluster: added.append(members) or original(members, cluster),
        method.sums.totals,
    )
    assert method._recluster(10, few)
    assert len(added) == 1 and set(added[0].tolist()) <= set(few.tolist())


def test_missing_labels_hurt_less_when_imputed_than_as_zeros_and_not_at_all_when_left_out():
    mean = {}
    for missing in ("counts", "impute", "zero"):
        found = []
        for seed in range(5):
            metadata, group = planted_metadata(seed=seed)
            result, _ = cluster(missing_labels(metadata, seed), group, missing=missing, seed=seed)
            found.append(result.ari_final)
        mean[missing] = np.mean(found)
    assert mean["counts"] > 0.9 and mean["impute"] > 0.9
    assert mean["zero"] + 0.3 < mean["impute"]


@pytest.mark.parametrize("missing", ["counts", "impute", "zero"])
def test_the_first_centroids_lie_within_the_range_of_the_metadata(missing):
    metadata, group = planted_metadata()
    lacking = missing_labels(metadata)
    method = Flameche(clustering_world(lacking, group), missing=missing)
    method._partition(np.arange(8))
    known = method.centroids.mass > 0
    theta = method.centroids.theta[known]
    assert theta.min() >= lacking.phi.min() - 1e-6 and theta.max() <= lacking.phi.max() + 1e-6


def test_metadata_go_up_once_and_imputed_metadata_whenever_a_client_takes_part():
    metadata, group = planted_metadata()
    result, method = cluster(metadata, group)
    size = 4 * (30 + 5 + 1) + 48
    assert (method.world.ledger.up["metadata"] == size * (result.participations > 0)).all()
    result, method = cluster(missing_labels(metadata), group, missing="impute")
    sent = method.world.ledger.up["metadata"] // size
    assert (sent >= result.participations).all() and sent.sum() > 40


def test_a_client_never_seen_is_served_by_its_nearest_cluster():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group)
    method = Flameche(world)
    most = np.arange(39)
    for r in range(1, 31):
        method.round(r, most)
    assert method.assignment[39] == UNSEEN
    assert method.serving()[39] == method.assignment[38]  # same group


def test_a_client_with_a_single_class_takes_part():
    metadata, group = planted_metadata()
    counts = metadata.counts.copy()
    counts[0, 1:] = 0
    lone = Metadata(metadata.phi * (counts > 0)[:, :, None], counts)
    result, _ = cluster(lone, group)
    assert result.ari_final == 1.0


def test_unit_norm_clusters_as_well():
    metadata, group = planted_metadata()
    assert cluster(metadata, group, unit_norm=True)[0].ari_final == 1.0


def test_more_clusters_than_participants_is_defined():
    metadata, group = planted_metadata()
    world = clustering_world(metadata, group)
    method = Flameche(world, tau=0)
    method.round(1, np.array([0, 39]))
    assert (method.centroids.mass.sum(axis=1) > 0).sum() == 2  # the others are empty, not noise
    assert set(method.assignment[[0, 39]].tolist()) <= {0, 1, 2, 3}
    result, _ = cluster(metadata, group, participants=2, rounds=60)
    assert result.ari_final > 0.5  # reclustering fills them in time


def test_one_cluster_is_fedavgs_partition():
    metadata, group = planted_metadata()
    result, method = cluster(metadata, group, clusters=1)
    assert set(method.serving().tolist()) == {0} and not result.ari_final > 0
