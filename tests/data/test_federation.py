import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flameche.data import Dataset, Federation, Samples, build_federation, load_dataset
from flameche.errors import DataError

Make = Callable[..., Dataset]
Numbers = Callable[[NDArray[np.uint8]], list[int]]


def counts(federation: Federation, client: int) -> list[int]:
    return np.bincount(federation.train.of(client)[1], minlength=federation.classes).tolist()


def same(a: Federation, b: Federation) -> bool:
    return all(
        np.array_equal(getattr(getattr(a, part), field), getattr(getattr(b, part), field))
        for part in ("train", "holdout", "test")
        for field in ("x", "y", "offsets")
    )


@pytest.mark.parametrize("order", ["shuffled", "file"])
def test_no_sample_is_given_twice(numbered: Make, numbers: Numbers, order: str) -> None:
    federation = build_federation(
        numbered(), seed=0, clients=8, per_label=5, holdout=0.3, heterogeneity="csl", order=order
    )
    given = numbers(federation.train.x) + numbers(federation.holdout.x)
    assert len(given) == len(set(given)) == 8 * 10 * 5


def test_every_client_has_its_quota_and_groups_are_contiguous(numbered: Make) -> None:
    federation = build_federation(numbered(), seed=1, clients=8, per_label=5, heterogeneity="csl")
    assert all(counts(federation, i) == [5] * 10 for i in range(8))
    assert federation.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert federation.clients == 8 and federation.shape == (1, 4, 4)
    assert len(federation.holdout) == 8 and federation.holdout.sizes.sum() == 0


def test_images_keep_their_own_labels(numbered: Make, numbers: Numbers) -> None:
    federation = build_federation(numbered(), seed=3, clients=4, per_label=5, heterogeneity="none")
    assert [n % 10 for n in numbers(federation.train.x)] == federation.train.y.tolist()


def test_one_seed_gives_one_federation_and_another_seed_another(numbered: Make) -> None:
    def build(seed: int) -> Federation:
        return build_federation(
            numbered(), seed=seed, clients=8, per_label=5, heterogeneity="csf", holdout=0.2
        )

    assert same(build(0), build(0))
    assert not same(build(0), build(1))


def test_the_seed_decides_who_gets_which_sample(numbered: Make, numbers: Numbers) -> None:
    first, second = (
        set(numbers(build_federation(numbered(), seed=s, clients=4, per_label=5).train.of(0)[0]))
        for s in (0, 1)
    )
    assert first != second


def test_samples_within_a_client_are_shuffled(numbered: Make) -> None:
    federation = build_federation(numbered(), seed=0, clients=4, per_label=5, heterogeneity="none")
    orders = {tuple(federation.train.of(i)[1].tolist()) for i in range(4)}
    assert len(orders) == 4 and tuple(np.repeat(np.arange(10), 5).tolist()) not in orders


def test_more_clients_leave_the_first_ones_as_they_were(numbered: Make) -> None:
    few, many = (
        build_federation(numbered(), seed=0, clients=n, groups=1, per_label=5, holdout=0.4, missing_labels=2)
        for n in (3, 7)
    )
    for client in range(3):
        np.testing.assert_array_equal(few.train.of(client)[0], many.train.of(client)[0])
        np.testing.assert_array_equal(few.holdout.of(client)[0], many.holdout.of(client)[0])


def test_a_holdout_takes_its_share_of_each_label_and_leaves_the_rest(
    numbered: Make, numbers: Numbers
) -> None:
    whole, split = (
        build_federation(numbered(), seed=0, clients=4, per_label=10, holdout=h) for h in (0.0, 0.3)
    )
    for client in range(4):
        assert np.bincount(split.holdout.of(client)[1]).tolist() == [3] * 10
        assert counts(split, client) == [7] * 10
        parts = numbers(split.train.of(client)[0]) + numbers(split.holdout.of(client)[0])
        assert sorted(parts) == sorted(numbers(whole.train.of(client)[0]))


def test_file_order_slices_each_class_from_the_front(numbered: Make, numbers: Numbers) -> None:
    federation = build_federation(numbered(), seed=0, clients=4, per_label=2, groups=1, order="file")
    assert sorted(numbers(federation.train.of(1)[0])) == list(range(20, 40))


def test_a_swap_touches_the_test_labels_of_its_group_only(numbered: Make) -> None:
    data = numbered(name="mnist")
    federation = build_federation(data, seed=0, clients=4, per_label=5, heterogeneity="csl")
    for group, (a, b) in enumerate([(1, 7), (2, 7), (4, 7), (3, 8)]):
        x, y = federation.test.of(group)
        expected = data.test_y.copy()
        expected[data.test_y == a], expected[data.test_y == b] = b, a
        np.testing.assert_array_equal(x, data.test_x)
        np.testing.assert_array_equal(y, expected)


