"""A session that ends with soft EM: its laws, its guard, and the same from whatever scheme adds the terms."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from flameche.clustering import soft
from flameche.clustering.soft import EIGHTHS, SoftSession, in_eighths
from flameche.crypto.codec import exact_codec
from flameche.crypto.masking import SecAgg
from flameche.crypto.plain import Plain
from flameche.crypto.registry import make_scheme
from flameche.em import leaves as splitting
from flameche.em.spherical import class_norm, sample_weight
from flameche.metadata.extractors import Metadata
from flameche.privacy.audit import leakage
from flameche.privacy.guard import Guard
from flameche.protocol.exchange import Exchange
from flameche.protocol.ledger import Ledger
from tests.clustering.test_session import federation
from tests.conftest import planted_metadata

FAMILIES = ["full", "vmf", "gaussian", "spherical"]


def metadata_of(sizes, **how):
    phi, weight, group = federation(sizes, **how)
    return Metadata(phi, np.rint(64 * weight).astype(np.int64)), group


def overlapping(clients=60, seed=0):
    """Groups so near each other that some clients belong to two, in few dimensions."""
    return planted_metadata(clients=clients, groups=3, noise=1.6, blocks=2, features=6, seed=seed)


class Watched(SoftSession):
    """Notes the clients' log-likelihoods on average, as they follow from the sums of each step of EM."""

    def _em(self, now, *given):
        form, self.likelihoods = self.exchange.shared_sums, []

        def noted(what, terms, clients, share, kind):
            sums = form(what, terms, clients, share, kind)
            if terms[:, -2].any():  # not where clients have told no likelihood yet
                total = sums[share.any(axis=0), -2].sum()
                self.likelihoods.append(now.family.scale * total / len(terms))
            return sums

        self.exchange.shared_sums = noted
        found = super()._em(now, *given)
        self.exchange.shared_sums = form
        return found


def play(metadata, clusters, **how):
    """Play a session: what it found, its ledger and exchange."""
    return watch(metadata, clusters, **how)[:3]


def watch(metadata, clusters, *, family="full", least=3, scheme=None, seed=0):
    """Play a session, and give its likelihoods, too."""
    phi, weight = class_norm(metadata.phi), sample_weight(metadata.counts)
    ledger = Ledger(len(phi))
    exchange = Exchange(scheme or Plain(), Guard(len(phi), least), ledger)
    session = Watched(
        exchange, np.arange(len(phi)), phi, weight, clusters, least, metadata=metadata, family=family
    )
    return session.run(np.random.default_rng(seed)), ledger, exchange, session.likelihoods


@given(st.lists(st.lists(st.floats(0.001, 1), min_size=4, max_size=4), min_size=1, max_size=6))
def test_eighths_sum_to_one_and_are_less_than_one_of_them_off(rows):
    resp = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    told = in_eighths(resp)
    assert (told.sum(axis=1) == 1).all() and (told * EIGHTHS == np.rint(told * EIGHTHS)).all()
    assert np.abs(told - resp).max() < 1 / EIGHTHS and np.array_equal(in_eighths(told), told)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(3, 3), (4, 4), (6, 6), (4, 12), (4, 4, 4), (10, 10, 10)], ids=str)
def test_groups_of_few_sites_are_found(sizes, family):
    metadata, group = metadata_of(sizes)
    found, ledger, exchange = play(metadata, len(sizes), family=family)
    assert adjusted_rand_score(group, found.label) == 1.0
    assert min(len(opening.clients) for opening in ledger.openings) >= 3
    assert leakage(ledger.openings, own=True).solved == 0 and exchange.guard.leverage().max() < 1 - 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_it_takes_ten_exchanges_at_most(family, monkeypatch):
    calls, shared = [], Exchange.shared_sums
    monkeypatch.setattr(Exchange, "shared_sums", lambda self, *a: (calls.append(a[0]), shared(self, *a))[1])
    play(overlapping(60)[0], 3, family=family, least=1)
    assert calls[0] == "second moments" and calls[-1] == "errors" and len(calls) <= 10


