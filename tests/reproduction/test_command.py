"""`flameche reproduce`: tables and figures from what is stored, remarks, README, the command line."""

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flameche import cli
from flameche.data import data_folder, sources
from flameche.errors import BadInput, StoreError
from flameche.experiments.run import run_experiment
from flameche_reproduction.catalogue import CATALOGUE
from flameche_reproduction.command import fill_readme
from flameche_reproduction.inventory import approximate_duration
from flameche_reproduction.planned_runs import Selection
from flameche_reproduction.results_index import ResultsFile, ResultsIndex
from flameche_reproduction.sweep import missing_runs
from flameche_reproduction.tables import render
from flameche_reproduction.tables.comparison import (
    ComparedCell,
    Remark,
    explain_differences,
    judge,
    read_remarks,
)
from flameche_reproduction.tables.document import write
from flameche_reproduction.tables.readme import fill_blocks
from flameche_reproduction.tables.trilemma import MethodCosts, scores
from tests.made_datasets import cifar_set, idx_set

ROOT = Path(__file__).parents[2]
EMPTY = ResultsIndex()


@pytest.fixture(scope="module")
def kept():
    return ResultsIndex([], [ROOT / "results"])


@pytest.fixture
def image_sets(monkeypatch):
    """Put small stand-ins for MNIST and CIFAR-10 where datasets are looked for."""
    idx_set(data_folder(), monkeypatch, packed=False)
    cifar_set(data_folder(), monkeypatch, sources.CIFAR_BIN)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line in a folder of its own; return exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["flameche", "reproduce", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", CATALOGUE)
def test_everything_can_be_drawn_from_nothing_and_says_that_nothing_was_run(name, tmp_path):
    drawn = render(CATALOGUE[name], Selection(), EMPTY)
    files = write(drawn, tmp_path)
    assert {file.suffix for file in files} == {".md", ".csv", ".tex"} and drawn.figure is None
    page = (tmp_path / f"{name}.md").read_text()
    assert page.startswith(f"# {drawn.title}\n") and "not run" in page and drawn.runs[0] == 0
    assert "Unexplained" not in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
    assert len(rows) == len(drawn.data.rows) > 0


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_pages_in_results_are_what_the_stored_runs_say(name, kept):
    page = (ROOT / "results" / "paper" / f"{name}.md").read_text()
    assert page == render(CATALOGUE[name], Selection(), kept).markdown(), "run `make tables`"


def test_a_cell_that_a_table_does_not_have_is_no_cell_that_was_not_run(kept):
    page = render(CATALOGUE["recipes"], Selection(settings=("fds",)), kept).markdown()
    row = next(line for line in page.splitlines() if "no pooling in the stem" in line).split(" | ")
    assert row[0].startswith("| Oracle") and row[1] == "1.00" and set(row[5:]) == {"–", "– |"}
    others = [line for line in page.splitlines() if not line.startswith("| FLAMECHE (m)")]
    assert not any("not run" in line for line in others)


def test_the_mode_that_is_gone_is_shown_and_never_asked_for(kept, tmp_path):
    table = CATALOGUE["accuracy"]
    gone = [run for run in table.plan() if run.retired]
    assert {run.row for run in gone} == {"flameche-robust"} and any(kept.find(run) for run in gone)
    assert not any(run.retired for run in missing_runs(table.plan(), ResultsIndex([], [tmp_path])))
    page = render(table, Selection(datasets=("mnist",)), kept).markdown()
    row = next(line for line in page.splitlines() if "since removed" in line)
    assert row.startswith("| FLAMECHE, former default mode, since removed (m) |") and "not run" not in row


def test_readme_shows_what_the_stored_runs_say(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text())
    assert not fill_readme(copy, ROOT / "results"), "run `make tables`"


def test_figures_are_drawn_where_there_are_runs(kept, tmp_path):
    drawn = render(CATALOGUE["ranks"], Selection(), kept)
    assert {file.suffix for file in write(drawn, tmp_path)} == {".md", ".csv", ".tex", ".svg", ".pdf"}
    assert "![" in drawn.markdown()


def test_a_cell_is_the_mean_and_spread_of_its_seeds_and_no_more(tmp_path):
    choice = Selection(datasets=("mnist",), methods=("fedavg", "ifca"), seeds=(0, 1))
    for run, accuracy in zip(CATALOGUE["csl"].plan(choice), (0.7, 0.9, 0.8, 0.8), strict=True):
        line = {"config_hash": run.hash, "seed": run.seed, "accuracy": accuracy, "ari": None}
        ResultsFile(tmp_path / "a.jsonl").add(line)
    table = render(CATALOGUE["csl"], choice, ResultsIndex([], [tmp_path])).tables[0][1]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["FedAvg", "–", "75.00 ± 7.07"],
        ["IFCA (c)", "–", "85.00 ± 7.07"],
    ]
    assert table.rows[1][2].bold
    alone = render(CATALOGUE["csl"], replace(choice, methods=("ifca",)), ResultsIndex([], [tmp_path])).tables[
        0
    ][1]
    assert not alone.rows[0][2].bold  # better than nothing is not the best
    pooled = render(
        CATALOGUE["accuracy"], choice, ResultsIndex([], [tmp_path])
    )  # of three settings one was run
    assert pooled.tables[0][1].rows[0][1].text == "75.00 ± 7.07 *" and "not all settings" in pooled.lead


