"""What a summary says of its protection is what there was."""

import pytest

from flameche.errors import ConfigError
from flameche.experiments.config import parse_experiment
from flameche.experiments.demo import DESCRIPTION
from flameche.experiments.protection import deferred_notes, leak_notes, packages, protection, protection_notes
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.select import select_experiment
from flameche.protocol.ledger import Ledger
from flameche.registry import SCHEMES

SMALL = {**DESCRIPTION, "rounds": 4, "training": {**DESCRIPTION["training"], "epochs": 1}}


def described(method="flameche", participation=1.0, m_step=None, clients=20, options=None, **scheme):
    mode = {"mode": "paper"} if method == "flameche" else {}
    table = {"kind": method, **mode, **(options or {})} | ({} if m_step is None else {"m_step": m_step})
    data = {**SMALL["data"], "clients": clients}
    tables = {**SMALL, "participation": participation, "data": data, "method": table, "scheme": scheme}
    return parse_experiment(tables)


@pytest.mark.parametrize(
    ("method", "kind", "updates", "said", "used"),
    [
        ("flameche", "plain", "clear", "plain", []),
        ("flameche", "bfv", "clear", "bfv", ["tenseal"]),
        ("flameche", "bfv", "secagg", "bfv + secagg updates", ["cryptography", "tenseal"]),
        ("flameche", "paillier", "ckks", "paillier + ckks updates", ["gmpy2", "tenseal"]),
        ("flameche", "plain", "secagg", "plain + secagg updates", ["cryptography"]),
        ("fedavg", "bfv", "clear", "plain", []),
        ("oracle", "secagg", "clear", "plain", []),
        ("ifca", "bfv", "secagg", "secagg updates", ["cryptography"]),
        ("kfed", "plain", "clear", "plain", []),
    ],
)
def test_the_scheme_of_a_summary_names_what_was_sealed(method, kind, updates, said, used):
    experiment = described(method, kind=kind, updates=updates)
    assert protection(experiment) == said and packages(experiment) == used
    nothing_to_seal = kind != "plain" and method != "flameche"
    assert bool(protection_notes(experiment)) == nothing_to_seal


def test_a_scheme_without_anything_to_seal_says_so(tmp_path):
    summary, _ = run_experiment(described("fedavg", kind="bfv"), 0, tmp_path)
    assert summary["scheme"] == "plain" and "tenseal" not in summary["versions"]
    assert (
        'scheme.kind = "bfv" seals metadata, of which fedavg has none; its updates went in the clear '
        "(scheme.updates)"
    ) in summary["notes"]
    assert summary["deferred"] == {"sums": 0, "of": 0}


def test_versions_name_the_packages_that_were_used():
    assert "tenseal" in cluster_experiment(described(kind="bfv"), 0)["versions"]
    assert not {need for s in SCHEMES.values() if (need := s.needs)} & set(
        cluster_experiment(described(), 0)["versions"]
    )


@pytest.mark.parametrize(
    ("method", "scheme", "what"),
    [
        ("flameche", {"kind": "bfv"}, "metadata"),
        ("flameche", {"kind": "secagg"}, "metadata"),
        ("oracle", {"updates": "secagg"}, "model updates"),
    ],
)
def test_sums_held_back_are_counted_and_told_and_counted_on_after_a_kill(method, scheme, what, tmp_path):
    experiment = described(method, participation=0.5, min_cluster=3, **scheme)
    whole, _ = run_experiment(experiment, 0, tmp_path / "whole")
    held, asked = whole["deferred"]["sums"], whole["deferred"]["of"]
    assert 0 < held <= asked
    (note,) = (note for note in whole["notes"] if "held back" in note)
    assert note.startswith(f"{held} of {asked} sums of {what} were held back by scheme.min_cluster = 3; ")
    assert "scheme.min_cluster=1" in note and f"a single client's {what}" in note and "SECURITY.md" in note

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, 0, tmp_path / "stopped", on_round=stop)
    again, _ = run_experiment(experiment, 0, tmp_path / "stopped")
    assert again["deferred"] == whole["deferred"] and again["notes"] == whole["notes"]


def large(method="flameche", participation=0.2, options=None, **scheme):
    return described(method, participation, clients=100, options=options, **scheme)


def test_a_setting_whose_sums_can_be_solved_says_so():
    (note,) = leak_notes(large(options={"hide_assignments": True}, kind="bfv", updates="ckks"))
    assert "can solve them for some clients' metadata" in note and "SECURITY.md" in note