def test_label_counts_are_clustered_as_multinomials():
    rng = np.random.default_rng(0)
    group = np.arange(40) % 4
    odds = np.full((4, 8), 0.05) + 0.3 * np.repeat(np.eye(4), 2, axis=1)
    counts = np.stack([rng.multinomial(80, odds[g] / odds[g].sum()) for g in group])
    metadata = Metadata(counts[:, None, :].astype(float), counts.sum(axis=1, keepdims=True))
    found, _, _ = play(metadata, 4, family="multinomial")
    assert adjusted_rand_score(group, found.label) == 1.0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_likelihood_grows_where_nothing_is_refused(family, seed, monkeypatch):
    monkeypatch.setattr(soft, "in_eighths", lambda resp: resp)  # rounding is not EM
    monkeypatch.setattr(soft, "EIGHTHS", 2**40)
    monkeypatch.setattr(soft, "STEPS", 20)
    monkeypatch.setattr(soft, "GAIN", -1.0)  # take no notice of the likelihood
    monkeypatch.setattr(soft, "ENOUGH", 0)  # and always let each component have its own spread
    within = soft.Full.within.__func__
    plain = classmethod(lambda cls, *given: replace(within(cls, *given), strength=0.0))
    monkeypatch.setattr(soft.Full, "within", plain)
    metadata, _ = overlapping(seed=seed)
    found, _, _, likelihoods = watch(metadata, 3, family=family, least=1)
    assert (np.diff(likelihoods) > -1e-9).all()
    if family == "full":
        assert len(likelihoods) == 19 and likelihoods[-1] > likelihoods[0]
        assert (found.resp.max(axis=1) < 0.95).any()  # and it is soft


def test_steps_are_scikit_learns_on_the_same_sketch(monkeypatch):
    monkeypatch.setattr(soft, "in_eighths", lambda resp: resp)
    monkeypatch.setattr(soft, "EIGHTHS", 2**40)
    within = soft.Full.within.__func__
    plain = classmethod(lambda cls, *given: replace(within(cls, *given), strength=0.0))
    monkeypatch.setattr(soft.Full, "within", plain)
    metadata, _ = overlapping()
    whole, _, _, likelihoods = watch(metadata, 3, least=1)
    monkeypatch.setattr(soft, "STEPS", 1)
    begun, _, _ = play(metadata, 3, least=1)
    family = begun.mixture.family
    mean, covariance = family.parameters(begun.mixture.totals)
    oracle = GaussianMixture(
        3,
        reg_covar=1e-15,
        max_iter=2,
        tol=0,
        weights_init=begun.mixture.totals[:, -1] / len(metadata),
        means_init=mean,
        precisions_init=np.linalg.inv(covariance),
    )
    with pytest.warns(match="did not converge"):
        oracle.fit(family.prepare(metadata.phi, metadata.counts).x[:, 0])
    mean, covariance = family.parameters(whole.mixture.totals)
    assert np.allclose(mean, oracle.means_, atol=1e-8)
    assert np.allclose(covariance, oracle.covariances_, atol=1e-8)
    assert likelihoods[-1] == pytest.approx(oracle.lower_bound_, rel=1e-9)


def test_when_the_likelihood_falls_the_parameters_before_are_kept(monkeypatch):
    metadata, _ = overlapping()
    *_, whole = watch(metadata, 3, least=1)
    monkeypatch.setattr(soft, "STEPS", 2)
    once, _, _ = play(metadata, 3, least=1)
    monkeypatch.setattr(soft, "STEPS", 3)
    monkeypatch.setattr(soft, "GAIN", 1e9)  # no step gains so much
    early, _, _, likelihoods = watch(metadata, 3, least=1)
    assert likelihoods == whole and len(whole) == 2
    assert np.array_equal(early.mixture.totals, once.mixture.totals)
    rising = iter([0.0, 1e6])
    monkeypatch.setattr(soft.Full, "log_prior", lambda self, totals: -next(rising))
    fallen, _, _ = play(metadata, 3, least=1)
    monkeypatch.setattr(soft, "STEPS", 1)
    begun, _, _ = play(metadata, 3, least=1)
    assert np.array_equal(fallen.mixture.totals, begun.mixture.totals)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(4, 4), (12, 12)], ids=str)