def lines_for(folder, planned, accuracy=0.1):
    """Store runs that are far from the paper's."""
    for run in planned:
        line = {"config_hash": run.hash, "seed": run.seed, "accuracy": accuracy, "ari": 0.1, "dbi": 9.0}
        ResultsFile(folder / "a.jsonl").add({**line, "accuracy_per_round": [accuracy, accuracy]})
    return ResultsIndex([], [folder])


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.rows])
def test_changed_runs_are_not_judged_and_tell_their_own_numbers(name, tmp_path):
    entry, few = CATALOGUE[name], {"seeds": (0, 1), "datasets": ("fashion-mnist", "cifar10")}
    own, same, changed = (
        Selection(**few, changes=words)
        for words in ((), ("rounds=100", "training.threads=2"), ("rounds=20",))
    )
    stored = lines_for(tmp_path, [*entry.plan(own), *entry.plan(changed)])
    page, drawn = render(entry, own, stored).markdown(), render(entry, changed, stored)
    assert page == render(entry, same, stored).markdown()  # what changes no result is no change
    assert "not the paper's runs" not in page and drawn.runs == render(entry, own, stored).runs
    text = drawn.markdown()
    assert "`rounds=20`: these are not the paper's runs" in text and "`rounds=20`" in drawn.tex()
    assert drawn.as_json()["changes"] == ["rounds=20"]
    assert "100 rounds" not in text and "## Beside the paper" not in text and "| paper |" not in text
    if name != "ranks":
        assert "20 rounds" in text and "100 rounds" in page
    if "## Beside the paper" in page:  # ours is shown all the same, and the paper's beside it
        assert "0.10 ± 0.00" in text or "10.00 ± 0.00" in text
        assert "| paper, for reference |" in text


def test_each_set_tells_its_own_scale():
    both = Selection(datasets=("mnist", "digits"), seeds=(0,))
    lead = render(CATALOGUE["csl"], both, EMPTY).lead
    assert "MNIST: 100 clients in 4 groups, 100 rounds, 20% of the clients in each" in lead
    assert "digits: 20 clients in 4 groups, 15 rounds, 20% of the clients in each" in lead
    one = Selection(datasets=("digits",), changes=("rounds=1", "participation=0.125", "data.groups=1"))
    lead = render(CATALOGUE["missing-curves"], one, EMPTY).lead
    assert lead.startswith("20 clients in 1 group, 1 round, 12.5% of the clients in each.")


def test_a_row_stands_only_under_the_settings_it_has():
    csl, _, csf = render(CATALOGUE["clusters"], Selection(), EMPTY).markdown().split("\n## ")[1:]
    assert "MNIST's pairs" in csl and "no label skew" not in csl
    assert "MNIST's pairs" not in csf and "no label skew" in csf
    full = {
        tuple(cell.text for cell in row[1:3])
        for row in render(CATALOGUE["clusters"], Selection(), EMPTY).data.rows
    }
    assert ("csl", "kfed-pairs") in full and ("csf", "kfed-pairs") not in full


def test_tissuemnist_says_why_it_is_empty_and_who_stands_for_it():
    page = render(CATALOGUE["csl"], Selection(), EMPTY).markdown()
    assert "TissueMNIST (no data)" in page and "MedNIST28, for TissueMNIST" in page
    assert "could not be had offline" in page


def difference(ours=0.66, seeds=5, **keys):
    cell = {"table": "fds", "dataset": "mnist", "setting": "fds", "method": "fesem", "measure": "ari"}
    about = {"ours": ours, "paper": "0.95 ± 0.12", "title": "FeSEM", "seeds": seeds}
    return ComparedCell(**{**cell, **keys}, **about, verdict=judge(ours, seeds, 0.95, 0.12))


