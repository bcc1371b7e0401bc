"""`flameche select-k` and `clusters = "auto"`: the record, the run, the picture, wrong input."""

import json

import pytest

from flameche.errors import BadInput, ConfigError
from flameche.experiments.config import config_hash, parse_experiment
from flameche.experiments.overrides import parse_range
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.select import select_experiment
from flameche.report.selection import write_selection
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
    assert two["kept"] and two["agreement"] > 0.9 and two["ari"] == 1.0 and two["dbi"] > 0
    assert found["candidates"][0]["dbi"] is None and found["candidates"][0]["agreement"] is None
    assert set(found["preferred"]) == {"dbi", "ch", "silhouette"} and found["bytes_up"] > 0
    json.dumps(found, allow_nan=False)
    picture = write_selection(found, tmp_path / "new" / "k.0")
    assert picture.name == "k.0.svg" and picture.read_text().startswith("<?xml")
    assert (tmp_path / "new" / "k.0.pdf").read_bytes()[:4] == b"%PDF"


def test_a_run_chooses_its_k_and_says_so(tmp_path):
    experiment = parse_experiment(
        {**DIGITS, "method": {"mode": "paper", "clusters": "auto", "most_clusters": 5}}
    )
    summary, path = run_experiment(experiment, 0, tmp_path)
    assert summary["k"] == 2 and summary["ari_final"] == 1.0
    assert any(note.startswith("K = 2 chosen by held-out merging") for note in summary["notes"])
    assert json.loads((path / "selection.json").read_text())["k"] == 2
    told = parse_experiment({**DIGITS, "method": {"mode": "paper", "clusters": 2}})
    assert run_experiment(told, 0, tmp_path)[0]["bytes_up"] < summary["bytes_up"], "choosing is not free"


def test_without_groups_one_model_is_trained_for_all(tmp_path):
    data = {**DIGITS["data"], "heterogeneity": "none"}
    experiment = parse_experiment({**DIGITS, "data": data, "method": {"mode": "paper", "clusters": "auto"}})
    summary, _ = run_experiment(experiment, 0, tmp_path)
    assert summary["k"] == 1 and set(summary["assignment"]) == {0}
    assert "K = 1: held-out clients see no groups" in summary["notes"]


def test_where_there_are_no_groups_nothing_is_compared_with_them():
    data = {**DIGITS["data"], "heterogeneity": "none"}
    summary = cluster_experiment(parse_experiment({**DIGITS, "data": data}), 0)
    assert summary["k"] > 1 and summary["ari"] is None and summary["ari_final"] is None
    assert set(summary["ari_per_round"]) == {None}
    found = select_experiment(parse_experiment({**DIGITS, "data": data}), 0, 4)
    assert found["groups"] == 1 and {row["ari"] for row in found["candidates"]} == {None}


def test_with_few_clients_it_is_their_number_that_forbids_choosing_k():
    data = {**DIGITS["data"], "clients": 8}
    experiment = parse_experiment({**DIGITS, "data": data, "method": {"mode": "paper", "clusters": "auto"}})
    words = (
        "8 clients are too few to choose the number of clusters: expected at least 12; set method.clusters"
    )
    with pytest.raises(BadInput, match=words):
        cluster_experiment(experiment, 0)


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


def test_clustering_alone_chooses_too_also_in_paper_mode():
    experiment = parse_experiment({**DIGITS, "method": {"clusters": "auto", "mode": "paper"}})
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
