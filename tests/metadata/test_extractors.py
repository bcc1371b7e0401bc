from dataclasses import replace

import numpy as np
import pytest

from flameche.errors import DataError
from flameche.metadata import extractors
from flameche.metadata.extractors import ClientSamples, Metadata
from tests.conftest import clustering_world, planted_metadata


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    y = np.array([0, 1, 1, 2, 0, 0, 1, 2, 2, 2, 0, 1])
    x = rng.integers(0, 256, (12, 1, 4, 4)).astype(np.uint8)
    return ClientSamples(x, y, np.array([0, 4, 6, 12]), classes=3)


def test_counts_per_client_and_class(samples):
    assert samples.counts.tolist() == [[1, 2, 1], [2, 0, 0], [1, 2, 3]]


def test_class_means_equal_a_plain_loop_and_missing_classes_are_zero(samples):
    found = extractors.mean_images(samples)
    for i in range(3):
        x = samples.x[samples.offsets[i] : samples.offsets[i + 1]].reshape(-1, 16) / 255
        y = samples.y[samples.offsets[i] : samples.offsets[i + 1]]
        for c in range(3):
            expected = x[y == c].mean(axis=0) if (y == c).any() else np.zeros(16)
            assert np.allclose(found.phi[i, c], expected, atol=1e-6)
    assert found.presence.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 1]]


def test_a_batch_boundary_changes_nothing(samples):
    whole = extractors.class_means(samples, extractors.pixels, batch=100)
    pieces = extractors.class_means(samples, extractors.pixels, batch=5)
    assert np.allclose(whole.phi, pieces.phi)


def test_progress_counts_every_sample(samples):
    told = []
    extractors.class_means(samples, extractors.pixels, batch=5, progress=told.append)
    assert sum(told) == 12


def test_a_client_alone_has_the_metadata_it_has_among_others(samples):
    start, stop = samples.offsets[2], samples.offsets[3]
    alone = ClientSamples(samples.x[start:stop], samples.y[start:stop], np.array([0, stop - start]), 3)
    for extract in (
        extractors.mean_images,
        lambda s: extractors.mean_pca_local(s, 2),
        lambda s: extractors.subspaces(s, 2),
        extractors.label_counts,
    ):
        assert np.allclose(extract(alone).phi[0], extract(samples).phi[2])


def test_a_shared_basis_keeps_distances_and_a_local_one_does_not(samples):
    means = extractors.mean_images(samples)
    present = means.counts > 0
    shared = extractors.mean_pca_shared(samples, 16)
    a, b = means.phi[present], shared.phi[present]
    full = np.linalg.norm(a[:, None] - a[None], axis=-1)
    assert np.allclose(full, np.linalg.norm(b[:, None] - b[None], axis=-1), atol=1e-6)
    local = extractors.mean_pca_local(samples, 3).phi[present]
    assert not np.allclose(full, np.linalg.norm(local[:, None] - local[None], axis=-1), atol=1e-2)


def test_subspaces_are_orthonormal_and_span_the_samples(samples):
    found = extractors.subspaces(samples, 2).phi.reshape(3, 3, 2, 16)
    basis = found[2, 2]  # three samples of class 2
    assert np.allclose(basis @ basis.T, np.eye(2), atol=1e-6)
    own = samples.x[[7, 8, 9]].reshape(3, 16) / 255
    left = np.linalg.svd(own, full_matrices=False)[2][:2]
    assert np.allclose(np.abs(np.diag(basis @ left.T)), 1.0, atol=1e-6)


def test_fewer_samples_than_components_leave_zeros(samples):
    found = extractors.subspaces(samples, 2).phi.reshape(3, 3, 2, 16)
    assert found[0, 0, 0].any() and not found[0, 0, 1].any()


def test_label_counts_are_one_block(samples):
    found = extractors.label_counts(samples)
    assert found.phi[:, 0].tolist() == [[1, 2, 1], [2, 0, 0], [1, 2, 3]]
    assert found.presence.tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_metadata_that_are_not_finite_are_refused_by_every_world_they_enter(bad):
    metadata, group = planted_metadata(clients=8)
    metadata.phi[[2, 5], 1, 3] = bad
    for world in (
        lambda: clustering_world(metadata, group).metadata,
        lambda: replace(clustering_world(metadata, group), known_metadata=metadata),
    ):
        with pytest.raises(DataError, match=r"metadata of clients 2, 5 hold NaN or infinity"):
            world()
    with pytest.raises(DataError, match=r"metadata of client 70 hold"):
        metadata.of(np.array([0, 5])).checked([10, 70])


def test_the_plane_separates_two_bunches():
    rng = np.random.default_rng(0)
    phi = np.repeat(np.eye(2)[:, None, :], 5, axis=0) + 0.01 * rng.normal(size=(10, 1, 2))
    xy = extractors.plane(Metadata(phi, np.ones((10, 1), np.int64)))
    assert (np.sign(xy[:5, 0]) == -np.sign(xy[5:, 0])).all()


def test_the_plane_of_identical_clients_is_a_point():
    xy = extractors.plane(Metadata(np.ones((4, 2, 3)), np.ones((4, 2), np.int64)))
    assert np.allclose(xy, 0)
