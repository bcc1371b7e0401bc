"""Choosing K from sums of metadata: planted groups, none at all, every scheme, what it costs."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.registry import make_scheme
from flameche.errors import BadInput
from flameche.metadata.extractors import Metadata
from flameche.methods.selection import FOLDS, Search, select_clusters
from tests.conftest import clustering_world, planted_metadata
from tests.methods.worlds import missing_labels


def world(metadata, group, seed=0, scheme=None, least=1):
    made = clustering_world(metadata, group, seed=seed)
    made.min_cluster, made.scheme = least, scheme or made.scheme
    return made


@pytest.mark.parametrize("groups", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_groups_are_counted(groups, seed):
    metadata, group = planted_metadata(100, groups, noise=0.2, seed=seed)
    found = select_clusters(world(metadata, group, seed), 8)
    assert found.k == groups and not found.more
    right = next(c for c in found.candidates if c.k == groups)
    assert adjusted_rand_score(group, right.assignment) == 1.0
    assert [c.k for c in found.candidates] == sorted({c.k for c in found.candidates})


@pytest.mark.parametrize("noise", [0.05, 0.5])
@pytest.mark.parametrize("clients", [30, 100])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_groups_one_cluster_is_found(noise, clients, seed):
    metadata, group = planted_metadata(clients, 1, noise=noise, seed=seed)
    assert select_clusters(world(metadata, group, seed), 8).k == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_group_that_is_broad_along_one_direction_is_one_group(seed):
    """Halving it would help held-out clients; two groups they are not."""
    metadata, group = planted_metadata(100, 1, noise=0.05, seed=seed)
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(metadata.phi.shape[1:])
    broad = metadata.phi + 0.05 * rng.standard_normal((100, 1, 1)) * direction
    assert select_clusters(world(Metadata(broad, metadata.counts), group, seed), 8).k == 1


def test_a_small_group_among_large_ones_is_counted():
    metadata, group = planted_metadata(100, 10, noise=0.2)
    merged = Metadata(metadata.phi.copy(), metadata.counts)
    centre = metadata.phi[group == 0].mean(axis=0)
    rng = np.random.default_rng(0)
    for g in range(1, 8):  # eight tenths in one group, a tenth in each of two others
        mine = group == g
        merged.phi[mine] = centre + 0.2 * rng.random((mine.sum(), *centre.shape)) - 0.1
    assert select_clusters(world(merged, np.maximum(group, 7)), 8).k == 3


def test_more_groups_than_allowed_are_said_to_be_more():
    metadata, group = planted_metadata(100, 6, noise=0.1)
    found = select_clusters(world(metadata, group), 4)
    assert found.k == 4 and found.more


def test_clients_that_lack_classes_are_no_hindrance():
    metadata, group = planted_metadata(100, 4, noise=0.2)
    assert select_clusters(world(missing_labels(metadata, 2), group), 8).k == 4


@pytest.mark.parametrize("kind", ["bfv", "ckks", "secagg"])
def test_sealed_sums_choose_as_open_ones(kind):
    metadata, group = planted_metadata(24, 3, noise=0.1)
    scheme = SecAgg(exact_codec(64.0, 24)[0]) if kind == "secagg" else make_scheme(kind, clients=24)
    found, clear = (
        select_clusters(world(metadata, group, 0, scheme), 4),
        select_clusters(world(metadata, group), 4),
    )
    assert found.k == clear.k == 3
    if kind == "bfv":
        assert [c.k for c in found.candidates] == [c.k for c in clear.candidates]
        for a, b in zip(found.candidates, clear.candidates, strict=True):
            assert (a.assignment == b.assignment).all() and a.dbi == pytest.approx(
                b.dbi, nan_ok=True, abs=1e-3
            )


def test_no_sum_over_too_few_clients_is_opened():
    metadata, group = planted_metadata(60, 3, noise=0.2)
    least, opened = 4, []
    search = Search(world(metadata, group, least=least), 6)
    totals = search.sums.totals

    def watched(members, row):
        found = totals(members, row)
        opened.extend(round(t[-1]) for t in found if t is not None)
        return found

    search.sums.totals = watched
    assert search.run(None).k == 3
    assert opened and min(opened) >= least


def test_the_same_seed_chooses_the_same_and_clients_seal_their_metadata_once():
    metadata, group = planted_metadata(60, 3, noise=0.2)
    worlds = [world(metadata, group) for _ in range(2)]
    a, b = (select_clusters(each, 6) for each in worlds)
    assert a.k == b.k and a.exchanges == b.exchanges
    assert [c.merger for c in a.candidates] == [c.merger for c in b.candidates]
    sent = worlds[0].ledger.up["metadata"]
    blocks, features = metadata.phi.shape[1:]
    assert sent.min() == sent.max() and 4 * blocks * features <= sent[0] <= 9 * (
        blocks * features + blocks + 2
    )
    assert worlds[0].ledger.down["centroids"].min() > 0


def test_progress_is_told_and_too_few_clients_are_refused():
    metadata, group = planted_metadata(60, 3)
    told = []
    select_clusters(world(metadata, group), 4, progress=lambda done, of: told.append((done, of)))
    steps = told[-1][1]
    assert steps % (FOLDS + 1) == 0 and told == [(n, steps) for n in range(1, steps + 1)]
    few, group = planted_metadata(8, 2)
    with pytest.raises(BadInput, match="8 clients are too few"):
        select_clusters(world(few, group), 4)


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_recommended_number_is_one_of_those_shown(least, seed):
    metadata, group = planted_metadata(20, 4, noise=0.3, seed=seed)
    found = select_clusters(world(metadata, group, seed, least=least), 8)
    assert found.k in [c.k for c in found.candidates]