def test_a_client_in_the_wrong_leaf_goes_where_the_others_of_its_group_are(sizes, family, monkeypatch):
    metadata, group = metadata_of(sizes)
    wrong = np.where(np.arange(len(group)) == 3, 1 - group, group)
    monkeypatch.setattr(splitting, "kept_parts", lambda *_: wrong)
    found, ledger, _ = play(metadata, 2, family=family)
    assert np.flatnonzero(found.inside.argmax(axis=1) != found.label).tolist() == [3]  # its term stays there
    assert adjusted_rand_score(group, found.label) == 1.0
    assert leakage(ledger.openings, own=True).solved == 0


@pytest.mark.parametrize("family", ["full", "vmf", "gaussian"])
@pytest.mark.parametrize("kind", ["bfv", "ckks", "secagg"])
def test_sealed_mixtures_are_those_of_the_clear(kind, family):
    pytest.importorskip({"secagg": "cryptography"}.get(kind, "tenseal"))
    metadata, _ = overlapping(36)
    scheme = SecAgg(exact_codec(64.0, 36)[0]) if kind == "secagg" else make_scheme(kind, clients=36)
    clear, _, _, likelihoods = watch(metadata, 3, family=family)
    sealed, ledger, _, as_sealed = watch(metadata, 3, family=family, scheme=scheme)
    assert np.array_equal(sealed.resp, clear.resp)
    assert sealed.mixture.totals == pytest.approx(clear.mixture.totals, abs=1e-2, rel=1e-3)
    assert as_sealed == pytest.approx(likelihoods, abs=0.05, nan_ok=True)
    assert any(opening.share for opening in ledger.openings)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_opened_by_shares_solves_nobody_and_thin_components_keep_their_parameters(seed):
    metadata, _ = overlapping(24, seed=seed)
    _, ledger, exchange = play(metadata, 3)
    assert leakage(ledger.openings, own=True).solved == 0
    for opening in ledger.openings:
        share = np.array(opening.share or (1.0,) * len(opening.clients))
        least = 3 if opening.kind == "sum" else 6
        assert share.sum() ** 2 / (share**2).sum() >= least - 1e-9
    rows = np.zeros((len(ledger.openings), 24))
    for row, opening in zip(rows, ledger.openings, strict=True):
        row[list(opening.clients)] = opening.share or 1.0
    known = np.diagonal(np.linalg.pinv(rows, rcond=1e-9) @ rows)
    assert known.max() < 1 - 1e-6 and exchange.guard.leverage() == pytest.approx(known)


def test_a_component_of_too_few_keeps_what_it_began_with():
    metadata, group = metadata_of((4, 12))
    found, ledger, _, likelihoods = watch(metadata, 2)
    small = int(found.label[group == 0][0])
    _, covariance = found.mixture.family.parameters(found.mixture.totals)
    assert np.allclose(covariance[small], found.mixture.family.shared)  # no second moments of four clients
    assert ledger.held_back["metadata"] > 0 and not np.isfinite(likelihoods).any()
    assert found.mixture.totals[small, -1] == 4


def test_the_second_moments_of_all_but_a_few_are_not_opened_either():
    metadata, _ = metadata_of((4, 12))
    _, ledger, _ = play(metadata, 2)
    moments = [set(opening.clients) for opening in ledger.openings if opening.kind == "moments"]
    assert all(len(a ^ b) == 0 or len(a ^ b) >= 6 for a, b in itertools.combinations(moments, 2))
