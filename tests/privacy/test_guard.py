"""The guard over the whole life of a federation: no combination of opened sums holds a client, or a pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.errors import StoreError
from flameche.privacy.guard import AFTER_SHARES, MARGIN, Guard
from tests.attacks import pairs, solvable

FEW = st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=14)
EIGHTHS = st.lists(
    st.lists(st.sampled_from([0, 0, 1, 4, 7, 8]), min_size=8, max_size=8), min_size=1, max_size=9
)


def rows_of(sets):
    return [{(i, 0): 1.0 for i in members} for members in sets]


@settings(max_examples=150, deadline=None)
@given(FEW)
def test_whatever_it_admits_no_client_and_no_pair_is_solved(sets):
    guard, admitted = Guard(8, 3), []
    for members in sets:
        if guard.admit(np.array(sorted(members))):
            admitted.append(members)
    assert not any(solvable(rows_of(admitted), some) for some in pairs(8))


@settings(max_examples=150, deadline=None)
@given(FEW)
def test_what_it_refuses_would_have_been_solved(sets):
    guard, admitted = Guard(8, 3), []
    for members in sets:
        if guard.admit(np.array(sorted(members))):
            admitted.append(members)
        else:
            rows = rows_of([*admitted, members])
            assert len(members) < 3 or any(solvable(rows, some) for some in pairs(8))


DRIFTS = st.lists(st.tuples(st.sets(st.integers(0, 7), max_size=3), st.sets(st.integers(0, 7), min_size=1)))


@settings(max_examples=150, deadline=None)
@given(DRIFTS, st.integers(2, 3))
def test_drifts_between_sums_change_nothing_of_that(history, least):
    guard, rows = Guard(8, least), []
    for drifting, members in history:
        guard.renew(np.array(sorted(drifting), np.int64))
        row = {(i, int(guard.version[i])): 1.0 for i in members}
        few = pairs(8) if least > 2 else [{i} for i in range(8)]
        if guard.admit(np.array(sorted(members))):
            rows.append(row)
            assert not any(solvable(rows, some) for some in few)
        else:
            assert len(members) < least or any(solvable([*rows, row], some) for some in few)


def test_clients_that_all_sums_count_alike_are_kept_as_one_kind():
    guard, clients = Guard(100_000, 3), 100_000
    home = np.arange(clients) % 16
    for r in range(12):  # a hundredth comes each round, all in their clusters
        seen = np.arange(clients) < 1000 * (r + 1)
        assert all(guard.admit(np.flatnonzero(seen & (home == k))) for k in range(16))
    for _ in range(50):  # sums that did not change
        assert all(guard.admit(np.flatnonzero(seen & (home == k))) for k in range(16))
    assert guard.rank == 16 * 12 and guard.state()["guard/basis"].shape == (192, 193)
    assert not guard.admit(np.append(np.flatnonzero(seen & (home == 0)), 99_999))  # one alone is new
    assert guard.state()["guard/basis"].shape == (192, 193)


def test_a_copy_hears_of_nothing_that_the_guard_admits_and_the_other_way_round():
    guard = Guard(9, 3)
    assert guard.admit(np.arange(6))
    other = guard.copy()
    assert other.admit(np.arange(9)) and guard.rank == 1 and other.rank == 2
    assert guard.admit(np.arange(3)) and guard.rank == other.rank == 2


def test_a_sum_may_hold_earlier_terms_than_those_of_now():
    guard = Guard(9, 3)
    assert guard.admit(np.arange(9))
    guard.renew(np.arange(2))
    assert not guard.admit(np.arange(9))  # it would show how the first two changed
    assert guard.admit(np.arange(9), version=np.zeros(9, np.int64))


def unknown(rows, i):
    """Tell what of client i's unit vector is not in the row space."""
    return 1 - (np.linalg.pinv(rows, rcond=1e-9) @ rows)[i, i]


@settings(max_examples=150, deadline=None)
@given(EIGHTHS)
def test_whatever_shares_it_admits_no_client_nearly_follows(rows):
    guard, admitted = Guard(8, 3), []
    for row in np.array(rows) / 8:
        members, rank = np.flatnonzero(row), guard.rank
        if not guard.admit(members, weight=row[members]):
            continue
        admitted.append(row)
        assert row.sum() ** 2 / (row**2).sum() >= 3 - 1e-6
        if guard.rank > rank and len(np.unique(row[members])) > 1:  # of whole terms, exact solutions count
            assert min(unknown(np.array(admitted), i) for i in range(8)) > MARGIN - 1e-6
    if admitted:
        shares = [{(i, 0): w for i, w in enumerate(row) if w} for row in admitted]
        assert not any(solvable(shares, some) for some in pairs(8))


