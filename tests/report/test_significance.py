"""What is called different: laws, and scipy as oracle."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from flameche.report.significance import ALPHA, Sample, judge

RNG = np.random.default_rng(7)
DRAWN = [
    (Sample(*RNG.normal(size=1), abs(RNG.normal()) + 0.1, n), Sample(*RNG.normal(size=1), 0.5, m))
    for n, m in [(2, 5), (3, 5), (5, 5), (15, 15), (12, 3)] * 4
]


@pytest.mark.parametrize(("ours", "theirs"), DRAWN)
def test_it_is_welchs_test(ours: Sample, theirs: Sample) -> None:
    known = stats.ttest_ind_from_stats(
        ours.mean, ours.sd, ours.count, theirs.mean, theirs.sd, theirs.count, equal_var=False
    )
    verdict = judge(ours, theirs, rounding=0)
    assert verdict.p == pytest.approx(known.pvalue)
    assert (verdict.kind != "same") == (known.pvalue < ALPHA)


@pytest.mark.parametrize(("ours", "theirs"), DRAWN)
def test_changing_sides_changes_the_sign_alone(ours: Sample, theirs: Sample) -> None:
    there, back = judge(ours, theirs), judge(theirs, ours)
    assert there.difference == -back.difference and there.p == pytest.approx(back.p)
    assert {there.kind, back.kind} in ({"same"}, {"higher", "lower"})


@pytest.mark.parametrize(("ours", "theirs"), DRAWN)
def test_further_apart_is_never_less_sure(ours: Sample, theirs: Sample) -> None:
    apart = [judge(Sample(theirs.mean + gap, ours.sd, ours.count), theirs).p for gap in np.linspace(0, 5, 30)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(apart))
    assert apart[0] == 1.0


def test_what_rounding_may_do_is_no_difference() -> None:
    printed = Sample(1.00, 0.00, 5)
    assert judge(Sample(0.9951, 0.0, 5), printed).kind == "same"
    assert judge(Sample(0.97, 0.0, 5), printed).kind == "lower"


def test_one_seed_is_a_further_draw() -> None:
    theirs = Sample(90.0, 1.0, 5)
    edge = 0.005 + stats.t.isf(ALPHA / 2, 4) * math.sqrt(1 + 1 / 5)
    assert judge(Sample(90 + edge - 1e-6, None, 1), theirs).kind == "same"
    assert judge(Sample(90 + edge + 1e-6, None, 1), theirs).kind == "higher"


def test_without_a_spread_nothing_is_judged() -> None:
    for ours, theirs in (
        (Sample(1, 0.1, 5), Sample(2, None, 5)),
        (Sample(1, 0.1, 5), Sample(2, 0.1, 1)),
        (Sample(1, 0.1, 0), Sample(2, 0.1, 5)),
    ):
        assert judge(ours, theirs).kind == "open" and judge(ours, theirs).p is None


def test_equal_distributions_differ_about_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(2000):
        a, b = rng.normal(size=5), rng.normal(size=5)
        ours, theirs = (Sample(float(x.mean()), float(x.std(ddof=1)), 5) for x in (a, b))
        found += judge(ours, theirs).kind != "same"
    assert 0.02 < found / 2000 < ALPHA + 0.015