def test_a_difference_is_explained_by_a_remark_but_not_by_a_guess():
    known = Remark({"table": ("fds",), "method": ("fesem",)}, "Because.")
    guess = Remark({"measure": ("ari",)}, "Perhaps.", guess=True)
    said = "\n".join(explain_differences([difference()], [known]))
    assert "- Because. (FeSEM, MNIST fds, ARI: 0.66 against 0.95 ± 0.12)" in said
    assert "Unexplained" not in said
    said = "\n".join(explain_differences([difference(), difference(method="ifca")], [guess]))
    assert "Guesses" in said and "Unexplained (2)" in said
    said = "\n".join(explain_differences([difference(), difference(method="ifca")], [known, guess]))
    assert "Unexplained (1)" in said and said.count("FeSEM, MNIST fds") == 3  # once as known, the other twice
    assert explain_differences([], [known]) == []
    part = Remark({"method": ("fesem",)}, "Half of it.", partly=True)
    said = "\n".join(explain_differences([difference(), difference(method="ifca")], [part, guess]))
    assert "- Half of it." in said and "Explained in part (1)" in said and "Unexplained (1)" in said
    assert "in part" not in "\n".join(explain_differences([difference()], [part, known]))


def test_cells_of_too_few_seeds_are_counted_apart_and_say_so_in_their_remark():
    known = Remark({"method": ("fesem",)}, "Because.")
    said = "\n".join(explain_differences([difference(), difference(ours=0.9), difference(seeds=1)], [known]))
    assert "1 of 3 cells within the paper's spread, 1 outside, 1 with too few runs to tell." in said
    assert said.count("0.66 against 0.95 ± 0.12") == 2 and "0.66 against 0.95 ± 0.12, 1 seed)" in said
    assert "0.90 against" not in said


def test_a_text_that_several_remarks_have_is_told_once_with_all_cells():
    both = [Remark({"method": (name,)}, "Slower.", partly=name == "fesem") for name in ("fesem", "ifca")]
    said = "\n".join(explain_differences([difference(), difference(method="ifca")], both))
    assert said.count("Slower.") == 1 and said.count("0.66 against") == 3  # two cells, one again as in part
    assert "Explained in part (1)" in said and "Unexplained" not in said


def test_a_remark_may_be_of_several_lots_of_cells(tmp_path):
    lots = '[{ method = "fesem", partly = true }, { method = ["ifca"] }]'
    (tmp_path / "remarks.toml").write_text(f"[[remark]]\nmeasure = 'ari'\nof = {lots}\ntext = 'x'\n")
    ari = {"measure": ("ari",)}
    assert read_remarks(ResultsIndex([], [tmp_path])) == [
        Remark(ari | {"method": ("fesem",)}, "x", partly=True),
        Remark(ari | {"method": ("ifca",)}, "x"),
    ]
    (tmp_path / "remarks.toml").write_text("[[remark]]\nof = [{ methods = 'ifca' }]\ntext = 'x'\n")
    with pytest.raises(StoreError, match="remark 1 has unknown keys methods"):
        read_remarks(ResultsIndex([], [tmp_path]))


def test_a_remark_is_a_guess_or_shown_in_part_not_both(tmp_path):
    (tmp_path / "remarks.toml").write_text("[[remark]]\ntext = 'x'\nguess = true\npartly = true\n")
    with pytest.raises(StoreError, match="take one"):
        read_remarks(ResultsIndex([], [tmp_path]))


def test_remarks_are_read_and_refused_in_one_line(tmp_path):
    file = tmp_path / "remarks.toml"
    file.write_text('[[remark]]\ntable = "csl"\nmethod = ["ifca"]\ntext = "So."\n')
    assert read_remarks(ResultsIndex([], [tmp_path])) == [
        Remark({"table": ("csl",), "method": ("ifca",)}, "So.")
    ]
    for wrong in ("remark = 3", '[[remark]]\ntabel = "csl"\ntext = "So."', '[[remark]]\ntable = "csl"', "["):
        file.write_text(wrong)
        with pytest.raises(StoreError, match=re.escape(str(file))):
            read_remarks(ResultsIndex([], [tmp_path]))


