"""The report says what the run folders say: numbers, notes, nothing from outside, the same bytes twice."""

import base64
import csv
import html
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flameche.errors import StoreError
from flameche.report import find_runs, summary_table, write_report
from flameche.report.details import LETTERS, MISSING, SCALE
from flameche.report.figures import Clusters, curves, match_clusters
from flameche.report.formats import Cell, Column, Table, amount, human_bytes, human_seconds, three_digits
from flameche.report.markup import show
from flameche.report.overview import Matrix
from flameche.report.style import to_svg
from flameche.report.tables import cost_table, group_series, mean_cell, seed_span

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import write_network_run, write_run, write_runs

VOID = {"meta", "br", "hr", "img", "link", "input"}


def data_of(page: str) -> dict[str, dict[str, object]]:
    """What the page's script draws of each run, by its address."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return {run["id"]: run for run in json.loads(text)["runs"]}


class Balance(HTMLParser):
    """Collects what does not close, ids, and every address the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.addresses.append(value or "")


def parse(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    parser.close()
    return parser


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    return write_report(runs, runs.parent / "out").read_text(encoding="utf-8")


def test_the_page_is_balanced_html_with_distinct_ids(page: str) -> None:
    found = parse(page)
    assert found.wrong == [] and found.open == []
    assert len(found.ids) == len(set(found.ids))
    inner = {address[1:] for address in found.addresses if address.startswith("#")}
    assert inner <= set(found.ids) | set(data_of(page))


def test_the_page_needs_nothing_from_outside_and_its_links_lead_somewhere(runs: Path, page: str) -> None:
    out = runs.parent / "out"
    files = [address for address in parse(page).addresses if not address.startswith(("#", "data:,"))]
    assert files and all((out / file).is_file() and ".." not in file for file in files)
    of_runs = [file for run in data_of(page).values() for file in run.get("files", ())]
    assert of_runs and all((out / file).is_file() for file in of_runs)
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)'\"]*)", page))
    assert "http://" not in page and "https://" not in page and "@import" not in page


def test_mean_and_deviation_are_those_done_by_hand(page: str) -> None:
    # FLAMECHE: 90 and 94 % give 92 ± sqrt((4 + 4) / 1) = 92 ± 2.83; ARI 0.8 and 1.0 give 0.9 ± 0.1414
    assert "<b>92.00 ± 2.83</b>" in page
    assert "0.90 ± 0.14" in page
    assert "71.00 ± 1.41" in page
    # the oracle is better, but not a competitor
    assert "96.00 ± 1.41" in page and "<b>96.00" not in page


def test_every_method_has_a_row_a_page_for_each_run_and_a_curve(page: str) -> None:
    for label in ("FLAMECHE", "FedAvg", "Oracle"):
        assert re.search(rf'<th scope="row"><i class="dot"[^>]*></i>{label}</th>', page)
        assert len(re.findall(rf'<a href="#r-[^"]*">{label}</a>', page)) == 2
        assert sum(run["name"] == label for run in data_of(page).values()) == 2
        assert re.search(rf"<text[^>]*>{label}</text>", page)


def test_the_matrix_has_accuracy_and_ari_and_says_whose_is_best(page: str) -> None:
    (matrix,) = re.findall(r'<table class="matrix">.*?</table>', page, flags=re.DOTALL)
    assert re.search(
        r">FLAMECHE</th><td[^>]*><b>92\.0</b><span class=.sd.> ± 2\.8</span>"
        r"<small[^>]*>0\.90 ± 0\.14</small>",
        matrix,
    )
    assert re.search(
        r">Oracle</th><td[^>]*>96\.0<span[^>]*> ± [^<]*</span><small[^>]*>1\.00 ± 0\.00</small>", matrix
    )
    assert re.search(r">FedAvg</th><td[^>]*>71\.0<span[^>]*> ± 1\.4</span><small>–</small>", matrix)
    assert "21.0</dd>" in page and "points above FedAvg" in page  # 92 - 71
    assert "4.0</dd>" in page and "points below Oracle" in page


def test_curves_and_clusters_come_back_as_they_were(runs: Path, page: str) -> None:
    (run,) = find_runs(runs / "digits-csl" / "flameche0a1b2c" / "0")
    told = data_of(page)["r-flameche0a1b2c-0"]
    raw = np.frombuffer(base64.b64decode(str(told["accuracy"])), "<i2")
    known = [r.accuracy for r in run.rounds]
    assert raw[1] == MISSING and np.isnan(known[1])
    assert np.allclose(np.delete(raw, 1) / SCALE, np.delete(known, 1), atol=0.5 / SCALE)
    over = []
    for row in told["over"]:  # type: ignore[attr-defined]
        over.append(row or over[-1])
    assert [[LETTERS.find(letter) for letter in row] for row in over] == [
        list(r.assignment) for r in run.rounds
    ]
    assert told["again"] == [3] and told["names"] == ["0", "1", "2", "3"]


