"""The console line of a round, and its numbers in TensorBoard."""

import json
import math

import pytest

from flameche.errors import ConfigError
from flameche.flower.results import RoundReporter, number_ranges, round_line

RECORD = {
    "round": 3, "accuracy": 0.875, "sizes": [5, 3], "participants": [0, 1, 2, 5, 7, 8], "reclustered": True,
    "bytes_up": 3_000_000, "bytes_down": 5_000_000, "lost": {"4": "offline"},
}  # fmt: skip


def test_a_round_is_a_line():
    assert round_line(RECORD, 10, 1_500_000, 250_000) == (
        "round 3/10 · nodes 0-2 5 7-8 · clusters 5 3 · accuracy 87.5% · "
        "1.50 MB up, 0.25 down · reclustered · "
        "lost node 4: offline"
    )
    quiet = {**RECORD, "accuracy": math.nan, "reclustered": False, "lost": {}}
    assert (
        round_line(quiet, 10, 0, 0) == "round 3/10 · nodes 0-2 5 7-8 · clusters 5 3 · 0.00 MB up, 0.00 down"
    )
    assert number_ranges([]) == "" and number_ranges([4]) == "4"


def test_bytes_are_told_by_round_and_numbers_go_to_the_board():
    said, board = [], []
    reporter = RoundReporter(2, said.append, type("Board", (), {"add": lambda self, *a: board.append(a)})())
    reporter.report({**RECORD, "round": 1})
    reporter.report({**RECORD, "round": 2, "bytes_up": 4_000_000, "accuracy": None})
    assert "3.00 MB up, 5.00 down" in said[0] and "1.00 MB up, 0.00 down" in said[1]
    assert board[0][0] == 1 and board[0][1]["accuracy"] == 0.875 and board[0][1]["cluster sizes/1"] == 3
    assert math.isnan(board[1][1]["accuracy"])
    json.dumps(board)


def test_a_board_writes_event_files_or_says_what_is_missing(tmp_path):
    from importlib.util import find_spec

    from flameche.training.tensorboard import Board

    if find_spec("tensorboard") is None:
        with pytest.raises(ConfigError, match="pip install tensorboard"):
            Board(tmp_path)
        return
    board = Board(tmp_path)
    board.add(1, {"accuracy": 0.5, "nothing": math.nan})
    board.close()
    assert list(tmp_path.glob("events*"))
