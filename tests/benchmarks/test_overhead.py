"""Growth that is known, and small grids of the real methods."""

import json

import numpy as np
import pytest

from flameche.methods import METHODS
from flameche_benchmarks import overhead
from flameche_benchmarks.overhead import (
    FIGURES,
    Grid,
    growth_exponent,
    measure,
    overhead_markdown,
    overhead_tables,
    participants_of,
)
from flameche_benchmarks.stand_in_training import StandInTrainer, planted_federation

SMALL = Grid(clients=(20, 40), clusters=(2, 4), base=20, middle=2, rounds=5)


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overhead, "REPEATS", 1)
        return measure(list(METHODS), SMALL)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 0.5])
def test_growth_finds_the_exponent(power):
    sizes = [100, 200, 400, 1600]
    assert growth_exponent(sizes, [3e-4 * n**power for n in sizes]) == pytest.approx(power)


def test_there_is_no_growth_without_a_cost_or_with_one_size():
    assert growth_exponent([100, 200], [0.0, 1.0]) is None
    assert growth_exponent([100, 100], [1.0, 2.0]) is None


def test_every_client_takes_part_once_in_five_rounds():
    who = np.concatenate([participants_of(23, r) for r in range(1, 6)])
    assert sorted(who.tolist()) == list(range(23))


def test_a_grid_asks_for_each_size_once():
    assert Grid().points() == [(n, 4) for n in (100, 200, 400, 800, 1600)] + [(100, k) for k in (2, 8, 16)]


def test_the_stand_in_moves_clients_of_a_group_the_same_way():
    federation = planted_federation(8, 2)
    trainer = StandInTrainer(federation)
    start = trainer.initial()
    moved = trainer.train(start, np.zeros(8, np.int64), np.arange(8), 1).minus(start).params.numpy()
    cosine = np.corrcoef(moved)
    same = federation.group[:, None] == federation.group[None]
    assert cosine[same].min() > 0.6 > 0.2 > cosine[~same].max()
    assert trainer.trainings == 8


def test_every_method_is_measured_at_every_size(found):
    kinds = [kind for kind in METHODS if kind != "fedavg"]
    assert [(r["method"], r["clients"], r["clusters"]) for r in found["rows"]] == [
        (kind, n, k) for n, k in SMALL.points() for kind in kinds
    ]
    json.dumps(found)


def test_bytes_beyond_fedavgs_are_those_one_can_count(found):
    model, rounds_each = 61706 * 4 / 1e3, 1  # KB; five rounds, a fifth each
    row = {r["method"]: r for r in found["rows"] if (r["clients"], r["clusters"]) == (20, 4)}
    assert row["oracle"] == {"method": "oracle", "clients": 20, "clusters": 4, **dict.fromkeys(FIGURES, 0.0)}
    assert row["ifca"]["down_kb"] == pytest.approx(3 * rounds_each * model)
    assert row["fesem"]["up_kb"] == row["fesem"]["down_kb"] == pytest.approx(model)
    assert row["fesem"]["trainings"] == 1
    assert row["kfed"]["up_kb"] == pytest.approx(4 * 7840 / 1e3) and row["kfed"]["down_kb"] == 0
    assert row["pacfl"]["up_kb"] > row["kfed"]["up_kb"] > row["flameche"]["up_kb"] > 3.3


def test_the_tables_name_all_methods_and_the_papers_growth(found):
    tables = overhead_tables(found)
    assert {row["method"] for row in tables[0].rows} == {
        METHODS[kind].about.title for kind in METHODS if kind != "fedavg"
    }
    server = {row["method"]: row for row in tables[0].rows}
    assert server["PACFL"]["paper: N^"] == "2" and server["FLAMECHE"]["paper: K^"] == "1"
    assert "| IFCA | client-side |" in overhead_markdown(found)