def test_unfinished_and_broken_runs_are_noted_and_left_out(page: str) -> None:
    assert "digits-csl/flameche0a1b2c/2</code>: unfinished (3 of 6 rounds)" in page
    assert "digits-csl/fedavg0a1b2c/2</code>: skipped, summary.json is not valid JSON" in page
    assert len(data_of(page)) == 6


def test_a_method_without_clusters_says_so(page: str) -> None:
    single = {address for address, run in data_of(page).items() if run.get("single")}
    assert single == {"r-fedavg0a1b2c-0", "r-fedavg0a1b2c-1"}


def test_without_groups_no_ari_is_shown_also_of_runs_that_stored_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "flameche", 0)
    clients = pd.read_parquet(folder / "clients.parquet")
    clients.assign(group=0).to_parquet(folder / "clients.parquet")
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    (run,) = data_of(page).values()
    assert "ari" not in run and run["facts"][1:3] == ["", ""]
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "tables" / "summary.csv").read_text()))
    assert row["ari"] == row["ari_final"] == ""
    assert "| – | – | **90.00** |" in (tmp_path / "out" / "tables" / "summary.md").read_text()


def test_a_run_on_a_network_has_no_groups_but_lost_nodes(tmp_path: Path) -> None:
    write_network_run(tmp_path / "runs")
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    (run,) = data_of(page).values()
    assert "groups" not in run and "ari" not in run and "x" not in run
    assert run["final"] == "001122" and run["lost"] == [[2, "4", "no answer in 30 s"]]
    assert "true groups" in page and "confusion" not in "".join(run["files"])  # type: ignore[arg-type]
    assert ">nan" not in page.lower()


def test_text_and_axes_take_the_colour_of_the_page(page: str) -> None:
    assert "currentColor" in page
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) == 2  # curves
    assert not any("#22262b" in drawing or "DejaVu" in drawing for drawing in drawings)


def test_tables_and_figures_lie_beside_the_page(runs: Path, page: str) -> None:
    out = runs.parent / "out"
    assert {p.name for p in (out / "tables").iterdir()} >= {
        f"summary.{kind}" for kind in ("md", "csv", "tex")
    }
    svg = out / "figures" / "digits-csl-accuracy.svg"
    assert svg.read_text().startswith("<?xml") and "http://purl.org" not in svg.read_text()
    assert (out / "figures" / "digits-csl-accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert not [path for path in out.rglob("*") if path.name.startswith(".part-")]


def test_the_same_runs_give_the_same_bytes(runs: Path, page: str, tmp_path: Path) -> None:
    write_report(runs, tmp_path)
    first, second = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (runs.parent / "out", tmp_path)
    )
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_csv_holds_full_precision_and_empty_cells(runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(summary_table(find_runs(runs)).csv())))
    assert [row["method"] for row in rows] == ["FLAMECHE", "Oracle", "FedAvg"]
    assert float(rows[0]["accuracy_percent"]) == pytest.approx(92)
    assert float(rows[0]["accuracy_percent_sd"]) == pytest.approx(8**0.5)
    assert rows[2]["ari"] == rows[2]["ari_sd"] == rows[2]["ch"] == ""
    assert (rows[0]["mb_up"], rows[0]["mb_down"], rows[0]["seconds"]) == ("3.0", "6.0", "2.5")


def test_markdown_and_tex_show_the_same_numbers(runs: Path) -> None:
    table = summary_table(find_runs(runs))
    assert (
        "| FLAMECHE | bfv | 2 | 0.90 ± 0.14 | 0.90 ± 0.14 | **92.00 ± 2.83** | 0.50 ± 0.00 |"
        in table.markdown()
    )
    last = "| 3.00 ± 0.00 | 6.00 ± 0.00 | 2.50 ± 0.00 | cpu |"
    assert f"| FedAvg | plain | 2 | – | – | 71.00 ± 1.41 | – | – {last}" in table.markdown()
    tex = table.tex()
    assert r"\textbf{92.00 $\pm$ 2.83}" in tex and r"Accuracy, \%" in tex
    assert r"FedAvg & plain & 2 & -- & -- & 71.00 $\pm$ 1.41 & -- & -- & 3.00 $\pm$ 0.00 & " in tex


