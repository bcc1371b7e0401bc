"""`flameche select-k` and `clusters = "auto"`: the record, the run, the picture, wrong input."""

import json

import pytest

from flameche.errors import BadInput, ConfigError
from flameche.experiments.config import config_hash, parse_experiment
from flameche.experiments.overrides import parse_range
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.select import select_experiment
from flameche.report.figures import write_selection
from tests.experiments.test_run import small

DIGITS = {
    "name": "digits",
    "rounds": 4,
    "participation": 1.0,
    "data": {"clients": 24, "groups": 2, "per_label": 5, "heterogeneity": "csf", "label_skew": False},
    "training": {"epochs": 1, "batch": 32, "threads": 1},
}


def test_the_groups_of_real_images_are_counted_and_the_record_is_whole(tmp_path):
    found = select_experiment(parse_experiment(DIGITS), 0, 6)
    assert found["k"] == found["groups"] == 2 and found["clients"] == 24
    assert [row["k"] for row in found["candidates"]][:2] == [1, 2]
    two = found["candidates"][1]
    assert two["kept"] and two["sureness"] > two["needed"] and two["ari"] == 1.0 and two["dbi"] > 0
    assert found["candidates"][0]["dbi"] is None and found["candidates"][0]["sureness"] is None
    assert set(found["preferred"]) == {"dbi", "ch"} and found["bytes_up"] > 0 and found["sums"] > 4
    json.dumps(found, allow_nan=False)
    picture = write_selection(found, tmp_path / "new" / "k.0")
    assert picture.name == "k.0.svg" and picture.read_text().startswith("<?xml")
    assert (tmp_path / "new" / "k.0.pdf").read_bytes()[:4] == b"%PDF"


def test_where_there_are_no_groups_nothing_is_compared_with_them():
    data = {**DIGITS["data"], "heterogeneity": "none"}
    summary = cluster_experiment(parse_experiment({**DIGITS, "data": data}), 0)
    assert summary["k"] > 1 and summary["ari"] is None and summary["ari_final"] is None
    assert set(summary["ari_per_round"]) == {None}
    found = select_experiment(parse_experiment({**DIGITS, "data": data}), 0, 4)
    assert found["groups"] == 1 and {row["ari"] for row in found["candidates"]} == {None}


def test_where_clients_are_too_few_to_choose_all_train_one_model_and_the_run_says_so():
    data = {**DIGITS["data"], "clients": 5}
    experiment = parse_experiment(
        {**DIGITS, "data": data, "method": {"clusters": "auto"}, "scheme": {"min_cluster": 3}}
    )
    summary = cluster_experiment(experiment, 0)
    assert summary["k"] == 1 and any("5 clients are too few" in note for note in summary["notes"])
    with pytest.raises(BadInput, match=r"5 clients are too few for scheme\.min_cluster = 3, which takes 6"):
        select_experiment(experiment, 0, 4)


@pytest.mark.parametrize(("heterogeneity", "k"), [("csf", 2), ("none", 1)])
def test_the_private_core_chooses_k_from_its_own_sums(heterogeneity, k, tmp_path):
    data = {**DIGITS["data"], "heterogeneity": heterogeneity}
    summaries = [
        run_experiment(parse_experiment({**DIGITS, "data": data, "method": {"clusters": c}}), 0, tmp_path)[0]
        for c in ("auto", k)
    ]
    assert summaries[0]["k"] == k and any(note.startswith(f"K = {k}") for note in summaries[0]["notes"])
    assert next(summary["leakage"]["client"]["sums"] for summary in summaries) < 40


def test_more_clusters_may_be_allowed_than_there_are_clients():
    data = {**DIGITS["data"], "clients": 12, "per_label": 10}
    experiment = parse_experiment(
        {**DIGITS, "data": data, "method": {"clusters": "auto", "most_clusters": 20}}
    )
    assert cluster_experiment(experiment, 0)["k"] == 2


def test_own_data_choose_k_unless_it_is_named_and_paper_mode_has_it_named():
    own = {"name": "own", "data": {"path": "own.npz", "clients": 24, "groups": 1}}
    assert parse_experiment(own).method.clusters == "auto"
    assert parse_experiment({**own, "method": {"clusters": 3}}).method.clusters == 3
    assert parse_experiment({**own, "method": {"mode": "paper"}}).method.clusters == 4
    assert parse_experiment({**own, "method": {"kind": "kfed"}}).method.clusters == 4
    assert parse_experiment(DIGITS).method.clusters == 4
    with pytest.raises(ConfigError, match=r'clusters = "auto" belongs to method\.mode = "sketch"'):
        parse_experiment({**DIGITS, "method": {"clusters": "auto", "mode": "paper"}})


def test_soft_em_is_given_the_k_that_a_session_chooses():
    experiment = parse_experiment({**DIGITS, "method": {"kind": "flameche-soft", "clusters": "auto"}})
    assert cluster_experiment(experiment, 0)["k"] == 2


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ConfigError, match="most_clusters belongs to"):
        small(clusters=4, most_clusters=6)
    with pytest.raises(ConfigError, match="clusters"):
        small(clusters="many")
    with pytest.raises(ConfigError, match="clusters"):
        parse_experiment({**DIGITS, "method": {"kind": "ifca", "clusters": "auto"}})


def test_the_most_clusters_are_part_of_a_run_only_where_k_is_chosen():
    fixed = parse_experiment({**DIGITS, "method": {"clusters": 4}})
    auto = [
        parse_experiment({**DIGITS, "method": {"clusters": "auto", "most_clusters": most}}) for most in (5, 6)
    ]
    assert len({config_hash(e) for e in (fixed, *auto)}) == 3


@pytest.mark.parametrize(
    ("text", "range"), [("2..8", (2, 8)), ("1..2", (1, 2)), ("6", (1, 6)), (" 3..3 ", (3, 3))]
)
def test_ranges(text, range):
    assert parse_range(text, "--k") == range


@pytest.mark.parametrize("text", ["", "8..2", "0..4", "1", "a..b", "2...8", "2..", "1..100", "-1..4"])
def test_wrong_ranges_are_one_line(text):
    with pytest.raises(ConfigError, match="expected a range such as"):
        parse_range(text, "--k")
