"""Attacks on what is opened, with positive controls; larger ones are in results/attacks.md."""

import numpy as np
import pytest

from flameche.experiments.build import build
from reproduction.studies import attacks_table
from reproduction.studies.attacks_table import membership, second_moments, sums
from tests.attacks import Shadow, Values, auc

pytest.importorskip("tenseal")


@pytest.mark.parametrize(
    ("case", "scheme"), [("8", "bfv"), ("20", "secagg"), ("20", "bfv"), ("100", "secagg")]
)
def test_nobody_is_solved_over_the_whole_life_of_a_federation(case, scheme):
    found = sums(case, scheme, 0)
    assert found["sums"] > 5 and found["smallest"] >= 3
    assert found["sessions"] == (2 if case == "100" else 1)  # of a hundred, a whole group comes late
    assert found["solved"] == found["by_a_key_holder"] == 0
    assert found["audit"] == {"server": 0, "client": 0}


@pytest.mark.parametrize("scheme", ["bfv", "secagg"])
def test_the_same_attack_solves_clients_where_nothing_is_guarded_and_in_paper_mode(scheme):
    three = sums("three, no guard", scheme, 0)
    assert (three["solved"], three["by_a_key_holder"]) == (3, 2)
    assert sums("8, no guard", scheme, 0)["solved"] >= 4
    paper = sums("20, paper", scheme, 0)
    assert (paper["solved"], paper["by_a_key_holder"]) == (20, 19) and paper["smallest"] >= 2


def test_a_logged_value_is_the_sum_of_the_terms_of_whom_the_log_names():
    own = attacks_table.life("20", "bfv")
    setup, log = build(own, 0, device="cpu", training=False), Values()
    setup.timeline.begin(setup.method)
    log.listen(setup.method)
    setup.method.round(1, setup.timeline.present(1))
    assert len(log.sums) > 5
    for name, members, value in log.sums:
        total = np.sum([log.truth[(name, *who)] for who in members], axis=0)
        assert value == pytest.approx(total, abs=1e-3 if name != "second moments" else 1e-4)


def test_second_moments_give_clients_away_without_the_projection_and_not_with_it(monkeypatch):
    monkeypatch.setattr(attacks_table, "STARTS", 60)
    monkeypatch.setattr(attacks_table, "TOGETHER", {6: 3})
    shipped, control = second_moments("6", "shipped", 0), second_moments("6", "no projection", 0)
    assert (shipped["width"], control["width"], control["of"]) == (16, 32, 32)
    assert set(shipped["recovered"].values()) == {0.0}
    assert control["recovered"]["lengths, all at once"] == 1.0 == control["recovered"]["sums, lengths"]
    assert control["recovered"]["lengths"] > 0.5 and control["recovered"]["guess"] == 0.0


def test_whether_an_image_is_a_clients_own_is_told_best_by_its_own_metadata():
    five, one = membership("digits 8", "5", 0), membership("digits 8", "1", 0)
    assert 0.6 < five["in_session"]["means"] < five["in_session"]["own"] - 0.1
    assert one["in_session"]["own"] > 0.95
    assert one["in_session"]["span"] > 0.95  # of one image a class: SECURITY.md says so


def test_the_membership_test_is_as_good_as_theory_says():
    """Of a mean of n images with D independent features the score's d' is sqrt(D / n)."""
    rng = np.random.default_rng(0)
    features, count = 40, 200
    images = np.concatenate([np.full((6000, 1), 50.0), rng.standard_normal((6000, features))], axis=1)
    shadow = Shadow(images[:4000])
    inside, outside = [], []
    for k in range(5):
        members = images[4000 + count * k : 4000 + count * (k + 1)]
        block = members.mean(axis=0) / np.linalg.norm(members.mean(axis=0))
        inside.append(shadow.in_mean(members, block, count, 0.0))
        outside.append(shadow.in_mean(images[5000:], block, count, 0.0))
    assert auc(np.concatenate(inside), np.concatenate(outside)) == pytest.approx(0.62, abs=0.04)