def test_seconds_of_several_devices_are_never_averaged(tmp_path: Path) -> None:
    walls = {"fedavg": [("cpu, 1 thread", 74.9), ("NVIDIA H200", 8.0), ("NVIDIA H200", 8.2)]}
    walls["oracle"] = [("NVIDIA H200", 7.0)] * 3
    walls["ifca"] = [("cpu, 1 thread", 90.0), ("", 1.0)]  # nothing on the device of most runs
    for method, runs in walls.items():
        for seed, (device, wall) in enumerate(runs):
            place = write_run(tmp_path, method, seed)
            found = json.loads((place / "summary.json").read_text())
            found |= {"device": device, "wall_s": wall}
            found["ledger"]["client_seconds"] = {"training": wall}
            (place / "summary.json").write_text(json.dumps(found))
    for table, key in ((summary_table, "seconds"), (cost_table, "client_seconds")):
        rows = list(csv.DictReader(io.StringIO(table(find_runs(tmp_path)).csv())))
        found = {row["method"].lower(): (float(row[key]), row["seconds_on"]) for row in rows}
        assert found["fedavg"] == (pytest.approx(8.1), "NVIDIA H200")
        assert found["oracle"] == (7.0, "NVIDIA H200")
        assert found["ifca"] == (90.0, "cpu, 1 thread")
    assert "8.10 ± 0.14 (2 of 3 seeds)" in summary_table(find_runs(tmp_path)).markdown()


def test_special_letters_are_harmless_in_every_format() -> None:
    table = Table((Column("a_b", "a"),), ((Cell("<i>|&$x_1{}\\^~#%"),),))
    assert str(show(table, "t")).count("<i>") == 0
    assert table.markdown().splitlines()[2] == r"| &lt;i&gt;\|&amp;$x_1{}\^~#% |"
    assert (
        table.tex().splitlines()[4]
        == r"$<$i$>$|\&\$x\_1\{\}\textbackslash{}\textasciicircum{}\textasciitilde{}\#\% \\"
    )


def test_names_from_runs_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>$x$"
    run = write_run(tmp_path / "runs", "flameche", 0, label=evil, dataset=evil, notes=[evil], scheme='"><b>')
    (run / "environment.json").write_text(json.dumps({evil: evil}))
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    found = parse(page)
    assert found.wrong == [] and found.open == []
    assert found.tags.count("script") == 5 and "alert(1)</script>" not in page
    (run,) = data_of(page).values()
    assert run["name"] == run["data"] == evil
    assert html.escape(evil) in page
    assert {path.parent for path in (tmp_path / "out").rglob("*.svg")} == {tmp_path / "out" / "figures"}


def test_the_ledger_is_told_whole(page: str) -> None:
    run = data_of(page)["r-flameche0a1b2c-0"]
    assert run["up"] == {"metadata": 400_000, "model": 2_600_000}
    assert run["down"] == {"centroids": 1_000_000, "model": 5_000_000}
    assert run["client"] == {"training": 1.8, "encryption": 0.2} and run["server"] == {"adding": 0.004}
    server, client = run["leakage"]  # type: ignore[misc]
    assert server == ["the server", "0", "–", "–", "–", "–", "–", "0"]
    assert client[1:] == ["12", "–", "–", "–", "–", "0.43", "0"]
    told = {*run["facts"]}  # type: ignore[misc]
    assert {"3.00 MB", "6.00 MB", "2.50 s", "90.00 %", "0.80", "20"} <= told


def test_the_cost_table_splits_models_from_clustering(runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cost_table(find_runs(runs)).csv())))
    assert (float(rows[0]["mb_up_models"]), float(rows[0]["mb_up_clustering"])) == (2.6, 0.4)
    assert [row["oracle_knowledge"] for row in rows] == ["none", "groups", "none"]


def test_a_ledger_that_disagrees_with_the_summary_is_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "oracle", 0, bytes_up=3_000_001)
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    assert "The ledger adds up to 3000000 bytes up, the summary says 3000001." in page


def test_no_runs_is_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreError) as caught:
            find_runs(folder)
        assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match="no runs under"):
        write_report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_root_an_experiment_or_a_single_run_can_be_given(runs: Path) -> None:
    single = find_runs(runs / "digits-csl" / "oracle0a1b2c" / "1")
    assert [run.place for run in single] == ["digits-csl/oracle0a1b2c/1"]
    assert len(find_runs(runs / "digits-csl" / "oracle0a1b2c")) == 2
    assert len(find_runs(runs / "digits-csl")) == len(find_runs(runs)) == 8