def test_every_remark_of_ours_names_what_there_is():
    for remark in read_remarks(ResultsIndex([], [ROOT / "results"])):
        for table in remark.keys.get("table", ()):
            rows = set(CATALOGUE[table].rows)
            assert set(remark.keys.get("method", rows)) & rows, (table, remark.text)
        assert not set(remark.keys.get("dataset", ())) - set(CATALOGUE["accuracy"].datasets)


def test_the_cheapest_has_the_furthest_corner_and_the_dearest_none():
    places = [
        MethodCosts("kfed", 0.01, 30, 30),
        MethodCosts("ifca", 4.0, 1500, 0),
        MethodCosts("stocfl", 0.1, 2000, 1500),
    ]
    found = scores(places)
    assert found[0][0] == 1 and found[1][0] == 0 and found[2][1:] == (0, 0) and found[1][2] == 1
    assert all(0 <= value <= 1 for score in found for value in score)


def test_blocks_go_between_their_markers_and_nowhere_else():
    text = "a\n<!-- table: x -->\n<!-- end -->\nb\n<!-- table: y -->\nold\nolder\n<!-- end -->\nc"
    once = fill_blocks(text, {"x": "1\n2", "y": "3"})
    assert once == "a\n<!-- table: x -->\n1\n2\n<!-- end -->\nb\n<!-- table: y -->\n3\n<!-- end -->\nc"
    assert fill_blocks(once, {"x": "1\n2", "y": "3"}) == once
    with pytest.raises(BadInput, match="table: z"):
        fill_blocks(text, {"z": ""})


def test_the_list_tells_of_every_name_what_is_there(call, image_sets):
    code, out, _ = call("--list", "--json", "--device", "cpu", "--results", ROOT / "results")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and list(rows) == list(CATALOGUE)
    for row in rows.values():
        assert row["there"] + row["missing"] + row["no_data"] == row["runs"]
    assert rows["recluster"]["missing"] == 0 and rows["complexity"]["there"] == 1
    code, out, _ = call("--list", "--datasets", "mnist", "--device", "cpu", "--results", "nothing")
    assert code == 0 and "time, GPU" in out and "about" in out  # of some nothing is on that set


def test_runs_on_a_set_that_is_not_there_are_counted_apart_and_take_no_time(call):
    words = ("--list", "--json", "--datasets", "mnist", "--device", "cpu", "--results", "nothing")
    (row,) = json.loads(call("csl", *words)[1])
    assert row["no_data"] == row["runs"] > 0 and row["missing"] == 0 and row["seconds"] is None


def test_a_guess_is_told_to_one_digit_and_a_measurement_in_full():
    assert (
        approximate_duration(26_300, False) == "7 h 18 min"
        and approximate_duration(9 * 86_400, False) == "9 days"
    )
    guesses = {40: "1 minute", 200: "3 minutes", 1500: "20 minutes", 10_000: "3 hours", 200_000: "2 days"}
    guesses |= {86_400 * 15: "2 weeks", 86_400 * 70: "2 months", 86_400 * 500: "20 months"}
    assert {seconds: approximate_duration(seconds, True) for seconds in guesses} == {
        seconds: f"about {text}" for seconds, text in guesses.items()
    }


def test_what_is_to_be_run_where_nothing_is_stored_is_guessed_for_both_devices(call, image_sets):
    words = ("--list", "--json", "--datasets", "cifar10", "--seeds", "77", "--device", "cpu")
    (row,) = json.loads(call("csl", *words, "--results", ROOT / "results")[1])
    assert row["missing"] and row["guessed"] == row["missing"] and not row["gpu_guessed"]
    assert row["seconds"] > 20 * row["gpu_seconds"] and "H200" in row["gpu"]
    (row,) = json.loads(call("csl", *words, "--results", "nothing")[1])
    assert row["gpu_guessed"] == row["missing"] and row["gpu"] == ""


