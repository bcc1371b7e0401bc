"""`flameche reproduce`: tables and figures from what is stored, remarks, README, the command line."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest

from flameche import cli
from flameche.errors import BadInput, StoreError
from flameche.experiments.paper import ENTRIES, Choice
from flameche.experiments.stored import Lines, Stored
from flameche.report.paper import render, write
from flameche.report.paper.comparing import Difference, Remark, read_remarks, remarks_on
from flameche.report.paper.readme import filled
from flameche.report.paper.trilemma import Place, scores
from flameche.reproducing import fill_readme

ROOT = Path(__file__).parents[1]
EMPTY = Stored()


@pytest.fixture(scope="module")
def kept():
    return Stored([], [ROOT / "results"])


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


@pytest.mark.parametrize("name", ENTRIES)
def test_everything_can_be_drawn_from_nothing_and_says_that_nothing_was_run(name, tmp_path):
    drawn = render(ENTRIES[name], Choice(), EMPTY)
    files = write(drawn, tmp_path)
    assert {file.suffix for file in files} == {".md", ".csv", ".tex"} and drawn.figure is None
    page = (tmp_path / f"{name}.md").read_text()
    assert page.startswith(f"# {drawn.title}\n") and "not run" in page and drawn.runs[0] == 0
    assert "Unexplained" not in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
    assert len(rows) == len(drawn.data.rows) > 0


@pytest.mark.parametrize("name", ENTRIES)
def test_the_pages_in_results_are_what_the_stored_runs_say(name, kept):
    page = (ROOT / "results" / "paper" / f"{name}.md").read_text()
    assert page == render(ENTRIES[name], Choice(), kept).markdown(), "run `make tables`"


def test_readme_shows_what_the_stored_runs_say(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text())
    assert not fill_readme(copy, ROOT / "results"), "run `make tables`"


def test_figures_are_drawn_where_there_are_runs(kept, tmp_path):
    drawn = render(ENTRIES["ranks"], Choice(), kept)
    assert {file.suffix for file in write(drawn, tmp_path)} == {".md", ".csv", ".tex", ".svg", ".pdf"}
    assert "![" in drawn.markdown()


def test_a_cell_is_the_mean_and_spread_of_its_seeds_and_no_more(tmp_path):
    choice = Choice(datasets=("mnist",), methods=("fedavg", "ifca"), seeds=(0, 1))
    for run, accuracy in zip(ENTRIES["csl"].plan(choice), (0.7, 0.9, 0.8, 0.8), strict=True):
        line = {"config_hash": run.hash, "seed": run.seed, "accuracy": accuracy, "ari": None}
        Lines(tmp_path / "a.jsonl").add(line)
    table = render(ENTRIES["csl"], choice, Stored([], [tmp_path])).tables[0][1]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["FedAvg", "–", "75.00 ± 7.07"],
        ["IFCA (c)", "–", "85.00 ± 7.07"],
    ]
    assert table.rows[1][2].bold
    pooled = render(ENTRIES["accuracy"], choice, Stored([], [tmp_path]))  # of three settings one was run
    assert pooled.tables[0][1].rows[0][1].text == "75.00 ± 7.07 *" and "not all settings" in pooled.lead


def test_tissuemnist_says_why_it_is_empty_and_who_stands_for_it():
    page = render(ENTRIES["csl"], Choice(), EMPTY).markdown()
    assert "TissueMNIST (no data)" in page and "MedNIST28, for TissueMNIST" in page
    assert "could not be had offline" in page


def difference(**keys):
    cell = {"table": "fds", "dataset": "mnist", "setting": "fds", "method": "fesem", "measure": "ari"}
    return Difference(**{**cell, **keys}, ours=0.66, paper="0.95 ± 0.12", title="FeSEM")


def test_a_difference_is_explained_by_a_remark_but_not_by_a_guess():
    known = Remark({"table": ("fds",), "method": ("fesem",)}, "Because.")
    guess = Remark({"measure": ("ari",)}, "Perhaps.", guess=True)
    said = "\n".join(remarks_on([difference()], [known]))
    assert "- Because. (FeSEM, MNIST fds, ARI: 0.66 against 0.95 ± 0.12)" in said
    assert "Unexplained" not in said
    said = "\n".join(remarks_on([difference(), difference(method="ifca")], [guess]))
    assert "Guesses" in said and "Unexplained (2)" in said
    assert "Unexplained (1)" in "\n".join(
        remarks_on([difference(), difference(method="ifca")], [known, guess])
    )
    assert remarks_on([], [known]) == []


def test_remarks_are_read_and_refused_in_one_line(tmp_path):
    file = tmp_path / "remarks.toml"
    file.write_text('[[remark]]\ntable = "csl"\nmethod = ["ifca"]\ntext = "So."\n')
    assert read_remarks(Stored([], [tmp_path])) == [Remark({"table": ("csl",), "method": ("ifca",)}, "So.")]
    for wrong in ("remark = 3", '[[remark]]\ntabel = "csl"\ntext = "So."', '[[remark]]\ntable = "csl"', "["):
        file.write_text(wrong)
        with pytest.raises(StoreError, match=re.escape(str(file))):
            read_remarks(Stored([], [tmp_path]))


def test_every_remark_of_ours_names_what_there_is():
    for remark in read_remarks(Stored([], [ROOT / "results"])):
        for table in remark.keys.get("table", ()):
            rows = set(ENTRIES[table].rows)
            assert set(remark.keys.get("method", rows)) & rows, (table, remark.text)
        assert not set(remark.keys.get("dataset", ())) - set(ENTRIES["accuracy"].datasets)


def test_the_cheapest_has_the_furthest_corner_and_the_dearest_none():
    places = [Place("kfed", 0.01, 30, 30), Place("ifca", 4.0, 1500, 0), Place("stocfl", 0.1, 2000, 1500)]
    found = scores(places)
    assert found[0][0] == 1 and found[1][0] == 0 and found[2][1:] == (0, 0) and found[1][2] == 1
    assert all(0 <= value <= 1 for score in found for value in score)


def test_blocks_go_between_their_markers_and_nowhere_else():
    text = "a\n<!-- table: x -->\n<!-- end -->\nb\n<!-- table: y -->\nold\nolder\n<!-- end -->\nc"
    once = filled(text, {"x": "1\n2", "y": "3"})
    assert once == "a\n<!-- table: x -->\n1\n2\n<!-- end -->\nb\n<!-- table: y -->\n3\n<!-- end -->\nc"
    assert filled(once, {"x": "1\n2", "y": "3"}) == once
    with pytest.raises(BadInput, match="table: z"):
        filled(text, {"z": ""})


def test_the_list_tells_of_every_name_what_is_there(call):
    code, out, _ = call("--list", "--json", "--device", "cpu", "--results", ROOT / "results")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and list(rows) == list(ENTRIES)
    for row in rows.values():
        assert row["there"] + row["missing"] + row["no_data"] == row["runs"]
    assert rows["readings"]["missing"] == 0 and rows["complexity"]["there"] == 1


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
    run = ENTRIES["csl"].plan(Choice(datasets=("mnist",), methods=("fedavg",), seeds=(0,)))[0]
    line = {"config_hash": run.hash, "seed": 0, "accuracy": 0.5, "dataset": "mnist"}
    Lines(tmp_path / "o" / "runs-0-of-2.jsonl").add(line)
    words = ("csl", "--stored", "--keep", "--out", "o", "--results", "r", "--device", "cpu", "--json")
    for _ in range(2):  # the second time nothing is added
        assert call(*words)[0] == 0
        assert Lines(tmp_path / "r" / "main.jsonl").read() == [line]
