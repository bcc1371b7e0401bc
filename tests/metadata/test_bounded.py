"""Features that are never longer than one: what noise has to hide of a sample."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flameche.metadata.bounded import MOST_NUMBERS, BoundedFeatures, artificial_images
from flameche.metadata.extractors import ClientSamples, class_means
from flameche.models import FeatureExtractor, build_model

SHAPE = (1, 16, 16)


def bounded():
    return BoundedFeatures(FeatureExtractor(build_model("small-cnn", SHAPE, 3, 0), SHAPE, seed=0), SHAPE)


FEATURES = bounded()
BYTES = arrays(np.uint8, (9, *SHAPE), elements=st.integers(0, 255))


@given(BYTES)
def test_no_sample_is_longer_than_one_whatever_it_is(x):
    z = FEATURES(torch.from_numpy(x))
    assert z.shape[1] <= MOST_NUMBERS and torch.isfinite(z).all()
    assert torch.linalg.vector_norm(z, dim=1).max() <= 1 + 1e-12


@given(BYTES, st.integers(0, 8))
def test_replacing_one_record_moves_its_class_mean_by_two_over_n_at_most_and_no_other(x, place):
    y = np.array([0, 0, 0, 0, 0, 1, 1, 2, 2])
    other = x.copy()
    other[place] = 255 - x[place]
    before, after = (
        class_means(ClientSamples(each, y, np.array([0, 9]), 3), FEATURES) for each in (x, other)
    )
    moved = np.linalg.norm(after.phi - before.phi, axis=2)[0]
    n = np.bincount(y)
    assert moved[y[place]] <= 2 / n[y[place]] + 1e-12
    assert (np.delete(moved, y[place]) < 1e-6).all()  # by the order of float32 sums in a batch alone


def test_clipping_clips_and_keeps_directions():
    plain = bounded()
    plain._axes = plain._axes / 100  # nothing is long enough to be clipped
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (200, *SHAPE)).astype(np.uint8))
    loose, tight = plain(x) * 100, FEATURES(x)
    length = torch.linalg.vector_norm(loose, dim=1)
    assert (length > 1).any()  # the test tests something
    assert torch.allclose(tight, loose / length.clamp(min=1)[:, None])


def test_some_artificial_images_are_not_clipped_and_most_are():
    length = torch.linalg.vector_norm(FEATURES(artificial_images(SHAPE)), dim=1)
    assert 0.05 < (length < 1 - 1e-9).double().mean() < 0.15


def test_the_public_constants_depend_on_the_network_alone():
    one, two = bounded(), bounded()
    assert torch.equal(one._axes, two._axes) and torch.equal(one._centre, two._centre)
    assert artificial_images((3, 8, 8)).shape[1:] == (3, 8, 8)


def test_a_sample_is_looked_at_alone():
    x = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (6, *SHAPE)).astype(np.uint8))
    assert torch.allclose(FEATURES(x)[3], FEATURES(x[3:4])[0], atol=1e-5)