def test_one_that_counts_in_full_among_eighths_is_refused():
    guard = Guard(30, 3)
    assert not guard.admit(np.arange(3), weight=np.array([1, 0.125, 0.125]))  # effectively 1.5 clients
    many = np.concatenate([np.ones(6), np.full(20, 0.125)])
    assert guard.admit(np.arange(26), weight=many)
    lone = np.concatenate([[0.5], np.ones(5), np.full(20, 0.125)])
    assert not guard.admit(np.arange(26), weight=lone)  # the difference is half of client 0's term
    few = np.concatenate([[0.125, 0.875, 0.875], np.ones(3), np.full(20, 0.125)])
    assert not guard.admit(np.arange(26), weight=few)  # three clients', of which it is mostly one's
    assert guard.admit(np.arange(26), weight=np.concatenate([np.full(3, 0.5), np.ones(3), many[6:]]))


def test_shares_all_alike_are_a_set():
    guard, other = Guard(9, 3), Guard(9, 3)
    for members in ([0, 1, 2, 3], [0, 1, 2], [3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]):
        some = np.array(members)
        assert guard.admit(some) == other.admit(some, weight=np.full(len(some), 0.25))


def test_second_moments_of_multiples_are_compared_by_what_is_not_a_multiple():
    guard = Guard(24, 3)
    assert guard.admit(np.arange(12), "moments")
    assert guard.admit(np.arange(12), "moments", np.full(12, 0.5))  # the same once more
    most = np.concatenate([np.full(8, 0.5), np.ones(4)])
    assert not guard.admit(np.arange(12), "moments", most)  # less half the first: four clients'
    assert guard.admit(np.arange(12), "moments", np.concatenate([np.full(6, 0.5), np.ones(6)]))
    assert not guard.admit(np.arange(12, 19), "moments", np.concatenate([[1], np.full(6, 0.125)]))


def test_three_sums_of_which_every_two_are_harmless():
    guard = Guard(5, 3)
    assert guard.admit(np.array([0, 1, 2])) and guard.admit(np.array([0, 3, 4]))
    assert not guard.admit(np.array([1, 2, 3, 4]))  # the first two less this one are twice client 0
    assert guard.refused == 1 and guard.rank == 2


def test_a_sum_of_sums_tells_nothing_new():
    guard = Guard(9, 3)
    for members in ([0, 1, 2], [3, 4, 5], [0, 1, 2, 3, 4, 5]):
        assert guard.admit(np.array(members))
    assert guard.rank == 2


def test_a_pair_is_refused_since_each_of_it_could_take_itself_out():
    guard = Guard(8, 3)
    assert guard.admit(np.arange(5))
    assert not guard.admit(np.arange(3))  # the rest would be clients 3 and 4
    assert guard.admit(np.arange(8))
    assert guard.admit(np.arange(5))


def test_leverage_is_one_over_the_size_of_a_lone_set():
    guard = Guard(6, 3)
    guard.admit(np.arange(4))
    assert guard.leverage() == pytest.approx([0.25] * 4 + [0.0] * 2)


def test_second_moments_and_histograms_take_twice_as_many():
    guard = Guard(20, 3)
    assert not guard.admit(np.arange(5), "histogram") and not guard.admit(np.arange(5), "moments")
    assert guard.admit(np.arange(6), "histogram") and guard.admit(np.arange(12), "moments")
    assert not guard.admit(np.arange(16), "moments")  # the difference is four clients' moments
    assert guard.admit(np.arange(18), "moments")


def test_what_a_client_had_before_its_data_drifted_is_no_second_client():
    guard = Guard(6, 3)
    assert guard.admit(np.arange(6))
    guard.renew(np.array([0]))
    assert not guard.admit(np.arange(6))  # the difference is the new data less the old
    guard.renew(np.array([1]))
    assert not guard.admit(np.arange(6))  # and now that of two clients
    guard.renew(np.array([2]))
    assert guard.admit(np.arange(6))


def test_where_nothing_is_guarded_anything_goes():
    guard = Guard(3, 1)
    assert guard.admit(np.array([1])) and guard.admit(np.array([0, 1]))


def test_after_shares_whole_terms_too_must_leave_clients_unknown():
    rng = np.random.default_rng(0)
    for _ in range(20):
        guard, rows = Guard(12, 3), []
        for step in range(30):
            row = rng.choice([0.0, 0.125, 0.5, 1.0], 12) if step < 4 else (rng.random(12) < 0.6) * 1.0
            members = np.flatnonzero(row)
            if len(members) and guard.admit(members, weight=row[members]):
                rows.append(row)
        assert min(unknown(np.array(rows), i) for i in range(12)) > AFTER_SHARES - 1e-6


def test_a_checkpoint_without_its_memory_is_refused():
    with pytest.raises(StoreError, match="--fresh"):
        Guard(9, 3).restore({"guard_released": np.zeros(9)})


def test_its_memory_survives_a_restart():
    guard = Guard(9, 3)
    guard.admit(np.arange(6), "moments")
    guard.admit(np.arange(9), weight=np.array([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5]))
    guard.renew(np.array([0, 1, 2]))
    again = Guard(9, 3)
    again.restore(guard.state())
    for members in (np.arange(5), np.arange(7), np.arange(6), np.arange(3, 9)):
        assert guard.admit(members, "moments") == again.admit(members, "moments")
    assert guard.leverage() == pytest.approx(again.leverage())
