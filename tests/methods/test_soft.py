"""Soft FLAMECHE: from the crowd to K components, what clients train, and the same under every scheme."""

import io
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.registry import make_scheme
from flameche.crypto.secagg.driver import Costs
from flameche.em import mixture
from flameche.metadata.extractors import Metadata
from flameche.methods import METHODS
from flameche.methods.base import UNSEEN
from flameche.methods.soft import CROWD, GATHER, OFTEN, SETTLED, Soft
from flameche.protocol.soft import DECAY, told
from flameche.protocol.updates import protect_updates
from flameche.simulation.engine import Checkpoint, _checkpoint, _restore
from flameche.simulation.schedule import draw_participants
from tests.conftest import clustering_world, planted_metadata
from tests.methods.worlds import paper_world

FAMILIES = ["vmf", "gaussian", "spherical"]


def made(metadata, group, *, seed=0, least=1, scheme=None, **options):
    world = clustering_world(metadata, group, rounds=100, seed=seed)
    world.min_cluster, world.scheme = least, scheme or world.scheme
    return Soft(world, **options)


def play(method, participants, rounds, first=1):
    """Play rounds with the schedule of the method's own seed."""
    for r in range(first, first + rounds):
        method.round(r, draw_participants(method.world.seed, r, method.world.clients, participants))
    return method


def found(method):
    return adjusted_rand_score(method.world.group, method.finish().assignment)


def in_the_clear(vectors, **_):
    """A session's result without its cryptography, which has tests of its own."""
    costs = np.zeros(len(vectors), np.int64)
    return vectors.sum(axis=0), list(range(len(vectors))), Costs(costs, costs, 0.0, 0.0)


def secagg(clients, bound=8.0):
    return SecAgg(exact_codec(bound, clients)[0])


def lacking(metadata, share, seed=0):
    """The same with classes missing at random."""
    gone = np.random.default_rng(seed).random(metadata.counts.shape) < share
    counts = np.where(gone, 0, metadata.counts)
    return Metadata(metadata.phi * (counts > 0)[:, :, None], counts)


def overlapping(clients=60, seed=0):
    """Groups so near each other that some clients belong to two, in few dimensions."""
    return planted_metadata(clients=clients, groups=3, noise=1.6, blocks=2, features=3, seed=seed)


# Clusters


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_found_with_a_fifth_of_the_clients_a_round(family, seed):
    metadata, group = planted_metadata(clients=80, noise=0.3, seed=seed)
    assert found(play(made(metadata, group, seed=seed, family=family), 16, 30)) == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_are_found_where_classes_are_missing(family):
    metadata, group = planted_metadata(clients=80, noise=0.2, seed=1)
    assert found(play(made(lacking(metadata, 0.3), group, family=family), 16, 40)) > 0.95


def test_groups_that_differ_in_labels_alone_are_found_by_counting():
    rng = np.random.default_rng(0)
    group = np.arange(80) % 4
    odds = np.full((4, 8), 0.05) + 0.3 * np.repeat(np.eye(4), 2, axis=1)
    counts = np.stack([rng.multinomial(80, odds[g] / odds[g].sum()) for g in group])
    metadata = Metadata(np.ones((80, 8, 3)) + 0.1 * rng.random((80, 8, 3)), counts)
    assert found(play(made(metadata, group, family="multinomial"), 16, 30)) == 1.0
    alone = Metadata(counts[:, None, :].astype(float), counts.sum(axis=1, keepdims=True))
    assert found(play(made(alone, group, family="multinomial"), 16, 30)) == 1.0  # label counts as metadata


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_are_found_under_secure_aggregation(family):
    metadata, group = planted_metadata(clients=80, noise=0.2)
    method = made(metadata, group, scheme=secagg(80, 64.0), least=3, family=family)
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        assert found(play(method, 20, 40)) == 1.0


def test_the_guard_lets_groups_be_found():
    metadata, group = planted_metadata(clients=80, noise=0.2)
    assert found(play(made(metadata, group, least=3), 20, 40)) == 1.0


def test_clients_gather_then_crowd_then_merge_then_settle():
    metadata, group = planted_metadata(clients=80, noise=0.3)
    method = made(metadata, group)
    assert len(method.label) == 4 * CROWD
    stages = []
    for r in range(1, 61):
        heard, seen = method.heard, len(method.seen)
        play(method, 16, 1, first=r)
        stages.append((method.gathering, len(method.label) > 4, method.family is not method.free))
        if stages[-1][0]:
            assert (method.assignment == UNSEEN).all() and not method.sums.totals.any()
        if len(stages) > 1 and stages[-2][0] and not stages[-1][0]:
            assert seen < GATHER <= len(method.seen)
        if len(stages) > 1 and stages[-2][1] and not stages[-1][1]:
            assert heard < OFTEN * seen and method.heard >= OFTEN * len(method.seen)
        assert stages[-1][2] == (method.heard < SETTLED * len(method.seen))
    assert sorted(set(stages), reverse=True) == list(dict.fromkeys(stages))  # each stage once, in this order
    assert stages[-1] == (False, False, False) and len(set(stages)) == 4
    assert method.sums.totals.shape == (4, method.free.size + 1) and method.resp.shape == (80, 4)