@pytest.mark.parametrize(
    ("file", "content", "note"),
    [
        ("config.toml", b"rounds = = 3", "config.toml is not valid TOML"),
        ("config.toml", b"\xff\xfe", "config.toml is not UTF-8 text"),
        ("rounds.jsonl", b'{"round": 1}\n{"round"', "rounds.jsonl line 2 is not valid JSON"),
        ("rounds.jsonl", b"[]\n", "rounds.jsonl line 1 holds a list"),
        ("rounds.jsonl", b'{"round": 1, "sizes": ["a"]}\n', "sizes is not a list of whole numbers"),
        ("clients.parquet", b"PAR1", "clients.parquet is not a readable Parquet file"),
        ("environment.json", b"[1]", "environment.json holds a list, expected an object"),
        ("summary.json", b"{}", "summary.json lacks method, dataset, setting, seed"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: bytes, note: str) -> None:
    folder = write_run(tmp_path, "oracle", 0)
    (folder / file).write_bytes(content)
    (run,) = find_runs(tmp_path)
    assert run.status == "broken" and note in run.note and str(tmp_path) not in run.note


def test_wrong_values_break_one_run_only(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "oracle", 0, accuracy="high")
    lacking = write_run(tmp_path / "runs", "fedavg", 0)
    pd.DataFrame({"client": [0]}).to_parquet(lacking / "clients.parquet")
    write_run(tmp_path / "runs", "flameche", 0)
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    assert "accuracy is &#39;high&#39;, expected a number" in page
    assert "clients.parquet lacks the columns group" in page
    assert list(data_of(page)) == ["r-flameche0a1b2c-0"]


def test_a_page_of_unfinished_runs_only_is_still_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "flameche", 0)
    (folder / "summary.json").unlink()
    (folder / "rounds.jsonl").unlink()
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    assert "unfinished (0 of 6 rounds)" in page
    assert parse(page).open == []


def test_a_bare_summary_is_enough_for_the_tables(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "flameche", 0)
    for name in ("config.toml", "rounds.jsonl", "clients.parquet", "environment.json"):
        (folder / name).unlink()
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    assert "without config.toml, rounds.jsonl, environment.json, clients.parquet" in page
    assert "<b>90.00</b>" in page  # one seed: no deviation to report
    assert page.count("<svg") == 1  # the accuracy curve, from the summary


def test_one_round_and_missing_values_can_be_drawn(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "runs", "flameche", 0, rounds=1, accuracy=None, ari=None, wall_s=None, ledger=None
    )
    frame = pd.read_parquet(folder / "clients.parquet")
    frame["accuracy"] = np.nan
    frame.loc[0, "map_x"] = np.nan
    frame["assignment"] = frame["assignment"].where(frame["client"] > 2, -1)
    frame.to_parquet(folder / "clients.parquet")
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text(encoding="utf-8")
    (run,) = data_of(page).values()
    assert str(run["final"]).startswith("...")
    assert ">nan" not in page.lower()


def test_two_configurations_of_one_method_are_never_averaged(tmp_path: Path) -> None:
    for name, tau in (("a", 5), ("b", 10)):
        folder = write_run(tmp_path, "flameche", 0, name=name)
        (folder / "config.toml").write_text(f'name = "{name}"\n[method]\ntau = {tau}\n')
    names = [series.name for series in group_series(find_runs(tmp_path))]
    assert names == ["FLAMECHE (method.tau=5)", "FLAMECHE (method.tau=10)"]


def test_one_configuration_under_two_names_does_not_hide_what_tells_the_others_apart(tmp_path: Path) -> None:
    for name, tau in (("a", 5), ("b", 5), ("c", 10)):
        folder = write_run(tmp_path, "flameche", 0, name=name)
        (folder / "config.toml").write_text(f'name = "{name}"\n[method]\ntau = {tau}\n')
    first, second, third = [series.name for series in group_series(find_runs(tmp_path))]
    assert first.startswith("FLAMECHE (a/") and second.startswith("FLAMECHE (b/")
    assert third == "FLAMECHE (method.tau=10)"


def test_a_method_under_two_schemes_is_named_with_them(tmp_path: Path) -> None:
    for name, tau, scheme in (("a", 5, "plain"), ("b", 10, "plain"), ("c", 5, "bfv")):
        folder = write_run(tmp_path, "flameche", 0, name=name)
        (folder / "config.toml").write_text(f'name = "{name}"\n[method]\ntau = {tau}\n')
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"scheme": scheme}))
    found = find_runs(tmp_path)
    expected = ["FLAMECHE, bfv", "FLAMECHE (method.tau=5), plain", "FLAMECHE (method.tau=10), plain"]
    assert list(Matrix(found).rows) == expected
    figure = curves(group_series(found), "accuracy")
    assert figure is not None and [text.get_text() for text in figure.legends[0].get_texts()] == expected


