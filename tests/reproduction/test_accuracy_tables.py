"""The former default mode beside Oracle: the verdicts, over seeds and over rounds."""

from dataclasses import replace

import pytest

from flameche_reproduction.catalogue import CATALOGUE
from flameche_reproduction.planned_runs import Selection
from flameche_reproduction.results_index import ResultsFile, ResultsIndex
from flameche_reproduction.tables import render


def oracle_and_former(folder, oracle, ours, others=0.1):
    """The verdict of one setting, from the accuracies per round of each seed."""
    choice = Selection(datasets=("mnist",), settings=("csl",), seeds=tuple(range(len(oracle))))
    rounds = {"oracle": oracle, "flameche-robust": ours}
    for run in (run for run in CATALOGUE["accuracy"].plan(choice) if run.row != "flameche"):
        curve = rounds.get(run.row, [[others]] * len(oracle))[run.seed]
        line = {"config_hash": run.hash, "seed": run.seed, "accuracy": curve[-1], "ari": None}
        ResultsFile(folder / "a.jsonl").add({**line, "accuracy_per_round": curve})
    drawn = render(CATALOGUE["accuracy"], choice, ResultsIndex([], [folder]))
    (row,) = next(table for title, table in drawn.tables if "Oracle" in title).rows
    return [cell.text for cell in row]


@pytest.mark.parametrize(
    ("oracle", "ours", "others", "said"),
    [
        ([[0.9], [0.8]], [[0.81], [0.79]], 0.9, "within, over seeds"),  # 5 lower, of a sd of 7.07
        ([[0.9], [0.8]], [[0.6], [0.6]], 0.9, "no, over seeds"),
        ([[0.9], [0.8]], [[0.6], [0.6]], 0.1, "first"),
        (
            [[0.1] * 50 + [0.9], [0.1] * 50 + [0.88]],
            [[0.85] * 51] * 2,
            0.9,
            "no, over seeds",
        ),
        ([[0.1] * 12 + [0.8, 0.9, 0.85]], [[0.1] * 12 + [0.86, 0.86, 0.7]], 0.9, "within, over rounds"),
        ([[0.1] * 12 + [0.8, 0.9, 0.85]], [[0.79] * 15], 0.9, "no, over rounds"),  # 6 lower, of a sd of 5
        ([[0.1, 0.2, 0.9]], [[0.1, 0.2, 0.8]], 0.9, "–"),  # nothing to tell a spread by
    ],
)
def test_a_mode_is_held_against_oracle(tmp_path, oracle, ours, others, said):
    row = oracle_and_former(tmp_path, oracle, ours, others)
    assert row[-1] == said and row[0] == ("MNIST csl" if len(oracle) > 1 else "MNIST csl (1 seed)")


def test_the_last_fifth_of_every_seeds_rounds_is_told(tmp_path):
    oracle = [[0.0] * 80 + [0.5] * 20, [0.0] * 80 + [0.7] * 20]
    row = oracle_and_former(tmp_path, oracle, [[0.4] * 100] * 2, 0.5)
    assert row[1:6] == ["60.00 ± 14.14", "40.00 ± 0.00", "9 of 9", "60.00 ± 10.13", "40.00 ± 0.00"]


def test_first_is_who_is_ahead_of_every_method(tmp_path):
    choice = Selection(
        datasets=("mnist",), settings=("csl",), seeds=(0,), methods=("oracle", "flameche-robust")
    )
    for run in CATALOGUE["accuracy"].plan(choice):
        ResultsFile(tmp_path / "a.jsonl").add(
            {"config_hash": run.hash, "seed": 0, "accuracy": 0.5, "ari": None}
        )
    stored = ResultsIndex([], [tmp_path])
    (row,) = render(CATALOGUE["accuracy"], replace(choice, methods=()), stored).tables[1][1].rows
    assert row[3].text == "1 of 1" and row[-1].text != "first"