def test_training_and_test_images_of_a_group_see_the_same_transform() -> None:
    data = load_dataset("digits")
    plain, turned = (
        build_federation(data, seed=0, clients=4, per_label=5, heterogeneity=h, label_skew=False)
        for h in ("none", "csf")
    )
    for group in range(4):
        for part in ("train", "test"):
            x, y = getattr(plain, part).of(group)
            got, labels = getattr(turned, part).of(group)
            np.testing.assert_array_equal(got, np.rot90(x, group, axes=(2, 3)))
            np.testing.assert_array_equal(labels, y)


def test_csf_skews_training_labels_by_hand_and_leaves_test_labels(numbered: Make) -> None:
    data = numbered(per_class=5 * 50, name="mnist")
    federation = build_federation(data, seed=0, clients=5, groups=1, per_label=50, heterogeneity="csf")
    assert counts(federation, 0) == [50] * 10
    assert counts(federation, 1) == [2, 14, 26, 38, 47, 38, 26, 14, 5, 2]
    assert counts(federation, 3) == [50, 45, 40, 35, 30, 25, 20, 15, 10, 5]
    np.testing.assert_array_equal(federation.test.of(0)[1], data.test_y)


def test_skew_counts_come_before_the_holdout(numbered: Make) -> None:
    data = numbered(per_class=5 * 50)
    federation = build_federation(
        data, seed=0, clients=5, groups=1, per_label=50, heterogeneity="csf", holdout=0.3
    )
    held = np.bincount(federation.holdout.of(1)[1], minlength=10).tolist()
    kept = [2, 14, 26, 38, 47, 38, 26, 14, 5, 2]
    assert held == [round(0.3 * n) for n in kept]
    assert [a + b for a, b in zip(held, counts(federation, 1), strict=True)] == kept


def test_a_skew_goes_by_the_label_the_client_sees(numbered: Make) -> None:
    federation = build_federation(
        numbered(per_class=250), seed=0, clients=5, groups=1, per_label=50, transforms=["swap:0,4"],
        label_skew=True,
    )  # fmt: skip
    assert counts(federation, 1) == [2, 14, 26, 38, 47, 38, 26, 14, 5, 2]


def test_each_client_loses_its_own_missing_labels_from_training_and_holdout(numbered: Make) -> None:
    federation = build_federation(
        numbered(), seed=0, clients=8, per_label=5, missing_labels=2, holdout=0.2, heterogeneity="none"
    )
    lost = []
    for client in range(8):
        missing = frozenset(np.flatnonzero(np.array(counts(federation, client)) == 0).tolist())
        assert len(missing) == 2
        assert not missing & set(federation.holdout.of(client)[1].tolist())
        lost.append(missing)
    assert len(set(lost)) > 1
    assert sorted(set(federation.test.y.tolist())) == list(range(10))