@pytest.mark.parametrize("modes", [("paper", "sketch"), ("sketch", "paper")])
def test_of_equals_the_headline_is_of_the_default_mode(tmp_path: Path, modes: tuple[str, str]) -> None:
    for name, mode in zip("ab", modes, strict=True):
        folder = write_run(tmp_path, "flameche", 0, name=name)
        (folder / "config.toml").write_text(f'name = "{name}"\n[method]\nmode = "{mode}"\n')
    assert Matrix(find_runs(tmp_path)).flameche_row() == "FLAMECHE (method.mode=sketch)"


def test_several_settings_have_columns_and_their_own_best(tmp_path: Path) -> None:
    write_run(tmp_path, "fedavg", 0, name="x", setting="fds")
    write_run(tmp_path, "flameche", 0, name="y")
    rows = summary_table(find_runs(tmp_path)).markdown().splitlines()
    assert rows[0].startswith("| Dataset | Setting | Method |")
    assert rows[2].startswith("| digits | csl | FLAMECHE |") and "**90.00**" in rows[2]
    assert rows[3].startswith("| digits | fds | FedAvg |") and "**70.00**" in rows[3]


def test_of_many_runs_only_the_first_seed_has_figures_in_files(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flameche.report.page.MOST_DRAWN", 5)
    page = write_report(runs, tmp_path).read_text(encoding="utf-8")
    assert [address[-1] for address, run in data_of(page).items() if run.get("files")] == ["0"] * 3
    assert len(data_of(page)) == 6


def test_clusters_take_the_colour_of_the_group_they_overlap_most() -> None:
    groups = [0, 0, 0, 1, 1, 1]
    assert match_clusters(groups, [7, 7, 4, 4, 4, 4]) == {7: 0, 4: 1}
    assert match_clusters(groups, [2, 2, 5, 9, 9, -1]) == {2: 0, 9: 1, 5: 2}  # one cluster too many
    assert match_clusters(groups, [3] * 6) == {3: 0}


def test_seeds_without_a_value_are_counted_out_loud() -> None:
    assert mean_cell([0.5, float("nan"), 0.7], 2).text == "0.60 ± 0.14 (2 of 3 seeds)"
    assert mean_cell([float("nan")], 2) == Cell("–")
    assert mean_cell([0.5], 2) == Cell("0.50", 0.5, count=1)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (human_bytes(0), "0 B"),
        (human_bytes(999), "999 B"),
        (human_bytes(999_999), "1.00 MB"),
        (human_bytes(12_345_678), "12.3 MB"),
        (human_bytes(5e15), "5000 TB"),
        (human_seconds(0), "0 s"),
        (human_seconds(42e-6), "42.0 µs"),
        (human_seconds(0.25), "250 ms"),
        (human_seconds(3.14159), "3.14 s"),
        (human_seconds(200), "3 min 20 s"),
        (human_seconds(3840), "1 h 04 min"),
        (human_seconds(float("nan")), "–"),
        (three_digits(0.00412), "0.00412"),
        (three_digits(0.0), "0.00"),
        (three_digits(4120.4), "4120"),
        (amount(4120.4), "4,120"),
        (amount(999.4), "999"),
        (amount(0.00412), "0.00412"),
        (seed_span([]), "no seeds"),
        (seed_span([1]), "1 seed"),
        (seed_span([5, 5]), "5 seeds"),
        (seed_span([3, 1, 5]), "1 to 5 seeds"),
    ],
)
def test_units_are_human(shown: str, expected: str) -> None:
    assert shown == expected


def test_figures_leave_the_callers_matplotlib_alone(runs: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure = curves(group_series(find_runs(runs)), "ari")
    assert figure is not None and "FedAvg" not in to_svg(figure)  # no clusters, no ARI
    assert dict(matplotlib.rcParams) == before
    assert Clusters(find_runs(runs / "digits-csl" / "fedavg0a1b2c" / "0")[0]).several is False


def test_small_differences_in_bytes_stay_visible() -> None:
    assert mean_cell([11.138], None).text == "11.14"
    assert mean_cell([0.00412], None).text == "0.00412"
    assert mean_cell([0.0], None).text == "0.00"
    assert mean_cell([447_649.76], None).text == "447,650"
    assert mean_cell([0.004, 0.0042], None).text == "0.00410 ± 0.00014"  # as many digits as the mean
