"""Sums of a federation whose clients drift, leave and come back, under every scheme; what the guard says."""

from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.em.spherical import statistics
from flameche.errors import BadInput
from flameche.metadata.extractors import Metadata
from flameche.protocol.client import Cohort
from flameche.protocol.given import Given
from flameche.protocol.hidden import HiddenSums
from flameche.protocol.ledger import Ledger
from tests.attacks import pairs, solvable
from tests.conftest import planted_metadata
from tests.protocol.test_sums import in_the_clear, offer, same, scheme, sums

CLIENTS, CLUSTERS = 12, 3
WAYS = ["plain", "bfv", "ckks", "paillier", "secagg", "hidden"]
NOISE = 1e-5
ERROR = {"plain": 2**-23, "ckks": 2**-28}  # elsewhere exact, up to the codec's rounding


@cache
def versions():
    """Four sets of metadata, each client's data as they may drift."""
    return [planted_metadata(clients=CLIENTS, groups=3, noise=0.3, seed=seed)[0] for seed in range(4)]


def made(way, *, least=1, ledger=None):
    ledger = ledger or Ledger(CLIENTS)
    if way == "hidden":
        cohort = Cohort(versions()[0], scheme("bfv"), ledger)
        return HiddenSums(cohort, scheme("bfv"), CLUSTERS, least, ledger), cohort
    own = sums(way, least=least, metadata=versions()[0], ledger=ledger)
    return own, own._cohort


def term(client, version):
    """A client's term, as the integers that exact schemes add, read back."""
    metadata = versions()[version].of(np.array([client]))
    codec = scheme("secagg").codec
    return codec.decode(codec.encode(statistics(metadata.phi, metadata.presence)[0]))


def drift(way, cohort, clients, version):
    way.drifted(clients)
    cohort.drift(clients, versions()[version].of(clients))


class World:
    """Who is where with which data: `told` is what the server's sums know, `has` what clients have."""

    def __init__(self, name, least=1):
        self.name, (self.way, self.cohort) = name, made(name, least=least)
        self.has, self.told = np.zeros(CLIENTS, int), np.zeros(CLIENTS, int)
        self.home, self.there = np.full(CLIENTS, -1), np.ones(CLIENTS, bool)

    def drift(self, clients, version):
        drift(self.way, self.cohort, clients, version)
        self.has[clients] = version

    def leave(self, clients):
        self.way.forget(clients)
        self.home[clients], self.there[clients] = -1, False

    def join(self, clients):
        self.there[clients] = True

    def play(self, clients, k):
        offer(self.way, clients, k)
        self.home[clients], self.told[clients] = k, self.has[clients]
        return self.totals()

    def totals(self):
        seen = np.flatnonzero(self.home >= 0)
        return self.way.totals(seen, self.home[seen])

    def expected(self):
        return [
            sum((term(i, self.told[i]) for i in np.flatnonzero(self.home == k)), np.zeros(36))
            for k in range(CLUSTERS)
        ]

    def check(self, found):
        for k, (total, wanted) in enumerate(zip(found, self.expected(), strict=True)):
            size = int((self.home == k).sum())
            assert (total is None) == (size == 0)
            if total is not None:
                bound = 8 * size * ERROR.get(self.name, 0.0) + (2**-20 * size if self.name in ERROR else 0)
                assert np.abs(total - wanted).max() <= bound, self.name


