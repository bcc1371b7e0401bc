"""Soft FLAMECHE: one session, then E-steps; what clients train; drift, leaving and restarts."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from flameche.methods import METHODS
from flameche.methods.base import UNSEEN
from flameche.methods.sketch import FlamecheSketch
from flameche.methods.soft import Soft
from flameche.privacy.audit import leakage
from flameche.protocol.updates import protect_updates
from flameche.simulation.engine import _checkpoint, _restore
from flameche.simulation.schedule import draw_participants
from tests.conftest import clustering_world, planted_metadata
from tests.methods.test_sketch import grouped, right
from tests.methods.worlds import draw, live, paper_world

FAMILIES = ["full", "vmf", "gaussian", "spherical"]


def made(metadata, group, *, kind=Soft, least=3, seed=0, **options):
    world = clustering_world(metadata, group, seed=seed)
    world.min_cluster = least
    return kind(world, **options)


# Clusters


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(4, 4), (10, 10, 10), (50, 50, 50)], ids=str)
def test_all_clients_are_served_rightly_from_the_first_round_on(sizes, family):
    metadata, group = grouped(sizes)
    method = made(metadata, group, clusters=len(sizes), family=family)
    method.round(1, draw(1, len(group), len(group) // 4))
    assert right(method, group) and len(method.models) == len(sizes)


def test_k_is_chosen_in_the_session():
    metadata, group = grouped((14, 13, 13))
    method = made(metadata, group, clusters="auto")
    method.round(1, np.arange(8))
    assert method.clusters == 3 and right(method, group)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_opened_after_the_session_and_the_audit_solves_nobody(family):
    metadata, group = grouped((50, 50, 50))
    method = made(metadata, group, clusters=3, family=family)
    method.round(1, draw(1, 150, 10))
    opened = list(method.world.ledger.openings)
    for r in range(2, 12):
        method.round(r, draw(r, 150, 30))
    method.finish()
    assert method.world.ledger.openings == opened and leakage(opened, own=True).solved == 0
    known = method.assignment != UNSEEN
    assert adjusted_rand_score(group[known], method.assignment[known]) == 1.0 and known.sum() > 100


@pytest.mark.parametrize("family", ["full", "vmf", "gaussian"])
@pytest.mark.parametrize("clients", [12, 18, 30, 60])
def test_a_life_of_groups_that_overlap_solves_nobody(clients, family):
    noise = 3.0 if family == "vmf" else 1.6
    metadata, group = planted_metadata(clients, groups=3, noise=noise, blocks=2, features=6, seed=clients)
    method = made(metadata, group, clusters=3, family=family)
    late = np.flatnonzero(group == 2)[: max(3, clients // 5)]
    method.leave(late)
    here = np.setdiff1d(np.arange(clients), late)
    method.round(1, here)
    method.join(late)
    method.drift(here[:2], metadata.of(late[:2]))
    method.far[late] = True
    for r in range(2, 4):
        method.round(r, np.arange(clients))
    openings = method.world.ledger.openings
    assert method.sessions == 1 + (len(late) >= 6)  # of fewer, second moments would follow
    assert leakage(openings, own=True).solved == 0
    assert method.exchange.guard.leverage().max() < 1 - 1e-6


def test_with_hard_responsibilities_it_is_flameche():
    metadata, group = grouped((10, 10, 10))
    options = {"clusters": 3}
    hard = made(metadata, group, kind=FlamecheSketch, **options)
    for training in ("likeliest", "weighted"):
        soft = made(metadata, group, family="spherical", training=training, **options)
        for r in range(1, 5):
            for method in (hard, soft) if training == "likeliest" else (soft,):
                method.round(r, draw(r, 30, 10))
        assert set(soft.resp.ravel()) == {0.0, 1.0}
        assert np.array_equal(soft.assignment, hard.assignment)
        assert np.allclose(soft.centroids.theta, hard.centroids.theta)
        one, other = soft.finish(), hard.finish()
        assert np.array_equal(one.assignment, other.assignment) and one.dbi == pytest.approx(other.dbi)


def test_the_likelihood_and_responsibilities_follow_the_names_of_clusters():
    metadata, group = grouped((8, 8, 6))
    method = made(metadata, group, clusters=3, family="vmf")
    late = np.flatnonzero(group == 2)
    method.leave(late)
    method.round(1, np.flatnonzero(group != 2))
    method.join(late)
    for r in range(2, 5):
        method.round(r, np.arange(22))
    assert method.sessions == 2 and right(method, group) and method.clusters == 3
    assert np.array_equal(method.resp.argmax(axis=1), method.assignment)
    assert np.array_equal(method._nearest(np.arange(22)), method.assignment)


def test_a_client_whose_data_drift_moves_and_who_has_left_is_counted_no_more():
    metadata, group = grouped((10, 10))
    method = made(metadata, group, clusters=2, training="weighted")
    method.round(1, np.arange(20))
    mover, model = (int(np.flatnonzero(group == g)[0]) for g in (0, 1))
    method.drift(np.array([mover]), metadata.of(np.array([model])))
    method.round(2, np.array([mover]))
    assert method.assignment[mover] == method.assignment[model] == method.resp[mover].argmax()
    assert np.array_equal(method.world.metadata.phi, metadata.phi)  # the world's are not its own
    method.leave(np.array([3]))
    assert method.finish().assignment[3] == UNSEEN


# Models


def world_of(shares, updates=None):
    """A method of two clusters whose clients have told these responsibilities."""
    targets = np.arange(1.0, len(shares) + 1)[:, None] * np.ones(2)
    metadata, _ = planted_metadata(clients=len(shares), groups=2)
    world = paper_world(targets, metadata=metadata)
    world.updates = updates and protect_updates(updates, len(shares), 1, world.ledger)
    method = Soft(world, clusters=2, training="weighted")
    method.models, method.clusters = world.initial_models(2), 2
    method.centroids.mass[:] = 1.0  # clusters are known
    method.placed[:], method.resp = True, np.array(shares, float)
    method.assignment = method.resp.argmax(axis=1)
    return method


@pytest.mark.parametrize("updates", [None, "secagg", "ckks"])
def test_a_weighted_update_counts_for_every_cluster_by_responsibility(updates):
    method = world_of([[1, 0], [0.75, 0.25], [0, 1], [0.5, 0.5]], updates)
    method.round(1, np.arange(4))
    expected = [(1 + 2 * 0.75 + 4 * 0.5) / 2.25, (2 * 0.25 + 3 + 4 * 0.5) / 1.75]
    assert np.allclose(method.models.params, np.array(expected)[:, None], atol=1e-6)
    assert [call[2] for call in method.world.trainer.calls] == [[[0.0, 0.0]] * 4]


@pytest.mark.parametrize("updates", [None, "secagg"])
def test_less_than_one_client_moves_a_model_only_so_far(updates):
    method = world_of([[0.875, 0.125], [0.875, 0.125]], updates)
    method.round(1, np.arange(2))
    assert np.allclose(method.models.params, [[1.5, 1.5], [0.25 * 1.5] * 2], atol=1e-6)
    assert np.allclose(method.models.buffers, [[1.0], [0.25]], atol=1e-6)


def test_a_cluster_of_effectively_one_participant_keeps_its_model_under_masks():
    method = world_of([[1, 0], [1, 0], [0.125, 0.875]], "secagg")
    method.round(1, np.arange(3))
    assert torch.equal(method.models.params[1], torch.zeros(2, dtype=torch.float64))
    assert np.allclose(method.models.params[0], (1 + 2 + 0.125 * 3) / 2.125, atol=1e-6)
    assert method.world.ledger.held_back["model"] == 1


def test_the_likeliest_cluster_alone_counts_by_default():
    method = world_of([[1, 0], [0.75, 0.25], [0.375, 0.625]])
    method.weighted = False
    method.round(1, np.arange(3))
    assert np.allclose(method.models.params, [[1.5, 1.5], [3, 3]])
    assert method.assignment.tolist() == [0, 0, 1]


def test_newcomers_tell_their_responsibilities_once_where_these_are_needed():
    metadata, group = grouped((40, 40))
    sent = {}
    for training in ("likeliest", "weighted"):
        method = made(metadata, group, clusters=2, training=training)
        method.round(1, np.arange(20))
        method.round(2, np.arange(80))
        method.round(3, np.arange(80))
        sent[training] = method.world.ledger.up["assignment"]
        outside = ~method.inside.any(axis=1)
        assert outside.sum() == 20 and (method.resp[outside].sum(axis=1) == (training == "weighted")).all()
    assert np.array_equal(sent["weighted"] - sent["likeliest"], 2 * outside)


def test_with_one_cluster_weighted_training_is_fedavg():
    rng = np.random.default_rng(0)
    metadata, _ = planted_metadata(clients=12, groups=3)
    targets, pair = rng.normal(size=(12, 3)), []
    for kind, options in (("fedavg", {}), ("flameche-soft", {"clusters": 1, "training": "weighted"})):
        pair.append(METHODS[kind](paper_world(targets, metadata=metadata, share=0.5), **options))
    for r in range(1, 9):
        for method in pair:
            method.round(r, draw_participants(0, r, 12, 5))
        assert torch.allclose(pair[0].models.params, pair[1].models.params, atol=1e-12)


# Restarts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("training", ["likeliest", "weighted"])
def test_a_restart_goes_on_the_same(family, training):
    metadata, group = grouped((20, 20, 8))
    options = {"clusters": 3, "family": family, "training": training}

    late = np.flatnonzero(group == 2)

    def begun():
        method = made(metadata, group, **options)
        method.leave(late)
        return method

    whole = begun()
    live(whole, metadata, late, range(1, 9))
    for stop in (1, 4, 6):
        first = begun()
        live(first, metadata, late, range(1, stop + 1))
        kept = _checkpoint(first, first.world, stop, 0.0)
        second = made(metadata, group, **options)
        _restore(second, second.world, kept)
        live(second, metadata, late, range(stop + 1, 9))
        assert second.state().keys() == whole.state().keys()
        for key, value in whole.state().items():
            assert np.array_equal(second.state()[key], value, equal_nan=value.dtype.kind == "f"), key
        assert np.array_equal(second.finish().assignment, whole.finish().assignment)
        assert len(second.world.ledger.openings) == len(whole.world.ledger.openings)