@pytest.mark.parametrize(
    "experiment",
    [
        lambda: large(),
        lambda: large(options={"m_step": "participants"}),
        lambda: large(kind="secagg"),
        lambda: large(options={"m_step": "participants"}, kind="secagg"),
        lambda: large(kind="bfv"),
        lambda: large("fedavg", kind="secagg"),
        lambda: large(options={"mode": "sketch"}, kind="bfv"),
        lambda: large(options={"mode": "sketch"}, kind="secagg"),
        lambda: described(participation=0.5, options={"mode": "sketch"}, kind="secagg"),  # few clients
        lambda: large("flameche-soft", options={"clusters": "auto"}, kind="secagg"),
    ],
)
def test_a_setting_in_which_no_client_was_solved_has_no_such_note(experiment):
    assert leak_notes(experiment()) == []


def test_without_a_guard_a_scheme_says_that_single_clients_can_be_read():
    (note,) = leak_notes(described(kind="bfv", min_cluster=1))
    assert note.startswith("scheme.min_cluster = 1 guards nothing: whoever has the clients' key can read")
    (note,) = leak_notes(described(kind="secagg", min_cluster=1))  # whose sums are over two clients at least
    assert "guards nothing: the server can solve sums for single clients' metadata" in note


@pytest.mark.parametrize(
    ("clients", "clusters", "few"), [(12, 1, True), (24, 2, True), (25, 2, False), (40, 6, True)]
)
def test_few_clients_under_a_guard_are_warned_of_random_clusters(clients, clusters, few):
    experiment = described(clients=clients, options={"clusters": clusters}, kind="bfv")
    notes = [note for note in leak_notes(experiment) if "the clusters may be random" in note]
    assert bool(notes) == few
    assert all(f"{clients} clients are few" in n and "scheme.min_cluster=1" in n for n in notes)
    assert all("single clients' metadata are opened" in n for n in notes)
    masked = leak_notes(described(clients=clients, options={"clusters": clusters}, kind="secagg"))
    assert any("single clients' metadata can be solved" in n for n in masked) == few
    assert leak_notes(described(clients=clients, options={"clusters": clusters})) == []  # in the clear


def test_what_can_be_solved_is_in_the_summaries_of_runs_clusterings_and_choices(tmp_path):
    experiment = described(participation=0.5, m_step="participants", kind="secagg")
    run, _ = run_experiment(experiment, 0, tmp_path)
    for summary in (run, cluster_experiment(experiment, 0)):
        assert summary["leakage"]["server"]["solved"] == summary["leakage"]["client"]["solved"] == 0
        assert not any("solve" in note for note in summary["notes"] if "random" not in note)
        assert any("the clusters may be random" in note for note in summary["notes"])
    chosen = select_experiment(experiment, 0, 2)
    assert chosen["notes"] == []  # a session's sums, of which none is solved


def test_the_remedy_that_a_note_names_is_one():
    bare = described(participation=0.5, min_cluster=1, kind="bfv")
    assert cluster_experiment(bare, 0)["deferred"]["sums"] == 0
    lone = Ledger(20)
    lone.asked["model"], lone.held_back["model"] = 9, 2
    (note,) = deferred_notes(described("oracle", updates="secagg", min_cluster=1), lone)
    assert "scheme.min_cluster" not in note and "more clients" in note  # lowering what is 1 would not help


def test_without_a_least_nothing_is_held_back_and_nothing_told():
    summary = cluster_experiment(described(), 0)
    assert summary["deferred"]["sums"] == 0 < summary["deferred"]["of"] and summary["notes"] == []


@pytest.mark.parametrize("method", ["flameche", "fedavg"])
def test_a_least_above_all_clients_can_never_be_reached(method):
    described(method, kind="bfv", min_cluster=20)
    with pytest.raises(ConfigError, match=r"min_cluster = 21 can never be reached: there are 20 clients"):
        described(method, kind="bfv", min_cluster=21)


@pytest.mark.parametrize(
    "how",
    [
        {"kind": "bfv", "m_step": "participants"},
        {"kind": "secagg"},
        {"kind": "bfv", "updates": "secagg"},
        {"method": "fedavg", "updates": "ckks"},
    ],
)
def test_a_least_above_the_participants_is_refused_where_only_they_are_summed(how):
    described(participation=0.5, min_cluster=10, **how)
    with pytest.raises(ConfigError, match=r"min_cluster = 11 can never be reached: .*these are 10"):
        described(participation=0.5, min_cluster=11, **how)


def test_a_least_above_the_participants_is_reached_where_terms_are_stored():
    described(participation=0.5, min_cluster=11, kind="bfv")
    described("fedavg", participation=0.5, min_cluster=11, kind="secagg")  # sums nothing under it


def test_label_counts_belong_to_multinomials():
    method = {"kind": "flameche-soft", "family": "multinomial"}
    parse_experiment({**SMALL, "method": method, "metadata": {"kind": "label-counts"}})
    with pytest.raises(ConfigError, match=r'of label counts, metadata.kind is "random-gaussian"; take'):
        described("flameche-soft", options={"family": "multinomial"})


def test_the_default_least_counts_too():
    with pytest.raises(ConfigError, match="min_cluster = 3 can never be reached"):
        described(participation=0.1, kind="secagg")
