from itertools import pairwise

import numpy as np
import pytest

from flameche.data.heterogeneity import (
    FEATURE_SHIFTS,
    SHARES,
    SWAPS,
    default_transforms,
    kept,
    parse_transform,
    skew_variants,
)
from flameche.data.sources import SOURCES
from flameche.errors import DataError

GREY = (1, 28, 28)


def test_swap_exchanges_two_labels_and_leaves_pixels_alone() -> None:
    swap = parse_transform("swap:1,7", classes=10, shape=GREY)
    x = np.arange(784, dtype=np.uint16).astype(np.uint8).reshape(1, *GREY)
    assert swap.labels(np.array([0, 1, 7, 9])).tolist() == [0, 7, 1, 9]
    assert swap.images(x) is x


def test_geometry_leaves_labels_alone() -> None:
    labels = np.arange(10)
    for text in ("rotate:90", "erode:3", "dilate:8", "zoom", "invert", "channels:0", "none"):
        np.testing.assert_array_equal(parse_transform(text, classes=10, shape=GREY).labels(labels), labels)


def test_a_chain_runs_left_to_right() -> None:
    x = np.full((1, *GREY), 200, np.uint8)
    first_invert = parse_transform("invert+zoom", classes=2, shape=GREY).images(x)
    first_zoom = parse_transform("zoom + invert", classes=2, shape=GREY).images(x)
    assert (first_invert[0, 0, 0, 0], first_invert[0, 0, 14, 14]) == (0, 55)
    assert (first_zoom[0, 0, 0, 0], first_zoom[0, 0, 14, 14]) == (255, 55)


def test_swaps_compose_left_to_right() -> None:
    chain = parse_transform("swap:0,1+swap:1,2", classes=3, shape=GREY)
    assert chain.labels(np.array([0, 1, 2])).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rotat:90", "did you mean 'rotate'"),
        ("swap:1", "two different labels"),
        ("swap:1,1", "two different labels"),
        ("swap:1,10", "0…9"),
        ("swap:a,b", "whole numbers"),
        ("rotate:45", "multiple of 90"),
        ("rotate", "one number"),
        ("erode:0", "1…28"),
        ("dilate:99", "1…28"),
        ("channels:0,1,2", "channels 0…0"),
        ("zoom:2", "takes no numbers"),
        ("none:1", "takes no numbers"),
        ("", "not known"),
        ("invert+", "not known"),
    ],
)
def test_a_bad_transform_is_refused_with_a_hint(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        parse_transform(text, classes=10, shape=GREY)


def test_a_quarter_turn_needs_square_images() -> None:
    parse_transform("rotate:180", classes=2, shape=(1, 4, 6))
    with pytest.raises(DataError, match="square"):
        parse_transform("rotate:90", classes=2, shape=(1, 4, 6))


@pytest.mark.parametrize("setting", ["csl", "fds", "csf"])
@pytest.mark.parametrize("name", SOURCES)
def test_every_named_set_has_four_different_groups_in_every_setting(name: str, setting: str) -> None:
    source = SOURCES[name]
    texts = default_transforms(setting, name, source.classes, 4)
    for text in texts:
        parse_transform(text, classes=source.classes, shape=(source.channels, *source.size))
    assert len(set(texts)) == 4


def test_the_papers_groups_are_these() -> None:
    assert SWAPS["cifar10"] == ((0, 2), (1, 7), (0, 5), (4, 7))
    assert default_transforms("csl", "mnist", 10, 4) == ["swap:1,7", "swap:2,7", "swap:4,7", "swap:3,8"]
    assert default_transforms("fds", "mnist", 10, 4) == ["erode:3", "dilate:3", "dilate:8", "none"]
    assert FEATURE_SHIFTS["tissuemnist"] == ("none", "zoom", "invert", "invert+zoom")


def test_fewer_groups_take_the_first_and_more_ask_for_transforms() -> None:
    assert default_transforms("fds", "mnist", 10, 2) == ["erode:3", "dilate:3"]
    assert default_transforms("none", "mnist", 10, 7) == ["none"] * 7
    with pytest.raises(DataError, match=r"data\.transforms"):
        default_transforms("fds", "mnist", 10, 5)


@pytest.mark.parametrize("classes", range(2, 13))
def test_swaps_of_an_unknown_set_stay_within_its_classes(classes: int) -> None:
    groups = min(4, classes * (classes - 1) // 2)
    texts = default_transforms("csl", "mine", classes, groups)
    assert len({parse_transform(t, classes=classes, shape=GREY).relabel.tobytes() for t in texts}) == groups


def test_two_classes_cannot_make_four_swap_groups() -> None:
    with pytest.raises(DataError, match="defines 1 groups"):
        default_transforms("csl", "mine", 2, 4)


def test_of_50_samples_the_skews_keep_these() -> None:
    counts = {name: [kept(name, label, 50) for label in range(10)] for name in SHARES}
    assert counts["normal"] == [2, 14, 26, 38, 47, 38, 26, 14, 5, 2]
    assert counts["anti-normal"] == [47, 35, 23, 11, 2, 5, 11, 23, 35, 47]
    assert counts["left"] == [50, 45, 40, 35, 30, 25, 20, 15, 10, 5]
    assert counts["right"] == counts["left"][::-1]
    assert kept("unskewed", 3, 50) == 50


def test_shares_are_not_cut_short_by_floating_point() -> None:
    for samples in range(10, 1001, 10):
        assert [kept("right", label, samples) for label in range(10)] == [
            samples * (label + 1) // 10 for label in range(10)
        ]


def test_25_clients_split_into_variants_as_paper_and_authors_do() -> None:
    even = skew_variants(25, "even")
    assert [even.count(v) for v in ("unskewed", *SHARES)] == [5] * 5
    authors = skew_variants(25, "authors")
    assert [authors.count(v) for v in ("unskewed", *SHARES)] == [1, 6, 6, 6, 6]


@pytest.mark.parametrize("split", ["even", "authors"])
@pytest.mark.parametrize("clients", [1, 3, 7, 24])
def test_variants_cover_any_group_in_contiguous_blocks(clients: int, split: str) -> None:
    variants = skew_variants(clients, split)
    changes = sum(a != b for a, b in pairwise(variants))
    assert len(variants) == clients
    assert changes == len(set(variants)) - 1
