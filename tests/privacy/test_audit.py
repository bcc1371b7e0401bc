"""The audit: clients solved from a log of opened sums, by the server and by a curious client."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flameche.cli.commands import app
from flameche.errors import StoreError
from flameche.experiments.config import parse_experiment
from flameche.experiments.leakage import audit_run
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.select import select_experiment
from flameche.privacy.audit import Opening, audit, leakage
from flameche.protocol.ledger import Ledger, read_opening
from tests.attacks import OpenedSums

SETS = st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=9)


def logged(sets, what="metadata", numbers=5):
    return [Opening(1, what, "sum", tuple(sorted(members)), numbers) for members in sets]


@settings(max_examples=100, deadline=None)
@given(SETS)
def test_it_solves_whom_an_attack_solves(sets):
    attack = OpenedSums(7)
    for members in sets:
        attack.add(np.array(sorted(members)), np.zeros(1))
    assert leakage(logged(sets), own=False).solved == len(attack.solved())


@settings(max_examples=100, deadline=None)
@given(SETS)
def test_a_client_solves_whom_an_attack_with_its_own_term_solves(sets):
    worst = 0
    for known in set().union(*sets):
        attack = OpenedSums(7)
        for members in [*sets, {known}]:
            attack.add(np.array(sorted(members)), np.zeros(1))
        worst = max(worst, len(attack.solved().keys() - {known}))
    assert leakage(logged(sets), own=True).solved == max(worst, len(_alone(sets)))


def _alone(sets):
    attack = OpenedSums(7)
    for members in sets:
        attack.add(np.array(sorted(members)), np.zeros(1))
    return attack.solved()


def test_sums_of_other_terms_are_no_equations_for_these():
    few = logged([{0, 1, 2}], "errors") + logged([{0, 1}], "means")
    assert leakage(few, own=False).solved == 0
    assert leakage(logged([{0, 1, 2}, {0, 1}]), own=False).solved == 1


def test_sketches_are_linear_in_the_metadata_that_means_are_of():
    assert leakage(logged([{0, 1, 2}], "sketches") + logged([{0, 1}], "means"), own=False).solved == 1


def test_a_term_that_changed_is_another_unknown():
    before = Opening(1, "means", "sum", (0, 1, 2), 5)
    after = Opening(2, "means", "sum", (1, 2), 5, ((1, 1), (2, 1)))
    assert leakage([before, after], own=False).solved == 0


def test_sums_by_shares_are_solved_with_the_shares():
    whole = Opening(1, "means", "sum", (0, 1, 2), 5)
    parts = [Opening(1, "means", "sum", (0, 1, 2), 5, (), share) for share in ((0.5,) * 3, (1, 1, 0.5))]
    assert leakage([whole, parts[0]], own=False).solved == 0  # half of it all tells nothing new
    assert leakage([whole, parts[1]], own=False).solved == 1


def test_numbers_and_sets_are_counted():
    log = logged([{0, 1, 2, 3}], numbers=100) + logged([{0, 1}, {2, 3}], numbers=7)
    leak = leakage(log, own=False)
    assert (leak.sums, leak.numbers_per_client, leak.numbers_over_fewer) == (3, 107, 7)
    assert (leak.smallest_set, leak.rank, leak.solved) == (2, 2, 0) and leak.leverage == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("opens", "clear", "server"), [(False, False, 0), (True, False, 1), (True, True, 3)], ids=str
)
def test_what_the_server_solves_depends_on_what_it_reads(opens, clear, server):
    found = audit(logged([{0, 1, 2}, {0, 1}]), 3, opens, clear)
    assert found["server"].solved == server and found["client"].solved == 2  # 0 takes itself out


def test_an_opening_survives_a_checkpoint_and_the_same_sum_is_noted_once():
    ledger, again = Ledger(4), Ledger(4)
    for _ in range(3):
        ledger.opened("means", np.array([0, 2, 3]), 6, np.array([0, 1, 0]))
    again.restore(json.loads(json.dumps(ledger.state())))
    assert again.openings == ledger.openings == [Opening(0, "means", "sum", (0, 2, 3), 6, ((2, 1),))]
    again.opened("means", np.array([0, 2, 3]), 6, np.array([0, 1, 0]), share=np.ones(3))
    assert len(again.openings) == 1
    again.opened("means", np.array([0, 2, 3]), 6, np.array([0, 1, 0]), share=np.array([1, 1, 0.5]))
    assert len(again.openings) == 2 and again.openings[1].share == (1, 1, 0.5)
    assert read_opening(json.loads(json.dumps(again.openings[1].__dict__))) == again.openings[1]
    assert read_opening(json.loads(json.dumps(ledger.openings[0].__dict__))) == ledger.openings[0]


def tiny(scheme):
    return parse_experiment(
        {
            "name": "audited",
            "rounds": 12,
            "participation": 0.5,
            "data": {"dataset": "digits", "clients": 12, "groups": 2, "per_label": 8},
            "training": {"epochs": 1, "trainer": "loop", "evaluate_every": 12},
            "method": {"mode": "sketch", "clusters": 2},
            "scheme": {"kind": scheme},
        }
    )


@pytest.mark.parametrize("scheme", ["secagg", "bfv"])
def test_a_run_of_the_private_core_solves_nobody(scheme, tmp_path):
    summary, path = run_experiment(tiny(scheme), 0, tmp_path)
    found = audit_run(path)
    assert found["server"]["solved"] == found["client"]["solved"] == 0
    assert found["server"]["sums"] == (0 if scheme == "bfv" else found["client"]["sums"])
    assert summary["leakage"]["client"] == found["client"]
    assert found["sums"]["second moments"] == {"sums": 1, "smallest_set": 12, "largest_set": 12}


@pytest.mark.parametrize(("scheme", "least"), [("plain", 1), ("secagg", 1), ("secagg", 3), ("bfv", 3)])
def test_the_papers_sums_over_participants_are_solved_in_the_end_unless_they_are_guarded(scheme, least):
    data = {"dataset": "digits", "clients": 20, "groups": 2, "per_label": 5}
    own = parse_experiment(
        {
            "name": "solved",
            "rounds": 80,
            "participation": 0.5,
            "data": data,
            "method": {"mode": "paper", "clusters": 2, "m_step": "participants"},
            "scheme": {"kind": scheme, "min_cluster": least},
        }
    )
    summary = cluster_experiment(own, 0)
    found = summary["leakage"]
    if least == 3:
        assert found["client"]["solved"] == found["server"]["solved"] == 0 < found["client"]["rank"]
        return
    assert found["server"]["solved"] == 20 and found["client"]["solved"] >= 19
    told = any("metadata of 20 of 20 clients by the server" in note for note in summary["notes"])
    assert told == (scheme == "secagg")  # in the clear nobody was promised anything


def test_choosing_k_is_audited_by_itself_and_as_part_of_a_run():
    own = tiny("secagg")
    alone = select_experiment(own, 0, 4)["leakage"]
    assert alone["client"]["sums"] > 0 and alone["server"]["sums"] == alone["client"]["sums"]
    auto = parse_experiment(
        {**own.model_dump(exclude={"events"}), "method": {"clusters": "auto"}, "rounds": 2}
    )
    found = cluster_experiment(auto, 0)["leakage"]
    assert found["client"]["sums"] > 0 and found["client"]["solved"] == 0


def test_the_command_tells_it_on_a_screen_and_as_json(tmp_path):
    _, path = run_experiment(tiny("secagg"), 0, tmp_path)
    shown = CliRunner().invoke(app, ["audit", str(path)])
    assert shown.exit_code == 0 and shown.output.count("0 of 12") == 2 and "second moments" in shown.output
    told = CliRunner().invoke(app, ["audit", str(path), "--json"])
    assert {json.loads(told.stdout)[party]["solved"] for party in ("server", "client")} == {0}


def test_what_holds_no_log_is_refused_in_one_line(tmp_path):
    with pytest.raises(StoreError, match="not a finished run"):
        audit_run(tmp_path)
    _, path = run_experiment(tiny("secagg"), 0, tmp_path)
    (path / "openings.json").unlink()
    with pytest.raises(StoreError, match="earlier version"):
        audit_run(path)