def test_scattered_clients_fill_components_evenly():
    metadata, group = planted_metadata(clients=80)
    for least in (1, 3):
        method = made(metadata, group, least=least)
        play(method, 16, 2)
        sizes = method.resp.sum(axis=0)
        assert method.gathering and sizes.max() - sizes.min() <= least


def test_a_guarded_session_of_newcomers_fills_as_many_components_as_it_can():
    metadata, group = planted_metadata(clients=80)
    method = made(metadata, group, least=3, scheme=secagg(80))
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        play(method, 20, 1)
    assert len(method.label) == 8 and (method.sums.totals[:, -1] >= 3 - 1e-6).sum() == 20 // 3


def test_who_was_away_since_the_merger_is_where_it_was():
    metadata, group = planted_metadata(clients=80, noise=0.3)
    method = made(metadata, group)
    for r in range(1, 31):
        before, crowded = method.assignment, len(method.label) > 4
        method.round(r, here := draw_participants(0, r, 80, 16))
        away = np.setdiff1d(method.seen, here)
        if not crowded:
            assert np.array_equal(method.assignment[away], before[away])
    assert not crowded


def test_without_enough_for_the_guard_clients_go_on_gathering():
    metadata, group = planted_metadata(clients=12)
    method = play(made(metadata, group, least=4, clusters=4), 6, 20)  # 12 clients do not fill 4 by 4
    assert method.gathering and not method.sums.totals.any()
    assert method.serving().tolist() == [0] * 12


# EM


def test_at_full_participation_it_is_em():
    metadata, group = overlapping()
    method = made(metadata, group, clusters=3, family="gaussian")
    everybody = np.arange(60)
    for r in range(1, 31):
        before, family = method.sums.totals, method.family
        crowded = len(method.label) > 3
        method.round(r, everybody)
        if r == 1 or crowded:
            continue
        own = method._own(everybody)
        resp, likelihood = mixture.e_step(family, own, before)
        expected = mixture.terms(family, own, told(resp)).sum(axis=0)
        assert np.allclose(method.sums.totals, expected, atol=60 * 2**-20)
        assert method.log_likelihood[-1] == pytest.approx(likelihood.mean(), rel=1e-4)
    settled = np.array(method.log_likelihood[SETTLED + 1 :])
    assert (np.diff(settled) > -1e-3).all()  # but for rounding to 32 bits, and small responsibilities
    assert np.sort(method.resp, axis=1)[:, -2].max() > 0.05  # and it is soft


def test_under_encryption_clusters_are_those_of_the_clear():
    metadata, group = overlapping()
    clear = made(metadata, group, clusters=3)
    sealed = made(metadata, group, clusters=3, scheme=make_scheme("bfv", clients=60, bound=8.0))
    for r in range(1, 16):
        for method in (clear, sealed):
            play(method, 30, 1, first=r)
        assert np.abs(clear.resp - sealed.resp).max() < 2e-3
        same = pytest.approx(clear.log_likelihood[-1], abs=1e-2, nan_ok=True)
        assert sealed.log_likelihood[-1] == same
    assert np.array_equal(clear.finish().assignment, sealed.finish().assignment)


def test_under_secure_aggregation_earlier_rounds_fade():
    metadata, group = overlapping()
    masked = made(metadata, group, clusters=3, scheme=secagg(60))
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        play(masked, 60, 12)
    mass = masked.sums.totals[:, -1].sum()
    assert mass == pytest.approx(60 * sum(DECAY**i for i in range(12)), rel=1e-3)
    clear = play(made(metadata, group, clusters=3), 60, 12)
    assert adjusted_rand_score(clear.finish().assignment, masked.finish().assignment) > 0.9


def test_the_likelihood_is_known_from_the_round_after_gathering():
    metadata, group = planted_metadata(clients=80, noise=0.3)
    method = play(made(metadata, group), 16, 30)
    gathered = int(np.flatnonzero(np.isfinite(method.log_likelihood))[0])
    assert len(method.log_likelihood) == 30 and np.isnan(method.log_likelihood[:gathered]).all()
    assert np.isfinite(method.log_likelihood[gathered:]).all()
    assert method.log_likelihood[-1] > method.log_likelihood[gathered]


# Models