@pytest.mark.parametrize("score", ["pool", "own"])
@pytest.mark.parametrize("heterogeneity", ["none", "csl"])
def test_a_group_loses_the_same_labels_and_is_not_tested_on_them(
    numbered: Make, score, heterogeneity
) -> None:
    how = {"seed": 0, "clients": 8, "per_label": 5, "heterogeneity": heterogeneity, "score": score}
    federation = build_federation(numbered(), missing_labels=2, missing_by="group", holdout=0.2, **how)
    lost = [np.flatnonzero(np.array(counts(federation, client)) == 0).tolist() for client in range(8)]
    assert all(len(labels) == 2 for labels in lost)
    assert len({tuple(labels) for labels in lost}) == 4  # another pair for every group of two clients
    for client, labels in enumerate(lost):
        assert labels == lost[client // 2 * 2]
        for seen in (
            federation.holdout.of(client)[1],
            federation.test.of(int(federation.test_of[client]))[1],
        ):
            assert set(seen.tolist()) == set(range(10)) - set(labels)
    plain = build_federation(numbered(), missing_by="group", holdout=0.2, **how)  # none is missing
    assert len(plain.test.y) > len(federation.test.y)


def test_unequal_groups_take_other_labels_as_long_as_there_are_any(numbered: Make) -> None:
    how = {"seed": 3, "clients": 8, "groups": [1, 4, 3], "per_label": 5, "missing_by": "group"}
    for missing, different in ((3, 9), (4, 10)):  # of ten labels
        federation = build_federation(numbered(), missing_labels=missing, heterogeneity="none", **how)
        lost = [set(np.flatnonzero(np.array(counts(federation, i)) == 0).tolist()) for i in (0, 1, 5)]
        assert [len(labels) for labels in lost] == [missing] * 3 and len(set.union(*lost)) == different


def test_drift_is_refused_where_groups_lack_labels(numbered: Make) -> None:
    how = {"seed": 0, "clients": 8, "per_label": 5, "moved": {0: 1}, "missing_by": "group"}
    with pytest.raises(DataError, match="knows no drift"):
        build_federation(numbered(), missing_labels=1, **how)
    assert build_federation(numbered(), heterogeneity="csl", **how).group[0] == 1  # nothing is missing


def test_a_client_with_a_single_class_is_allowed(numbered: Make) -> None:
    federation = build_federation(numbered(), seed=0, clients=4, per_label=5, missing_labels=9)
    assert all(sorted(counts(federation, i)) == [0] * 9 + [5] for i in range(4))


def test_a_client_left_with_one_sample_is_refused(numbered: Make) -> None:
    with pytest.raises(DataError, match=r"client 0 is left with 1 training samples.*data\.per_label"):
        build_federation(numbered(), seed=0, clients=4, per_label=1, missing_labels=9)


def test_asking_for_more_samples_than_there_are_names_class_have_need_and_remedy(numbered: Make) -> None:
    data = numbered(per_class=39)
    with pytest.raises(DataError) as caught:
        build_federation(data, seed=0, clients=8, per_label=5)
    text = str(caught.value)
    assert "class 0 has 39" in text and "need 40" in text and "data.allow_fewer" in text
    assert "\n" not in text


def test_a_label_that_no_training_sample_has_is_named(numbered: Make) -> None:
    data = numbered()
    gap = dataclasses.replace(data, train_y=np.where(data.train_y == 2, 3, data.train_y))
    with pytest.raises(DataError, match=r"no training sample has label 2; number the classes 0, 1, 2, …"):
        build_federation(gap, seed=0, clients=4, per_label=5)


def test_allow_fewer_shares_short_classes_evenly_and_keeps_the_quota_of_the_others(numbers: Numbers) -> None:
    y = np.repeat([0, 1], [11, 40])
    x = np.zeros((51, 1, 2, 2), np.uint8)
    x[:, 0, 0, 0] = np.arange(51)
    federation = build_federation(
        Dataset("short", 2, x, y, x, y), seed=0, clients=4, groups=1, per_label=5, heterogeneity="none",
        allow_fewer=True,
    )  # fmt: skip
    per_client = [counts(federation, i) for i in range(4)]
    assert sorted(c[0] for c in per_client) == [2, 3, 3, 3]
    assert [c[1] for c in per_client] == [5] * 4
    assert len(set(numbers(federation.train.x))) == 31


def test_left_overs_of_short_classes_are_not_all_given_to_the_first_client(numbered: Make) -> None:
    federation = build_federation(
        numbered(per_class=9), seed=0, clients=4, per_label=5, heterogeneity="none", allow_fewer=True
    )
    assert np.ptp(federation.train.sizes) <= 1


def test_pool_scoring_has_one_set_per_group_and_own_scoring_one_disjoint_slice_per_client(
    numbered: Make, numbers: Numbers
) -> None:
    data = numbered()
    pool, own = (
        build_federation(data, seed=0, clients=8, per_label=5, heterogeneity="csl", score=s)
        for s in ("pool", "own")
    )
    assert len(pool.test) == 4 and pool.test.sizes.tolist() == [80] * 4
    np.testing.assert_array_equal(pool.test_of, pool.group)
    assert len(own.test) == 8 and own.test_of.tolist() == list(range(8))
    slices = [numbers(own.test.of(i)[0]) for i in range(8)]
    assert sorted(n for part in slices for n in part) == sorted(numbers(data.test_x))
    truth = dict(zip(numbers(data.test_x), data.test_y.tolist(), strict=True))
    swapped = [(truth[n], int(y)) for n, y in zip(slices[0], own.test.of(0)[1], strict=True)]
    assert {pair for pair in swapped if pair[0] != pair[1]} == {(0, 2), (2, 0)}


def test_own_scoring_needs_a_test_sample_per_client(numbered: Make) -> None:
    with pytest.raises(DataError, match="too few for 8 clients"):
        build_federation(
            numbered(classes=2, test_per_class=3), seed=0, clients=8, per_label=5, score="own",
            heterogeneity="none",
        )  # fmt: skip


def test_group_sizes_may_be_unequal_or_given(numbered: Make) -> None:
    given = build_federation(
        numbered(), seed=0, clients=8, groups=[5, 1, 2], per_label=5, heterogeneity="csl"
    )
    assert given.group.tolist() == [0] * 5 + [1] + [2] * 2
    uneven = build_federation(numbered(), seed=0, clients=7, groups=3, per_label=5, heterogeneity="csl")
    assert uneven.group.tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"heterogeneity": "none"},
        {"transforms": ["rotate:90"] * 4, "heterogeneity": "csl"},
        {"missing_labels": 2},
        {"label_skew": True},
        {"moved": {0: 1}},
    ],
)
def test_where_nothing_makes_groups_differ_all_clients_are_in_one(numbered: Make, how) -> None:
    federation = build_federation(numbered(), seed=0, clients=8, per_label=5, **how)
    assert federation.group.tolist() == [0] * 8


