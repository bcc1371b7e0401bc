import numpy as np
import pytest

from flameche.protocol.ledger import Ledger
from flameche.protocol.updates import BOUND, MaskedUpdates, SealedUpdates, protect_updates


@pytest.mark.parametrize(("kind", "error"), [("secagg", 1e-9), ("ckks", 1e-4)])
def test_a_protected_sum_is_the_sum(kind, error):
    ledger = Ledger(9)
    vectors = np.random.default_rng(0).normal(size=(5, 3000))
    clients = np.array([1, 2, 4, 7, 8])
    total = protect_updates(kind, 9, 3, ledger).total(vectors, clients)
    assert np.abs(total - vectors.sum(axis=0)).max() < error
    assert (ledger.per_client("up")[clients] > 3000 * 8 - 1).all()
    assert ledger.per_client("up")[[0, 3, 5, 6]].sum() == 0


@pytest.mark.parametrize("make", [MaskedUpdates, SealedUpdates])
def test_too_few_participants_have_no_sum(make):
    updates = make(9, 3, Ledger(9))
    assert updates.total(np.ones((2, 4)), np.array([0, 1])) is None
    assert updates.total(np.ones((3, 4)), np.array([0, 1, 2])) is not None


def test_in_the_clear_nothing_stands_between():
    assert protect_updates("clear", 9, 3, Ledger(9)) is None


def test_a_weight_beyond_the_bound_is_refused():
    from flameche.errors import OverflowBudget

    for make in (MaskedUpdates, SealedUpdates):
        with pytest.raises(OverflowBudget, match=r"update.*declared bound 1024; lower training\.lr"):
            make(9, 1, Ledger(9)).total(np.full((2, 3), BOUND * 1.01), np.array([0, 1]))
