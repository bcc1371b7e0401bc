import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.protocol import guard as module
from flameche.protocol.guard import LeakageGuard


def ask(guard, *clusters):
    """Ask for the sums over these sets of clients, one per cluster."""
    members = np.array([i for cluster in clusters for i in cluster], np.int64)
    assignment = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])
    return guard.permits(members, assignment)


def sums(sets):
    """All sums of opened sums, as the number of times each client is in them: the oracle."""
    opened = [np.array([i in s for i in range(12)], int) for s in sets if s]
    for n in range(1, len(opened) + 1):
        for chosen in itertools.combinations(opened, n):
            yield tuple(np.sum(chosen, axis=0).tolist())


histories = st.lists(
    st.lists(st.integers(-1, 2), min_size=12, max_size=12), min_size=1, max_size=6
)  # each round: every client's cluster, -1 for absent


@settings(max_examples=150, deadline=None, derandomize=True)
@given(histories, st.integers(2, 4))
def test_no_two_combinations_of_released_sums_ever_differ_by_few(rounds, least):
    guard, current, seen = LeakageGuard(12, 3, least), [set(), set(), set()], set()
    for assignment in rounds:
        asked = [{i for i, k in enumerate(assignment) if k == c} for c in range(3)]
        for c, good in enumerate(ask(guard, *asked)):
            assert not good or len(asked[c]) >= least
            if good:
                current[c] = asked[c]
        fresh = set(sums(current))
        for one, other in itertools.product(fresh, seen):
            apart = sum(a != b for a, b in zip(one, other, strict=True))
            assert not 0 < apart < least, (one, other)
        seen |= fresh


class PlainGuard:
    """The same rule, client by client: the oracle of the fast one."""

    def __init__(self, clients, clusters, least):
        self.least, self.released = least, np.zeros((clusters, clients), int)
        self.unions, self.known = module._unions(clusters).astype(int), []

    def permits(self, members, assignment):
        now = np.zeros_like(self.released)
        now[assignment, members] = 1
        there = now.any(axis=1)
        after = np.where(there[:, None], now, self.released)
        allowed = ~np.isin(after.sum(axis=1), range(1, self.least))
        while True:
            shown = np.where(allowed[:, None], after, self.released)
            moved = (shown != self.released).sum(axis=1)
            leaking = [self.near(row) for row in self.unions @ shown]
            suspects = np.flatnonzero(self.unions[leaking].any(axis=0) & (moved > 0))
            if len(suspects) == 0:
                break
            allowed[suspects[moved[suspects].argmin()]] = False
        allowed &= there
        self.released = np.where(allowed[:, None], now, self.released)
        self.known += [row for row in self.unions @ self.released if row.any()]
        return allowed.tolist()

    def near(self, row):
        return row.any() and any(0 < (row != old).sum() < self.least for old in self.known)


@pytest.mark.parametrize("clusters", [1, 2, 4, 8])
@pytest.mark.parametrize("over", ["seen", "participants"])
def test_kinds_of_clients_are_compared_as_the_clients_would_be(clusters, over):
    rng = np.random.default_rng(clusters)
    for clients, least in ((7, 2), (20, 3), (40, 5)):
        fast, plain = LeakageGuard(clients, clusters, least), PlainGuard(clients, clusters, least)
        home, seen = rng.integers(0, clusters, clients), np.zeros(clients, bool)
        for _ in range(20):
            here = rng.random(clients) < 0.5
            seen |= here
            home = np.where(rng.random(clients) < 0.1, rng.integers(0, clusters, clients), home)
            members = np.flatnonzero(seen if over == "seen" else here)
            assert fast.permits(members, home[members]) == plain.permits(members, home[members])
        assert fast.deferred > 0 or clusters == 1


def test_what_is_remembered_is_bounded_and_the_newest_stays(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 40)
    guard = LeakageGuard(20, 1, 3)
    for start in (0, 5, 10):
        assert ask(guard, set(range(start, start + 10))) == [True]
    assert guard.state()["guard_past"].shape == (2, 20)
    assert ask(guard, set(range(10, 19))) == [False]  # one less than the last
    assert ask(guard, set(range(9))) == [True]  # one less than the first, which is forgotten


