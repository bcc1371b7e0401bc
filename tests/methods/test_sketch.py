"""FLAMECHE with a private core: one session, then E-steps; late groups, drift, leaving, restarts."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.errors import BadInput
from flameche.methods.base import UNSEEN
from flameche.methods.sketch import EVERYBODY, FlamecheSketch, criteria
from flameche.simulation.engine import _checkpoint, _restore
from tests.attacks import OpenedSums
from tests.conftest import clustering_world, planted_metadata
from tests.methods.worlds import draw, live


def grouped(sizes, *, noise=0.4, seed=0, blocks=5, features=24):
    metadata, _ = planted_metadata(sum(sizes), len(sizes), noise, seed, blocks, features)
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    centres = 1.0 + 0.5 * rng.random((len(sizes), blocks, features))
    phi = centres[group] + noise * rng.random((len(group), blocks, features))
    order = rng.permutation(len(group))
    return type(metadata)(phi[order], metadata.counts), group[order]


def made(metadata, group, *, least=3, scheme=None, seed=0, **options):
    world = clustering_world(metadata, group, seed=seed)
    world.min_cluster, world.scheme = least, scheme or world.scheme
    return FlamecheSketch(world, **options), world


def right(method, group, clients=None):
    some = np.arange(len(group)) if clients is None else clients
    return adjusted_rand_score(group[some], method.serving()[some]) == 1.0


@pytest.mark.parametrize("share", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_all_clients_are_served_rightly_from_the_first_round_on(share, seed):
    metadata, group = grouped((25, 25, 25, 25), seed=seed)
    method, _ = made(metadata, group, clusters=4, seed=seed)
    method.round(1, draw(1, 100, int(100 * share)))
    assert right(method, group) and method.clusters == 4 and len(method.models) == 4


def test_of_many_clients_only_some_hold_the_session_and_nothing_is_opened_after_it():
    metadata, group = grouped((50, 50, 50))
    method, world = made(metadata, group, clusters=3)
    method.round(1, draw(1, 150, 10))
    opened = len(world.ledger.openings)
    assert max(len(opening.clients) for opening in world.ledger.openings) == EVERYBODY
    for r in range(2, 12):
        assert not method.round(r, draw(r, 150, 30))
    method.finish()
    assert len(world.ledger.openings) == opened
    known = method.assignment != UNSEEN
    assert adjusted_rand_score(group[known], method.assignment[known]) == 1.0 and known.sum() > 100


def test_a_client_finds_its_cluster_once_and_tells_it_once():
    metadata, group = grouped((20, 20))
    method, world = made(metadata, group, clusters=2)
    everybody = np.arange(40)
    method.round(1, everybody)
    before = world.ledger.per_client("up").copy()
    method.round(2, everybody)
    assert (world.ledger.per_client("up") - before == world.ledger.up["model"] // 2).all()


def test_too_few_clients_train_one_model_and_the_notes_say_so():
    metadata, group = grouped((2, 3))
    method, world = made(metadata, group, clusters=2)
    method.round(1, np.arange(5))
    outcome = method.finish()
    assert (method.serving() == 0).all() and (outcome.assignment == 0).all()
    assert any("5 clients are too few" in note for note in world.notes)


@pytest.mark.parametrize(("least", "advice"), [(1, "set method.clusters"), (3, "a lower scheme.min_cluster")])
def test_too_few_clients_to_choose_k_are_told_what_would_help(least, advice):
    metadata, group = grouped((2, 1))
    method, world = made(metadata, group, least=least, clusters="auto")
    method.round(1, np.arange(3))
    method.finish()
    (note,) = world.notes
    assert note.startswith("no clusters: 3 clients are too few") and advice in note


def test_no_groups_under_noise_may_be_groups_that_the_noise_hides():
    metadata, group = grouped((20,))
    for noise in (0.0, 0.1):
        method, world = made(metadata, group, clusters="auto")
        world.noise = noise
        method.round(1, np.arange(20))
        (note,) = world.notes
        assert note.startswith("K = 1: 20 clients") and ("noise" in note) == (noise > 0)


def test_what_cannot_be_told_apart_is_noted():
    metadata, group = grouped((3, 3))
    method, world = made(metadata, group, clusters=4)
    method.round(1, np.arange(6))
    assert method.clusters == 2 and any("2 of 4 clusters" in note for note in world.notes)


@pytest.mark.parametrize("sizes", [(40,), (20, 20), (14, 13, 13), (10, 10, 10, 10)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_session_chooses_k_where_it_is_asked_to(sizes, seed):
    metadata, group = grouped(sizes, seed=seed)
    method, world = made(metadata, group, clusters="auto", seed=seed)
    method.round(1, np.arange(8))
    assert method.clusters == len(sizes)
    assert any(note.startswith(f"K = {len(sizes)}") for note in world.notes)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_a_group_that_comes_late_gets_a_cluster_of_its_own(masked, many):
    sizes = (40, 40, 20) if many else (8, 8, 6)
    metadata, group = grouped(sizes)
    scheme = SecAgg(exact_codec(64.0, len(group))[0]) if masked else None
    method, _ = made(metadata, group, clusters=3, scheme=scheme)
    late = np.flatnonzero(group == 2)
    method.leave(late)
    there = np.flatnonzero(group != 2)
    method.round(1, there[:12])
    method.join(late)
    held = [method.round(r, np.arange(len(group))) for r in range(2, 5)]
    assert held[:2] == [False, True] and right(method, group) and method.clusters == 3
    assert method.exchange.guard.leverage().max() < 1 - 1e-6


def test_a_late_group_near_a_client_that_is_alone_in_its_cluster_gets_one_of_its_own():
    metadata, group = grouped((8, 8, 1, 6))
    alone, late = np.flatnonzero(group == 2), np.flatnonzero(group == 3)
    metadata.phi[late] = 0.8 * metadata.phi[late] + 0.2 * metadata.phi[alone]
    method, _ = made(metadata, group, least=1, clusters=3)
    method.leave(late)
    there = np.flatnonzero(group != 3)
    method.round(1, there)
    assert right(method, group, there) and method.clusters == 3
    method.join(late)
    assert [method.round(r, late) for r in (2, 3)] == [False, True]


def test_of_many_clients_a_later_session_takes_those_first_that_were_in_none():
    metadata, group = grouped((50, 50, 50))
    method, _ = made(metadata, group, clusters=3)
    late = np.flatnonzero(group == 2)
    method.leave(late)
    there = np.flatnonzero(group != 2)
    method.round(1, there[:12])
    before = method.exchange.guard.leverage() > 0
    method.join(late)
    method.round(2, late[:6])
    again = method.members(3, late)
    assert (
        before.sum() == len(again) == EVERYBODY and not before[again].any() and method.far[again].sum() == 6
    )


def test_a_client_whose_data_drift_moves_to_its_new_group():
    metadata, group = grouped((10, 10))
    method, _ = made(metadata, group, clusters=2)
    method.round(1, np.arange(20))
    mover = int(np.flatnonzero(group == 0)[0])
    model = int(np.flatnonzero(group == 1)[0])
    method.drift(np.array([mover]), metadata.of(np.array([model])))
    assert method.assignment[mover] == method.assignment[np.flatnonzero(group == 0)[1]]
    method.round(2, np.array([mover]))
    assert method.assignment[mover] == method.assignment[model]


def test_metadata_that_drift_back_are_the_term_that_the_guard_knows():
    metadata, group = grouped((10, 10))
    method, _ = made(metadata, group, clusters=2)
    method.round(1, np.arange(20))
    mover = np.flatnonzero(group == 0)[:1]
    model = np.flatnonzero(group == 1)[:1]
    for there, version in ((metadata.of(model), 1), (metadata.of(mover), 0), (metadata.of(model), 1)):
        method.drift(mover, there)
        assert method.exchange.guard.version[mover] == version
    again, _ = made(metadata, group, clusters=2)
    again.restore(method.state())
    again.drift(mover, metadata.of(mover))
    assert again.exchange.guard.version[mover] == 0


def test_a_later_session_projects_clients_as_the_first_did():
    metadata, group = grouped((10, 10, 10))
    method, _ = made(metadata, group, clusters=3)
    seen, run = [], method._take
    method._take = lambda clients, found: seen.append(found.sketch.matrix) or run(clients, found)
    method.round(1, np.arange(20))
    method._hold_session(2, np.arange(30))
    assert len(seen) == 2 and np.array_equal(seen[0], seen[1])


def test_who_has_left_is_counted_no_more_and_may_come_back():
    metadata, group = grouped((10, 10))
    method, _ = made(metadata, group, clusters=2)
    method.round(1, np.arange(20))
    method.leave(np.array([3]))
    assert method.assignment[3] == UNSEEN
    with pytest.raises(BadInput, match="client 3 has left"):
        method.round(2, np.array([3, 4]))
    method.join(np.array([3]))
    method.round(2, np.array([3, 4]))
    assert right(method, group)


def test_a_restart_goes_on_the_same():
    metadata, group = grouped((20, 20, 8))

    late = np.flatnonzero(group == 2)

    def begun():
        method, world = made(metadata, group, clusters=3)
        method.leave(late)
        return method, world

    whole, _ = begun()
    live(whole, metadata, late, range(1, 9))
    for stop in (1, 4, 6):
        first, world = begun()
        live(first, metadata, late, range(1, stop + 1))
        kept = _checkpoint(first, world, stop, 0.0)
        second, other = made(metadata, group, clusters=3)
        _restore(second, other, kept)
        live(second, metadata, late, range(stop + 1, 9))
        assert (second.assignment == whole.assignment).all() and (second.far == whole.far).all()
        assert (second.centroids.theta == whole.centroids.theta).all()
        assert len(other.ledger.openings) == len(whole.world.ledger.openings)


@pytest.mark.parametrize("sizes", [(4, 4), (10, 10), (25, 25, 25, 25)], ids=str)
def test_an_attack_on_logged_sums_solves_no_client(sizes):
    """The log is of what a session opened of terms that are linear in metadata, apart from the guard."""
    metadata, group = grouped(sizes)
    method, world = made(metadata, group, clusters=len(sizes))
    clients = len(group)
    late = np.flatnonzero(group == 0)[:3]
    method.leave(late)
    for r in range(1, 4):
        method.round(r, np.setdiff1d(np.arange(clients), late))
    method.join(late)
    method.drift(np.array([clients - 1]), metadata.of(np.array([clients - 2])))
    for r in range(4, 9):
        method.round(r, np.arange(clients))
    log = OpenedSums(clients)
    for opening in world.ledger.openings:
        log.add(np.array(opening.clients), np.zeros(1))
    assert log.smallest >= 3 and not log.solved()
    for known in range(clients):  # a key holder takes its own term out of every sum
        mine = OpenedSums(clients, [*log.members], [*log.values])
        mine.add(np.array([known]), np.zeros(1))
        assert set(mine.solved()) == {known}


def test_the_attack_does_succeed_where_nothing_is_guarded():
    log = OpenedSums(5)
    for members in ([0, 1, 2], [0, 3, 4], [1, 2, 3, 4]):
        log.add(np.array(members), np.zeros(1))
    assert set(log.solved()) == {0}


def test_dbi_and_ch_follow_from_centroids():
    metadata, group = grouped((9, 14), blocks=1)
    method, _ = made(metadata, group, clusters=2)
    method.round(1, np.arange(23))
    phi = method.cohort.phi[:, 0]
    label = method.assignment
    means = np.stack([phi[label == k].mean(axis=0) for k in range(2)])
    width = np.array([np.sqrt(((phi[label == k] - means[k]) ** 2).sum(axis=1).mean()) for k in range(2)])
    dbi, ch = criteria(method.centroids, np.bincount(label).astype(float))
    assert dbi == pytest.approx(width.sum() / np.linalg.norm(means[0] - means[1]))
    from sklearn.metrics import calinski_harabasz_score

    assert ch == pytest.approx(calinski_harabasz_score(phi, label))