def walk(world, seed, steps):
    """Let clients drift, leave, come back and take part at random; compare every sum."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        away, here = np.flatnonzero(~world.there), np.flatnonzero(world.there)
        if len(away) and rng.random() < 0.5:
            world.join(rng.permutation(away)[:2])
        if len(here) > 6 and rng.random() < 0.5:
            world.leave(rng.permutation(here)[:2])
        if rng.random() < 0.7:
            world.drift(np.sort(rng.choice(CLIENTS, 3, replace=False)), int(rng.integers(4)))
        here = np.flatnonzero(world.there)
        who = np.sort(rng.choice(here, rng.integers(2, len(here) + 1), replace=False))
        world.check(world.play(who, rng.integers(0, CLUSTERS, len(who))))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_masked_sums_are_those_of_who_is_there_and_what_they_told_whatever_happens(seed):
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        walk(World("secagg"), seed, 8)


@pytest.mark.parametrize("way", [w for w in WAYS if w != "secagg"])
@pytest.mark.parametrize("seed", [0, 1])
def test_stored_and_hidden_sums_are_those_of_who_is_there_and_what_they_told(way, seed):
    walk(World(way), seed, 8)


def test_real_sessions_give_the_same():
    walk(World("secagg"), 3, 5)


everybody = np.arange(CLIENTS)
HOME = everybody % CLUSTERS


@pytest.mark.parametrize("way", WAYS)
def test_after_a_drift_sums_are_those_of_a_federation_that_always_had_the_new_data(way):
    moved = np.array([1, 4, 5])
    old = World(way)
    old.play(everybody, HOME)
    old.drift(moved, 2)
    between = old.totals()
    old.check(between)  # nobody told yet
    found = old.play(moved, HOME[moved])
    new = World(way)
    new.drift(moved, 2)
    never = new.play(everybody, HOME)
    assert all(np.abs(a - b).max() <= NOISE * (way == "ckks") for a, b in zip(found, never, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(found[1:], between[1:], strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_after_leaving_sums_are_those_of_a_federation_that_never_had_them_and_coming_back_restores_them(way):
    gone, rest = np.array([0, 4, 8, 3]), np.array([1, 2, 5, 6, 7, 9, 10, 11])
    world, never = World(way), World(way)
    whole = world.play(everybody, HOME)
    never.play(rest, HOME[rest])
    world.leave(gone)
    found = world.play(rest, HOME[rest])  # under masks, the last session of those who leave
    assert all(
        np.abs(a - b).max() <= NOISE * (way == "ckks") for a, b in zip(found, never.totals(), strict=True)
    )
    world.join(gone)
    again = world.play(gone, HOME[gone])
    assert all(np.abs(a - b).max() <= NOISE * (way == "ckks") for a, b in zip(again, whole, strict=True))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "ckks"])  # its every sealing has other noise
@pytest.mark.parametrize("least", [1, 3])
def test_a_restart_between_drift_leaving_and_the_next_round_changes_no_sum(way, least):
    world, again = World(way, least), World(way, least)
    world.play(everybody, HOME)
    world.drift(np.array([0, 3, 6, 9]), 1)
    world.leave(np.array([2, 5, 8]))
    again.way.restore({name: array.copy() for name, array in world.way.state().items()})
    again.cohort.take(everybody, world.cohort.phi, world.cohort.weight)
    again.home = world.home.copy()
    who = np.array([0, 1, 3, 4, 6, 9])
    first, second = (each.play(who, HOME[who]) for each in (world, again))
    assert same(first, second) and first[0] is not None
    states = [each.way.state() for each in (world, again)]
    assert states[0].keys() == states[1].keys()


# Under masks


def test_a_client_that_vanished_leaves_its_part_behind():
    world = World("secagg")
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        whole = world.play(everybody, HOME)
        world.way.forget(np.array([0]), vanished=True)
        rest = everybody[1:]
        assert same(world.play(rest, HOME[rest]), whole)


def test_who_leaves_pays_for_its_last_session_and_not_for_another():
    ledger = Ledger(CLIENTS)
    way, _ = made("secagg", ledger=ledger)
    with patch("flameche.protocol.masked.aggregate", in_the_clear_with_costs):
        offer(way, everybody, HOME)
        way.forget(np.array([7]))
        for homes in (HOME[:3], np.array([1, 2, 0])):
            offer(way, np.array([0, 1, 2]), homes)
    assert ledger.per_client("up")[[0, 7, 8]].tolist() == [3, 2, 1]


def in_the_clear_with_costs(vectors, **how):
    total, who, costs = in_the_clear(vectors, **how)
    costs.up[:] = 1
    return total, who, costs


def test_who_is_held_back_says_nothing_while_others_move():
    way, cohort = made("secagg", least=3)
    home, sent = np.repeat([0, 1, 2], 4), []

    def watched(vectors, **how):
        sent.append(vectors)
        return in_the_clear(vectors, **how)

    with patch("flameche.protocol.masked.aggregate", watched):
        offer(way, everybody, home)
        before = [total.copy() for total in way._sums]
        drift(way, cohort, np.array([0]), 1)
        offer(way, everybody, np.where((home == 1), 2, home))
    assert not sent[-1][:4].any() and sent[-1][4:8].any()  # not in the session either
    assert np.array_equal(way._sums[0], before[0])
    assert way._sums[1] is None and np.array_equal(way._sums[2], before[1] + before[2])


def test_who_comes_back_before_it_was_taken_out_stays():
    world = World("secagg")
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        whole = world.play(everybody, HOME)
        world.way.forget(np.array([0, 3]))
        assert same(world.play(everybody, HOME), whole)


# What is kept and sent


@pytest.mark.parametrize("way", ["plain", "bfv", "hidden"])
def test_the_server_keeps_nothing_of_who_left(way):
    world, gone = World(way), np.array([2, 7])
    world.play(everybody, HOME)
    world.leave(gone)
    assert not world.way._server.holds(gone).any() and world.way._server.holds(everybody).sum() == 10
    assert not {"term/2", "term/7"} & world.way.state().keys()


@pytest.mark.parametrize("kind", ["plain", "bfv", "paillier"])
def test_a_drifted_client_seals_once_more_and_the_others_do_not(kind):
    ledger = Ledger(CLIENTS)
    way, cohort = made(kind, ledger=ledger)
    offer(way, everybody, HOME)
    once = ledger.per_client("up").copy()
    drift(way, cohort, np.array([2, 5]), 1)
    drift(way, cohort, np.array([5]), 0)  # and back, before it said so
    for _ in range(2):
        offer(way, everybody, HOME)
    more = ledger.per_client("up") - once
    assert np.flatnonzero(more).tolist() == [2] and more[2] < 1.5 * once[2]


def test_metadata_of_another_shape_are_refused():
    _, cohort = made("plain")
    with pytest.raises(BadInput, match=r"metadata of shape \[2, 5, 3\] for 2 clients, expected \[2, 5, 6\]"):
        cohort.differ(np.array([0, 1]), Metadata(np.ones((2, 5, 3)), np.ones((2, 5), np.int64)))


def test_a_term_that_is_given_again_keeps_its_number():
    _, cohort = made("plain")
    given, who = Given(cohort), np.array([3, 4])
    numbers = []
    for version in (1, 2, 1, 0, 3):
        given.keep(who[:1])
        cohort.drift(who[:1], versions()[version].of(who[:1]))
        numbers.append(given.version(who).tolist())
        given.told(who)
    assert numbers == [[1, 0], [2, 0], [1, 0], [0, 0], [3, 0]]


def test_the_first_metadata_stay_who_gave_thems():
    metadata = versions()[0]
    before = metadata.phi.copy()
    _, cohort = made("plain")
    cohort.drift(np.array([0]), versions()[1].of(np.array([0])))
    assert np.array_equal(metadata.phi, before) and not np.array_equal(cohort.phi[0], before[0])


def test_what_was_given_is_remembered_until_told():
    _, cohort = made("plain")
    given, who = Given(cohort), np.array([3, 4])
    old = given.of(who)
    given.keep(who)
    cohort.drift(who, versions()[1].of(who))
    given.keep(who)  # a second drift
    cohort.drift(who, versions()[2].of(who))
    assert given.changed(np.array([2, 3, 4])).tolist() == [False, True, True]
    assert np.array_equal(given.of(who), old)
    given.told(np.array([3]))
    assert given.changed(who).tolist() == [False, True]
    cohort.drift(who, versions()[0].of(who))
    assert given.changed(who).tolist() == [False, False]


# The guard


class Opened:
    """Watches which sums a server lets go, by the terms that they hold."""

    def __init__(self, world):
        self.world, self.rows = world, []

    def look(self, found):
        for k, total in enumerate(found):
            if total is not None:
                mine = np.flatnonzero(self.world.home == k).tolist()
                row = {(i, int(self.world.told[i])): 1.0 for i in mine}
                assert np.abs(sum(term(i, version) for i, version in row) - total).max() < 1e-4
                self.rows.append(row)


@pytest.mark.parametrize(("way", "seed"), [*(("plain", seed) for seed in range(6)), ("bfv", 0), ("bfv", 1)])
def test_a_guarded_server_never_shows_the_change_of_few(way, seed):
    world, rng = World(way, least=3), np.random.default_rng(seed)
    opened, released = Opened(world), 0
    for step in range(10):
        if step and rng.random() < 0.8:
            world.drift(np.sort(rng.choice(CLIENTS, rng.integers(1, 5), replace=False)), int(rng.integers(4)))
        who = np.sort(rng.choice(CLIENTS, rng.integers(4, 13), replace=False))
        k = np.where((world.home[who] >= 0) & (rng.random(len(who)) < 0.9), world.home[who], who % CLUSTERS)
        found = world.play(who, k)
        opened.look(found)
        released += sum(total is not None for total in found)
    assert released > 3 and not any(solvable(opened.rows, some) for some in pairs(CLIENTS))


@pytest.mark.parametrize("seed", range(6))
def test_guarded_masked_sums_never_change_by_the_part_of_few(seed):
    way, cohort = made("secagg", least=3)
    rng, home = np.random.default_rng(seed), np.full(CLIENTS, -1)
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        offer(way, everybody, HOME)
        home[:], history, changes = HOME, [way._part.copy()], 0
        rows = [*rows_of(way._part)]
        for _ in range(14):
            drift(
                way,
                cohort,
                np.sort(rng.choice(CLIENTS, rng.integers(1, 4), replace=False)),
                int(rng.integers(4)),
            )
            if rng.random() < 0.3:
                way.forget(rng.choice(CLIENTS, 1))
            who = np.sort(rng.choice(CLIENTS, rng.integers(3, 13), replace=False))
            before = [None if s is None else s.copy() for s in way._sums]
            offer(way, who, np.where(rng.random(len(who)) < 0.8, HOME[who], rng.integers(0, 3, len(who))))
            history.append(way._part.copy())
            rows += rows_of(way._part)
            for k in range(CLUSTERS):
                apart = int((history[-1][:, k] != history[-2][:, k]).sum())
                one, other = before[k], way._sums[k]
                assert apart or (one is None and other is None) or np.array_equal(one, other)
                changes += apart > 0
    assert changes > 0 and not any(solvable(rows, some) for some in pairs(CLIENTS))


def rows_of(part):
    """The sums that are open now, by the terms that they hold; `part` [C K] numbers terms from 1 on."""
    rows = [{(i, int(part[i, k])): 1.0 for i in np.flatnonzero(part[:, k])} for k in range(CLUSTERS)]
    return [row for row in rows if row]


def test_what_a_client_leaves_and_what_it_drifts_count_alike_for_the_guard_under_masks():
    way, cohort = made("secagg", least=3)
    with patch("flameche.protocol.masked.aggregate", in_the_clear):
        offer(way, everybody, np.zeros(CLIENTS, np.int64))
        start = way._sums[0].copy()
        drift(way, cohort, np.array([0]), 1)
        offer(way, everybody[:6], np.zeros(6, np.int64))
        assert np.array_equal(way._sums[0], start)  # one alone waits, and so does its drift
        way.forget(np.array([10, 11]))
        offer(way, everybody[:6], np.zeros(6, np.int64))
    codec, told = scheme("secagg").codec, np.zeros(CLIENTS, int)
    told[0] = 1
    assert np.array_equal(codec.decode(way._sums[0]), sum(term(i, told[i]) for i in range(10)))