def test_data_are_dealt_as_they_are_unless_something_else_is_said(numbered: Make, numbers: Numbers) -> None:
    federation = build_federation(numbered(), seed=0, clients=8, per_label=5)
    assert federation.setting == "none"
    assert [n % 10 for n in numbers(federation.train.x)] == federation.train.y.tolist()


def test_one_client_makes_a_federation(numbered: Make) -> None:
    federation = build_federation(numbered(), seed=0, clients=1, groups=1, per_label=5)
    assert federation.clients == 1 and len(federation.train) == 1


def test_the_dataset_itself_is_left_untouched(numbered: Make) -> None:
    data = numbered()
    before = data.train_x.copy(), data.train_y.copy(), data.test_x.copy(), data.test_y.copy()
    federation = build_federation(
        data, seed=0, clients=4, per_label=5, transforms=["none", "invert"], groups=2
    )
    federation.train.x[:] = 0
    federation.test.x[:] = 0
    for old, now in zip(before, (data.train_x, data.train_y, data.test_x, data.test_y), strict=True):
        np.testing.assert_array_equal(old, now)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heterogeneity": "cls"}, "did you mean 'csl'"),
        ({"skew_split": "evn"}, "did you mean 'even'"),
        ({"score": "pooled"}, "did you mean 'pool'"),
        ({"order": "sorted"}, "data.order"),
        ({"zoom": "crops"}, "did you mean 'crop'"),
        ({"clients": 0}, "data.clients is 0"),
        ({"groups": 0}, "data.groups is 0"),
        ({"groups": 9}, "1…8"),
        ({"groups": [3, 3]}, "add up to 8"),
        ({"groups": [9, -1]}, "at least 1"),
        ({"per_label": 0}, "data.per_label is 0"),
        ({"holdout": 1.0}, "data.holdout"),
        ({"holdout": float("nan")}, "data.holdout"),
        ({"missing_labels": 10}, "0…9"),
        ({"transforms": ["none"]}, "1 entries for 4 groups"),
        ({"transforms": "none"}, "expected a list"),
        ({"groups": 5, "heterogeneity": "csl"}, "data.transforms"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(numbered: Make, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        build_federation(numbered(), seed=0, **{"clients": 8, "per_label": 5, **options})
    assert "\n" not in str(caught.value)


def test_label_skew_of_more_than_ten_classes_is_refused(numbered: Make) -> None:
    with pytest.raises(DataError, match="label skew is defined for 10 classes"):
        build_federation(numbered(classes=11), seed=0, clients=4, per_label=5, heterogeneity="csf")


def test_samples_refuse_a_set_that_is_not_there(numbered: Make) -> None:
    federation = build_federation(numbered(), seed=0, clients=4, per_label=5)
    with pytest.raises(IndexError):
        federation.train.of(-1)


def test_joining_puts_each_clients_sets_side_by_side():
    first = Samples(np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1), np.arange(5), np.array([0, 2, 5]))
    second = Samples(np.array([9, 8], np.uint8).reshape(2, 1, 1, 1), np.array([9, 8]), np.array([0, 1, 2]))
    both = first.joined(second)
    assert both.y.tolist() == [0, 1, 9, 2, 3, 4, 8] and both.offsets.tolist() == [0, 3, 7]
    assert both.x.ravel().tolist() == both.y.tolist()


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"heterogeneity": "csf"}, "csf"),
        ({"heterogeneity": "csf", "label_skew": False}, "csf-unskewed"),
        ({"heterogeneity": "csl", "label_skew": True}, "csl-skewed"),
        ({"heterogeneity": "csl", "missing_labels": 1}, "csl-missing1"),
        ({"heterogeneity": "csl", "missing_labels": 1, "missing_by": "group"}, "csl-missing1-group"),
        ({"transforms": ["none", "invert"], "groups": 2}, "custom"),
    ],
)
def test_the_setting_is_named_after_what_was_built(how, name):
    digits = load_dataset("digits")
    assert build_federation(digits, seed=0, clients=8, **{"per_label": 10, **how}).setting == name
