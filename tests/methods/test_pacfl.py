"""PACFL: angles between subspaces that are known, and the tree cut where it should be."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from flameche.methods.base import UNSEEN
from flameche.methods.pacfl import Pacfl, angles
from tests.methods.worlds import paper_world, partition, pixel_samples, play

KINDS = ("entry", "smallest", "sum")
RAW = ("raw-sum", "raw-cosine")
SHARP = 1e-5  # degrees: the arc cosine of 1 - 1e-16 is 1e-6 degrees
E = np.eye(4)
COS, SIN = np.cos(np.radians(30)), np.sin(np.radians(30))


def between(a, b, kind):
    """Measure the angle between the spans of two lists of vectors, padded with zeros to one length."""
    count = max(len(a), len(b))
    bases = np.zeros((2, count, 4))
    bases[0, : len(a)], bases[1, : len(b)] = a, b
    found = angles(bases, kind)
    assert np.array_equal(found, found.T) and found.diagonal().tolist() == [0, 0]
    return found[0, 1]


# Angles


@pytest.mark.parametrize(
    ("a", "b", "entry", "smallest", "total"),
    [
        ([E[0]], [E[1]], 90, 90, 90),
        ([E[0], E[1]], [E[2], E[3]], 90, 90, 180),
        ([E[0]], [E[0]], 0, 0, 0),
        ([E[0], E[1]], [E[0], E[1]], 0, 0, 0),
        ([E[0], E[1]], [E[1], E[0]], 0, 0, 0),
        # Two planes that share a line and stand upright on each other.
        ([E[0], E[1]], [E[0], E[2]], 0, 0, 90),
        # A line, then a plane around a fixed line, then a plane in both directions, turned by 30 degrees.
        ([E[0]], [COS * E[0] + SIN * E[1]], 30, 30, 30),
        ([E[0], E[2]], [COS * E[0] + SIN * E[1], E[2]], 0, 0, 30),
        ([E[0], E[2]], [COS * E[0] + SIN * E[1], COS * E[2] + SIN * E[3]], 30, 30, 60),
        # A line and a plane have one angle.
        ([E[0]], [COS * E[0] + SIN * E[1], E[2]], 30, 30, 30),
    ],
)
def test_angles_between_known_subspaces(a, b, entry, smallest, total):
    found = [between(a, b, kind) for kind in (*KINDS, "raw-sum")]
    assert found == pytest.approx([entry, smallest, total, total], abs=SHARP)


def test_only_principal_angles_do_not_depend_on_the_basis():
    half = np.sqrt(0.5)
    turned = [half * (E[0] + E[1]), half * (E[0] - E[1])]  # the plane of E[0], E[1]
    assert between(turned, [E[0], E[2]], "entry") == pytest.approx(45)
    assert between(turned, [E[0], E[2]], "smallest") == pytest.approx(0, abs=SHARP)
    assert between(turned, [E[0], E[2]], "sum") == pytest.approx(90)
    assert [between([E[0]], [-E[0]], kind) for kind in KINDS] == pytest.approx([180, 0, 0], abs=SHARP)


def test_principal_angles_are_scipys_even_of_bases_that_are_not_orthogonal():
    rng = np.random.default_rng(0)
    bases = rng.normal(size=(4, 3, 7))
    for i in range(4):
        for j in range(i):
            degrees = np.degrees(subspace_angles(bases[i].T, bases[j].T))
            assert angles(bases, "smallest")[i, j] == pytest.approx(degrees.min())
            assert angles(bases, "sum")[i, j] == pytest.approx(degrees.sum())


def test_turning_the_whole_space_changes_no_angle():
    rng = np.random.default_rng(0)
    bases = np.stack([np.linalg.qr(rng.normal(size=(6, 2)))[0].T for _ in range(5)])
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    for kind in (*KINDS, *RAW):
        assert angles(bases @ turn, kind) == pytest.approx(angles(bases, kind), abs=SHARP)


def unit_vectors():
    """Draw clients whose vectors have length one and are not orthogonal; some lack vectors."""
    bases = np.random.default_rng(1).normal(size=(6, 5, 9))
    bases /= np.linalg.norm(bases, axis=2, keepdims=True)
    bases[1, 0] = bases[2, 3:] = bases[4, [0, 2, 4]] = 0
    return bases


@pytest.mark.parametrize("kind", [*KINDS, *RAW])
def test_permuting_clients_permutes_angles(kind):
    bases, order = unit_vectors(), np.array([3, 0, 5, 1, 4, 2])
    found = angles(bases, kind)
    assert np.array_equal(found, found.T) and not found.diagonal().any()
    assert angles(bases[order], kind) == pytest.approx(found[np.ix_(order, order)], abs=SHARP)


def test_raw_distances_are_those_of_the_singular_values_pair_by_pair():
    bases = unit_vectors()
    own = [rows[np.abs(rows).sum(axis=1) > 0] for rows in bases]
    total, cosine = (angles(bases, kind) for kind in RAW)
    cut = 0
    for i, a in enumerate(own):
        for j, b in enumerate(own[:i]):
            values = np.linalg.svd(a @ b.T, compute_uv=False)  # as many as the smaller has vectors
            cut += (values > 1).any()
            values = np.minimum(values, 1)
            assert total[i, j] == pytest.approx(np.degrees(np.arccos(values)).sum(), abs=SHARP)
            assert cosine[i, j] == pytest.approx(1 - values.mean())
    assert cut  # at 1


def test_of_orthonormal_bases_raw_distances_are_those_of_the_principal_angles():
    rng = np.random.default_rng(0)
    bases = np.stack([np.linalg.qr(rng.normal(size=(7, 3)))[0].T for _ in range(4)])
    assert angles(bases, "raw-sum") == pytest.approx(angles(bases, "sum"), abs=SHARP)
    for i in range(4):
        for j in range(i):
            cosines = np.cos(subspace_angles(bases[i].T, bases[j].T))
            assert angles(bases, "raw-cosine")[i, j] == pytest.approx(1 - cosines.mean())


def test_of_clients_with_one_class_each_the_raw_sum_is_the_sum():
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 9))
    own = [[(label, x) for x in some] for label, some in zip([0, 1, 1, 2, 0], images, strict=True)]
    world = paper_world(np.zeros((5, 1)), samples=pixel_samples(own, 3))
    bases = Pacfl(world, components=3).bases
    assert bases.shape == (5, 9, 9)  # three classes, of which two are missing
    assert angles(bases, "raw-sum") == pytest.approx(angles(bases, "sum"), abs=SHARP)


def test_twins_are_at_raw_distance_0_only_if_their_classes_do_not_overlap():
    upright, slanted = [E[0], E[1]], [E[0], COS * E[0] + SIN * E[1]]
    assert [between(upright, upright, kind) for kind in RAW] == pytest.approx([0, 0], abs=SHARP)
    # The inner products 1 and COS have singular values 1 + COS, which is cut, and 1 - COS.
    expected = [np.degrees(np.arccos(1 - COS)), COS / 2]
    assert [between(slanted, slanted, kind) for kind in RAW] == pytest.approx(expected)
    assert between(slanted, slanted, "sum") == pytest.approx(0, abs=SHARP)


def test_a_missing_class_takes_part_in_no_angle():
    # As a vector of zeros it would be at 90 degrees with everything and hide these obtuse ones.
    assert between([-E[0], 0 * E[0]], [COS * E[0] + SIN * E[1], 0 * E[0]], "entry") == pytest.approx(150)
    # One common dimension has one angle, wherever the zeros stand.
    assert between([0 * E[0], E[0]], [E[1], E[2]], "sum") == pytest.approx(90)
    assert between([0 * E[0], E[0]], [E[0], 0 * E[0]], "sum") == pytest.approx(0, abs=SHARP)


@pytest.mark.parametrize("kind", [*KINDS, *RAW])
def test_who_has_no_vectors_is_at_right_angles_with_everybody(kind):
    right = 1 if kind == "raw-cosine" else 90
    assert between([0 * E[0], 0 * E[0]], [E[0], E[1]], kind) == pytest.approx(right)
    assert between([0 * E[0]], [0 * E[0]], kind) == pytest.approx(right)


# Clusters

DEGREES = [0, 5, 40, 47, 85]  # on average {0 5} and {40 47} are 41 apart, {40 47} and {85} 41.5
CHAIN = [0, 12, 28, 52, 78]  # gaps of 12, 16, 24, 26


def fan(degrees=DEGREES, **options):
    """One sample for each client, at an angle in the plane of two pixels."""
    turn = np.radians(degrees)
    images = np.round(255 * np.stack([np.cos(turn), np.sin(turn)], axis=1))
    world = paper_world(
        np.arange(2.0 * len(degrees)).reshape(-1, 2), samples=pixel_samples([[(0, x)] for x in images], 1)
    )
    return Pacfl(world, components=1, **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"clusters": 5}, [{0}, {1}, {2}, {3}, {4}]),
        ({"clusters": 3}, [{0, 1}, {2, 3}, {4}]),
        ({"clusters": 2}, [{0, 1, 2, 3}, {4}]),  # the farthest pair would tie 4 to 2 and 3 first
        ({"clusters": 3, "alpha": 3.0}, [{0}, {1}, {2}, {3}, {4}]),
        ({"clusters": 3, "alpha": 6.0}, [{0, 1}, {2}, {3}, {4}]),
        ({"clusters": 1, "alpha": 40.0}, [{0, 1}, {2, 3}, {4}]),  # the nearest pairs are 35 and 38 apart
        ({"clusters": 5, "alpha": 90.0}, [{0, 1, 2, 3, 4}]),
    ],
)
@pytest.mark.parametrize("angle", [*KINDS, "raw-sum"])
def test_the_tree_is_cut_at_k_clusters_or_at_alpha(options, expected, angle):
    method = fan(angle=angle, **options)
    assert partition(method.partition()) == {frozenset(part) for part in expected}


@pytest.mark.parametrize(
    ("linkage", "expected"),
    [
        ("single", [{0, 1, 2, 3}, {4}]),  # the widest gap stays
        ("average", [{0, 1, 2}, {3, 4}]),  # 28 is 22 from {0 12}, 24 from 52; then 26 joins 52 and 78
        ("complete", [{0, 1}, {2, 3, 4}]),  # 28 is 28 from {0 12}, 24 from 52; then 78 is 50 away, {0 12} 52
    ],
)
@pytest.mark.parametrize("angle", [*KINDS, "raw-sum"])
def test_the_linkage_decides_where_a_chain_breaks(linkage, expected, angle):
    method = fan(CHAIN, clusters=2, angle=angle, linkage=linkage)
    assert partition(method.partition()) == {frozenset(part) for part in expected}
    if linkage == "average":
        assert partition(fan(CHAIN, clusters=2, angle=angle).partition()) == partition(method.partition())


def test_alpha_cuts_raw_cosines_at_one_minus_a_cosine():
    at = 1 - np.cos(np.radians([11, 13]))  # around the smallest gap
    found = [partition(fan(CHAIN, angle="raw-cosine", alpha=float(alpha)).partition()) for alpha in at]
    assert found[0] == {*map(frozenset, ([0], [1], [2], [3], [4]))}
    assert found[1] == {*map(frozenset, ([0, 1], [2], [3], [4]))}


def test_the_shot_falls_once_when_all_were_seen_and_splits_the_one_model():
    method = fan(clusters=3)
    assert play(method, [[0, 1, 2], [2, 3]]) == [False, False]
    assert (method.assignment == UNSEEN).all() and method.clusters == 1
    assert play(method, [[4, 0], [0, 4], [1]], first=3) == [True, False, False]
    assert method.clusters == 3 and partition(method.assignment) == {*map(frozenset, ([0, 1], [2, 3], [4]))}


def test_one_cluster_is_one_shot_too():
    method = fan(alpha=90.0)
    assert play(method, [[0, 1, 2, 3, 4], [0, 1], [2]]) == [True, False, False]
    assert method.clusters == 1 and set(method.assignment.tolist()) == {0}


def test_vectors_of_all_classes_count_and_those_of_a_lacking_class_stay_out():
    # Clients 0 and 1 share class 0's direction, 2 and 3 class 1's; 1 and 3 have one class only.
    a, b, c, d = 255 * np.eye(4)
    own = [[(0, a), (1, b)], [(0, a)], [(0, c), (1, d)], [(1, d)]]
    world = paper_world(np.zeros((4, 1)), samples=pixel_samples(own, 2))
    method = Pacfl(world, clusters=2, components=1)
    assert method.bases.shape == (4, 2, 4) and method.summary_numbers().tolist() == [8, 4, 8, 4]
    assert partition(method.partition()) == {frozenset({0, 1}), frozenset({2, 3})}


def test_as_many_vectors_for_each_class_as_asked():
    images = np.random.default_rng(0).integers(0, 256, (5, 6))
    world = paper_world(np.zeros((1, 1)), samples=pixel_samples([[(0, x) for x in images]], 1))
    method = Pacfl(world, components=3)
    expected = np.linalg.svd(images.T / 255.0)[0][:, :3].T
    assert np.abs(method.bases[0]) == pytest.approx(np.abs(expected), abs=1e-5)


def test_models_train_inside_clusters_after_the_shot():
    method = fan(clusters=3)
    method.round(1, np.arange(5))
    assert method.models.params.tolist() == [[4, 5]] * 3  # the mean of all targets
    first, second, third = method.assignment[[0, 2, 4]]
    method.round(2, np.array([0, 1, 3]))
    assert method.models.params[first].tolist() == [1, 2]  # targets (0 1) and (2 3)
    assert method.models.params[second].tolist() == [6, 7]
    assert method.models.params[third].tolist() == [4, 5]  # nobody came