def world_of(shares, updates=None, targets=None):
    """A world of two clusters in which clients have these responsibilities from now on."""
    targets = np.arange(1.0, len(shares) + 1)[:, None] * np.ones(2) if targets is None else targets
    metadata, _ = planted_metadata(clients=len(shares), groups=2)
    world = paper_world(targets, metadata=metadata)
    world.updates = updates and protect_updates(updates, len(shares), 1, world.ledger)
    method = Soft(world, clusters=2, training="weighted")
    method.gathering, method.label = False, np.arange(2)
    method.resp, method.sums.totals = np.zeros((len(shares), 2)), np.zeros((2, method.free.size + 1))
    method._e_step = lambda r, clients: (np.array(shares, float)[clients], np.zeros(len(clients)))
    return method


@pytest.mark.parametrize("updates", [None, "secagg", "ckks"])
def test_a_weighted_update_counts_for_every_cluster_by_responsibility(updates):
    method = world_of([[1, 0], [0.75, 0.25], [0, 1], [0.5, 0.5]], updates)
    method.sums.exchange = lambda offer, opens: False
    method.round(1, np.arange(4))
    expected = [(1 + 2 * 0.75 + 4 * 0.5) / 2.25, (2 * 0.25 + 3 + 4 * 0.5) / 1.75]
    assert np.allclose(method.models.params, np.array(expected)[:, None], atol=1e-6)
    assert [call[2] for call in method.world.trainer.calls] == [[[0.0, 0.0]] * 4]
    sent = method.world.ledger.up["assignment"]
    assert (sent == (8 if updates is None else 4)).all()  # sealed shares are nobody's to know


@pytest.mark.parametrize("updates", [None, "secagg"])
def test_less_than_one_client_moves_a_model_only_so_far(updates):
    method = world_of([[0.9, 0.1], [0.9, 0.1]], updates)
    method.sums.exchange = lambda offer, opens: False
    method.round(1, np.arange(2))
    assert np.allclose(method.models.params, [[1.5, 1.5], [0.2 * 1.5] * 2], atol=1e-6)
    assert np.allclose(method.models.buffers, [[1.0], [0.2]], atol=1e-6)


def test_a_cluster_of_effectively_one_participant_keeps_its_model_under_masks():
    method = world_of([[1, 0], [1, 0], [0.02, 0.98]], "secagg")
    method.sums.exchange = lambda offer, opens: False
    method.round(1, np.arange(3))
    assert torch.equal(method.models.params[1], torch.zeros(2, dtype=torch.float64))
    assert np.allclose(method.models.params[0], (1 + 2 + 0.02 * 3) / 2.02, atol=1e-6)
    assert method.world.ledger.held_back["model"] == 1


def test_the_likeliest_cluster_alone_counts_by_default():
    method = world_of([[1, 0], [0.75, 0.25], [0.4, 0.6]])
    method.weighted, method.sums.exchange = False, lambda offer, opens: False
    method.round(1, np.arange(3))
    assert np.allclose(method.models.params, [[1.5, 1.5], [3, 3]])
    assert method.assignment.tolist() == [0, 0, 1]


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


@pytest.mark.parametrize(
    ("kind", "least", "options"),
    [
        ("plain", 1, {}),
        ("plain", 3, {"family": "gaussian", "projection": 2}),
        ("bfv", 3, {"family": "spherical"}),
        ("secagg", 3, {}),
    ],
)
def test_a_run_stopped_after_every_round_ends_bit_identically(kind, least, options):
    metadata, group = overlapping(clients=40)
    schemes = {"plain": None, "bfv": make_scheme("bfv", clients=40, bound=16.0), "secagg": secagg(40)}

    def fresh():
        return made(metadata, group, clusters=3, least=least, scheme=schemes[kind], **options)

    whole = method = fresh()
    with patch("flameche.protocol.session.aggregate", in_the_clear):
        for r in range(1, 15):
            play(whole, 12, 1, first=r)
            if r > 1:
                play(method, 12, 1, first=r)
            file = io.BytesIO()
            checkpoint = _checkpoint(method, method.world, r, 0.0)
            np.savez(file, **checkpoint.arrays)
            file.seek(0)
            method = fresh()
            with np.load(file) as arrays:
                kept = {key: arrays[key] for key in arrays.files}
            _restore(method, method.world, Checkpoint(r, kept, checkpoint.ledger, 0.0))
            assert np.array_equal(method.sums.totals, whole.sums.totals)
            assert np.array_equal(method.assignment, whole.assignment)
            assert np.array_equal(method.log_likelihood, whole.log_likelihood, equal_nan=True)
        assert not whole.gathering and len(whole.label) == 3
        assert np.array_equal(method.finish().assignment, whole.finish().assignment)
