import numpy as np

from flameche.rng import stream, stream_seed


def test_the_same_names_give_the_same_stream():
    assert stream(3, "train", 1, 2).integers(1 << 30) == stream(3, "train", 1, 2).integers(1 << 30)


def test_streams_differ_by_seed_by_name_and_by_the_boundary_between_names():
    seeds = {
        stream_seed(0, "a"),
        stream_seed(1, "a"),
        stream_seed(0, "b"),
        stream_seed(0, "a", "b"),
        stream_seed(0, "ab"),
        stream_seed(0, "a", 1),
        stream_seed(0, "a", "1"),
        stream_seed(0, "a1"),
    }
    assert len(seeds) == 8


def test_drawing_from_one_stream_leaves_another_alone():
    lone = stream(0, "b").random(5)
    stream(0, "a").random(1000)
    assert np.array_equal(stream(0, "b").random(5), lone)
