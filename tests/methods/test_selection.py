"""Choosing K from one session's sums: planted groups, none at all, every scheme, few clients."""

import numpy as np
import pytest

from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.registry import make_scheme
from flameche.errors import BadInput
from flameche.metadata.extractors import Metadata
from flameche.methods.selection import select_clusters
from flameche.methods.sketch import FlamecheSketch
from tests.conftest import clustering_world, planted_metadata
from tests.methods.worlds import missing_labels


def world(metadata, group, seed=0, scheme=None, least=1):
    made = clustering_world(metadata, group, seed=seed)
    made.min_cluster, made.scheme = least, scheme or made.scheme
    return made


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_planted_groups_are_counted(groups, seed):
    metadata, group = planted_metadata(100, groups, noise=0.4, seed=seed, features=24)
    found = select_clusters(world(metadata, group, seed), 8)
    assert found.choice.k == groups and not found.choice.more
    assert [c.k for c in found.candidates] == list(range(1, len(found.candidates) + 1))
    right = found.candidates[groups - 1]
    assert found.ari(right, group) == 1.0 and right.kept == (groups > 1)
    assert sum(c.kept for c in found.candidates) == groups - 1


@pytest.mark.parametrize("noise", [0.05, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_without_groups_one_cluster_is_found(noise, seed):
    metadata, group = planted_metadata(100, 1, noise=noise, seed=seed, features=24)
    found = select_clusters(world(metadata, group, seed), 8)
    assert found.choice.k == 1 and found.choice.clear in ("no structure", "close")
    assert np.isnan(found.candidates[0].dbi) and not any(c.kept for c in found.candidates)


def test_more_groups_than_allowed_are_said_to_be_more():
    metadata, group = planted_metadata(100, 4, noise=0.4, features=24)
    found = select_clusters(world(metadata, group), 3)
    assert found.choice.k == 3 and found.choice.more and len(found.candidates) == 3


def test_clients_that_lack_classes_are_no_hindrance():
    metadata, group = planted_metadata(100, 4, noise=0.2)
    assert select_clusters(world(missing_labels(metadata), group), 8).choice.k == 4


@pytest.mark.parametrize("kind", ["bfv", "secagg"])
def test_sealed_sums_choose_as_open_ones(kind):
    metadata, group = planted_metadata(30, 3, noise=0.2, features=12)
    scheme = (
        SecAgg(exact_codec(64.0, 30)[0]) if kind == "secagg" else make_scheme(kind, clients=30, bound=64.0)
    )
    sealed, opened = (select_clusters(world(metadata, group, scheme=s), 6) for s in (scheme, None))
    assert sealed.choice.k == opened.choice.k == 3
    for one, other in zip(sealed.candidates, opened.candidates, strict=True):
        assert one.dbi == pytest.approx(other.dbi, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(("least", "need"), [(1, 4), (2, 4), (3, 6)])
def test_from_four_clients_on_and_from_six_under_a_guard_of_three(least, need):
    metadata, group = planted_metadata(need, 2, noise=0.05, features=24)
    found = select_clusters(world(metadata, group, least=least), 8)
    assert found.choice.k == 2 and found.ari(found.candidates[1], group) == 1.0
    fewer = Metadata(metadata.phi[1:], metadata.counts[1:])
    with pytest.raises(BadInput, match=f"{need - 1} clients are too few .* takes {need}"):
        select_clusters(world(fewer, group[1:], least=least), 8)


def test_of_many_clients_some_are_asked_and_their_k_is_that_of_a_run_that_chooses():
    metadata, group = planted_metadata(200, 4, noise=0.3)
    found = select_clusters(world(metadata, group, least=3), 8)
    assert len(found.clients) == 80 and found.choice.k == 4
    run = FlamecheSketch(world(metadata, group, least=3), clusters="auto")
    run.round(1, np.arange(40))
    assert run.clusters == 4 and run.exchange.guard.rank > 0
    opened = {o.clients for o in run.world.ledger.openings}
    asked = world(metadata, group, least=3)
    select_clusters(asked, 8)
    assert {o.clients for o in asked.ledger.openings} == opened  # a run opens no set that choosing did not


def test_too_few_clients_for_a_choice_train_one_model():
    metadata, group = planted_metadata(3, 1, noise=0.1)
    run = FlamecheSketch(world(metadata, group), clusters="auto")
    run.round(1, np.arange(3))
    assert not run.found and run.clusters == 1 and not run.world.ledger.openings
