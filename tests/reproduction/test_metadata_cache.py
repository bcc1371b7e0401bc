"""Metadata kept in a folder, and worlds built around them."""

import gc

import numpy as np
import pytest

from flameche.experiments.build import build
from flameche.experiments.config import parse_experiment
from flameche_reproduction.metadata_cache import cached_metadata, clustering_world, without_labels

DATA = {"clients": 12, "groups": 3, "per_label": 6, "heterogeneity": "csf", "label_skew": True}


def described(**data):
    return parse_experiment({"name": "x", "rounds": 3, "data": {**DATA, **data}, "training": {"threads": 1}})


def test_clients_that_lack_labels_have_the_metadata_of_the_others_they_hold():
    whole = build(described(holdout=0.3), 5, device="cpu", training=False).world.metadata
    real = build(described(holdout=0.3, missing_labels=3), 5, device="cpu", training=False).world.metadata
    made = without_labels(whole, 5, 3)
    assert (made.counts == real.counts).all() and ((made.counts == 0).sum(axis=1) >= 3).all()
    np.testing.assert_allclose(made.phi, real.phi, atol=1e-5)


def test_metadata_are_kept_and_told_apart_by_all_they_depend_on(tmp_path):
    metadata, group = cached_metadata(described(), 0, "cpu", tmp_path)
    again, _ = cached_metadata(described(), 0, "cpu", tmp_path)
    assert (again.phi == metadata.phi).all() and len(list(tmp_path.iterdir())) == 1
    cached_metadata(described(), 1, "cpu", tmp_path)
    cached_metadata(described(missing_labels=1), 0, "cpu", tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    world = clustering_world(described(), 0, metadata, group)
    assert world.clients == 12 and world.metadata is metadata and (world.group == group).all()


def test_metadata_that_other_sources_extracted_are_extracted_again(tmp_path):
    metadata, _ = cached_metadata(described(), 0, "cpu", tmp_path)
    (file,) = tmp_path.iterdir()
    for sources in ({}, {"sources": np.array("others")}):  # earlier versions did not keep them
        np.savez(file, phi=0 * metadata.phi, counts=metadata.counts, group=np.zeros(12, np.int64), **sources)
        again, _ = cached_metadata(described(), 0, "cpu", tmp_path)
        assert (again.phi == metadata.phi).all()
        assert (cached_metadata(described(), 0, "cpu", tmp_path)[0].phi == metadata.phi).all()


@pytest.mark.filterwarnings("always::ResourceWarning")
@pytest.mark.parametrize("left", [0, 400])
def test_kept_metadata_that_are_damaged_are_made_again_and_the_file_is_closed(tmp_path, left, recwarn):
    metadata, _ = cached_metadata(described(), 0, "cpu", tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:left])
    again, _ = cached_metadata(described(), 0, "cpu", tmp_path)
    gc.collect()
    assert (again.phi == metadata.phi).all() and not recwarn.list