def test_what_is_stored_is_drawn_without_running_anything(call, tmp_path):
    words = ("recluster", "complexity", "--stored", "--json", "--results", ROOT / "results", "--out", "o")
    code, out, _ = call(*words, "--device", "cpu")
    told = json.loads(out)
    assert code == 0 and set(told) == {"recluster", "complexity"} and told["recluster"]["there"] > 0
    assert all(Path(file).exists() for one in told.values() for file in one["files"])
    assert "-0.00" not in Path(tmp_path, "o", "complexity.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("o/*.jsonl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["csx"], "no table or figure"),
        ([], "names of tables"),
        (["csl", "--datasets", "mnst"], "did you mean 'mnist'"),
        (["csl", "--seeds", "a"], "--seeds a"),
        (["csl", "--shard", "3/2"], "--shard 3/2"),
        (["csl", "--set", "rounds=0"], "rounds = 0"),
        (["csl", "--keep", "--set", "rounds=5"], "--keep with --set"),
        (["csl", "--keep", "--fresh"], "--fresh with --keep"),
        (["csl", "--stored", "--fresh"], "--fresh with --stored"),
        (["csl", "--stored", "--results", "nowhere"], "--stored: no stored runs in nowhere"),
        (["csl", "--out", "results", "--fresh"], "choose another --out"),
        (
            ["csl", "missing", "--datasets", "digits", "--settings", "fds", "--methods", "oracle"],
            "csl, missing",
        ),
        (["--readme", "nothing.md"], "nothing.md"),
        (["csl", "--ray", "127.0.0.1:1"], "--ray"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(call, words, said):
    code, out, err = call(*words)
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err


def test_lists_may_be_written_with_spaces_or_commas(call):
    spaced = call(
        "--list", "--json", "--device", "cpu", "--datasets", "mnist", "cifar10", "--seeds", "0", "1"
    )
    commas = call("--list", "--json", "--device", "cpu", "--datasets", "mnist,cifar10", "--seeds", "0..1")
    assert spaced == commas and json.loads(spaced[1])[0]["runs"] == 2 * 3 * 10 * 2


def test_lines_are_kept_in_the_file_they_belong_to(call, tmp_path):
    run = CATALOGUE["csl"].plan(Selection(datasets=("mnist",), methods=("fedavg",), seeds=(0,)))[0]
    line = {"config_hash": run.hash, "seed": 0, "accuracy": 0.5, "dataset": "mnist"}
    ResultsFile(tmp_path / "o" / "runs-0-of-2.jsonl").add(line)
    words = ("csl", "--stored", "--keep", "--out", "o", "--results", "r", "--device", "cpu", "--json")
    for _ in range(2):  # the second time nothing is added
        assert call(*words)[0] == 0
        assert ResultsFile(tmp_path / "r" / "main.jsonl").read() == [line]


def test_a_run_that_was_stopped_is_said_to_go_on_from_its_checkpoint(call, tmp_path):
    words = ("csl", "--datasets", "digits", "--methods", "fedavg", "--seeds", "0", "--set", "rounds=3")
    changes = ("rounds=3",)
    (run,) = CATALOGUE["csl"].plan(
        Selection(datasets=("digits",), methods=("fedavg",), seeds=(0,), changes=changes)
    )

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(run.experiment, 0, tmp_path / "o" / "runs", on_round=stop)
    code, _, err = call(*words, "--results", "r", "--out", "o", "--device", "cpu", "--json")
    assert code == 0 and "1 to run, of which 1 from a checkpoint" in err
    assert "from a checkpoint" not in call(*words, "--results", "r", "--out", "p", "--device", "cpu")[2]


def test_fresh_runs_again_what_results_has_and_goes_on_with_its_own(call, tmp_path):
    words = ("m-step", "--datasets", "digits", "--settings", "csl", "--seeds", "0", "--results", "r")
    words = (*words, "--device", "cpu", "--json")
    planned = CATALOGUE["m-step"].plan(Selection(datasets=("digits",), settings=("csl",), seeds=(0,)))
    lines_for(tmp_path / "r", planned)
    before = (tmp_path / "r" / "a.jsonl").read_bytes()
    (tmp_path / "r" / "remarks.toml").write_text('[[remark]]\ntext = "So."\n')

    def dbi(*more):
        code, out, err = call(*words, *more)
        assert code == 0
        return [row["dbi"] for row in json.loads(out)["m-step"]["rows"]], err

    stored, err = dbi()
    assert stored == [9.0, 9.0] and "nothing to run" in err
    again, err = dbi("--fresh", "--out", "o")
    assert "2 to run" in err and all(0 < value < 9 for value in again)
    assert len(ResultsFile(tmp_path / "o" / "runs.jsonl").read()) == 2
    (tmp_path / "o" / "runs.jsonl").write_text(
        (tmp_path / "o" / "runs.jsonl").read_text().splitlines()[0] + "\n"
    )
    once_more, err = dbi("--fresh", "--out", "o")  # killed between the two
    assert "1 there, 1 to run" in err and once_more == again
    assert dbi("--fresh", "--out", "o")[1].count("another --out") == 1
    assert (tmp_path / "r" / "a.jsonl").read_bytes() == before
    assert read_remarks(ResultsIndex([], [], [tmp_path / "r"])) == [Remark({}, "So.")]