def test_a_hundred_thousand_clients_take_a_byte_each_and_release():
    guard, rng = LeakageGuard(100_000, 16, 3), np.random.default_rng(0)
    home, seen = rng.integers(0, 16, 100_000), np.zeros(100_000, bool)
    for _ in range(3):
        seen[rng.choice(100_000, 1000, replace=False)] = True
        members = np.flatnonzero(seen)
        assert all(guard.permits(members, home[members]))
    assert guard.state()["guard_past"].nbytes == 300_000


@settings(max_examples=60, deadline=None, derandomize=True)
@given(histories)
def test_asking_again_releases_what_was_released(rounds):
    guard = LeakageGuard(12, 3, 3)
    for assignment in rounds:
        asked = [{i for i, k in enumerate(assignment) if k == c} for c in range(3)]
        first, second = ask(guard, *asked), ask(guard, *asked)
        assert first == second


def test_a_sum_below_the_least_is_held_back_and_counted():
    guard = LeakageGuard(10, 2, 3)
    assert ask(guard, {0, 1}, {2, 3, 4}) == [False, True]
    assert guard.deferred == 1


def test_one_that_joined_waits_and_three_do_not():
    guard = LeakageGuard(10, 1, 3)
    assert ask(guard, {0, 1, 2}) == [True]
    assert ask(guard, {0, 1, 2, 3}) == [False]
    assert ask(guard, {0, 1, 2, 3, 4}) == [False]
    assert ask(guard, {0, 1, 2, 3, 4, 5}) == [True]
    assert guard.deferred == 2


def test_a_sum_that_did_not_change_is_released_again():
    guard = LeakageGuard(10, 1, 3)
    assert ask(guard, {0, 1, 2}) == ask(guard, {0, 1, 2}) == [True]


def test_three_who_move_do_not_show_a_fourth_who_is_new():
    guard = LeakageGuard(10, 2, 3)
    assert ask(guard, {0, 1, 2, 3, 4, 5}, {6, 7, 8}) == [True, True]
    assert ask(guard, {3, 4, 5}, {0, 1, 2, 6, 7, 8, 9}) != [True, True]


def test_a_cluster_under_another_name_is_recognised_however_often_it_is_asked_for():
    guard = LeakageGuard(10, 2, 3)
    assert ask(guard, {0, 1, 2, 3, 4, 5}, set()) == [True, False]
    for _ in range(3):
        assert ask(guard, set(), {0, 1, 2, 3, 4}) == [False, False]


def test_what_was_released_long_ago_is_remembered():
    guard = LeakageGuard(20, 2, 3)
    assert ask(guard, set(range(10)), set()) == [True, False]
    assert ask(guard, set(range(10, 20)), set()) == [True, False]
    assert ask(guard, set(range(9)), set()) == [False, False]


def test_a_round_without_anybody_undoes_nothing():
    guard = LeakageGuard(10, 1, 3)
    assert ask(guard, {0, 1, 2, 3}) == [True]
    assert ask(guard, set()) == [False]
    assert ask(guard, {0, 1, 2}) == [False]


@pytest.mark.parametrize("clusters", [2, 8])
def test_a_least_of_one_permits_everything_there_is(clusters):
    guard = LeakageGuard(10, clusters, 1)
    sets = [{0}, {1, 2}] + [set()] * (clusters - 2)
    assert ask(guard, *sets) == [True, True] + [False] * (clusters - 2)


def test_more_clusters_than_all_unions_are_guarded_by_themselves_in_pairs_and_together():
    guard = LeakageGuard(40, 8, 3)
    sets = [set(range(5 * k, 5 * k + 5)) for k in range(7)] + [set()]
    assert ask(guard, *sets) == [True] * 7 + [False]
    moved = [sets[0] - {0, 1, 2}, sets[1] | {0, 1, 2, 39}, *sets[2:]]  # three move, client 39 is new
    assert ask(guard, *moved)[:2] != [True, True]


def test_a_restored_guard_remembers():
    guard, again = LeakageGuard(10, 1, 3), LeakageGuard(10, 1, 3)
    ask(guard, {0, 1, 2})
    ask(guard, {0, 1, 2, 3})
    again.restore(guard.state())
    assert ask(again, {0, 1, 2, 3}) == ask(guard, {0, 1, 2, 3}) == [False]
    assert again.deferred == guard.deferred == 2
