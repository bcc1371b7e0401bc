"""What agrees with the paper: one rule, by hand; and the documents say what it gives for the stored runs."""

from pathlib import Path

import pytest

from flameche_reproduction.catalogue import CATALOGUE
from flameche_reproduction.planned_runs import Selection
from flameche_reproduction.results_index import ResultsFile, ResultsIndex
from flameche_reproduction.tables import render
from flameche_reproduction.tables.comparison import FEWEST, RULE, count_verdicts, judge
from flameche_reproduction.tables.readme import agreement_block, methods_block

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("ours", "seeds", "paper", "sd", "state"),
    [
        (0.95, 5, 0.90, 0.05, "within"),
        (0.954, 5, 0.90, 0.05, "within"),  # the paper's 0.90 may be 0.904
        (0.956, 5, 0.90, 0.05, "outside"),
        (0.84, 3, 0.90, 0.05, "outside"),
        (0.996, 5, 1.0, 0.0, "within"),
        (0.99, 5, 1.0, 0.0, "outside"),
        (0.90, 2, 0.90, 0.05, "untold"),  # equal, but by chance as likely as not
        (50.0, 1, 90.0, 1.0, "untold"),
        (0.90, 5, 0.90, None, "untold"),
    ],
)
def test_a_cell_is_within_outside_or_of_too_few_runs(ours, seeds, paper, sd, state):
    assert judge(ours, seeds, paper, sd).state == state
    mirrored = judge(paper, seeds, ours, sd)
    assert mirrored.state == state and mirrored.difference == -judge(ours, seeds, paper, sd).difference


def test_beyond_is_told_of_cells_of_too_few_runs_too():
    assert judge(50.0, 1, 90.0, 1.0).beyond and not judge(90.5, 1, 90.0, 1.0).beyond


def test_cells_are_counted_by_state():
    cells = [judge(ours, seeds, 1.0, 0.1) for ours, seeds in ((1.0, 5), (1.1, 3), (1.2, 5), (1.0, 1))]
    assert count_verdicts(cells) == (
        "2 of 4 cells within the paper's spread, 1 outside, 1 with too few runs to tell"
    )


def stored(folder, seeds_of):
    """Store runs of a table on MNIST with as many seeds as each setting is given."""
    for name, seeds in seeds_of.items():
        choice = Selection(
            datasets=("mnist",), settings=(name,), methods=("oracle",), seeds=tuple(range(seeds))
        )
        for run in CATALOGUE["accuracy"].plan(choice):
            line = {"config_hash": run.hash, "seed": run.seed, "accuracy": 0.97, "ari": 1.0, "setting": name}
            ResultsFile(folder / "a.jsonl").add({**line, "device": "cpu, 1 thread"})
    return ResultsIndex([], [folder])


def test_pooled_settings_have_the_seeds_of_the_setting_with_the_fewest(tmp_path):
    few = stored(tmp_path / "few", {"csl": 5, "fds": 5, "csf": FEWEST - 1})
    said = "\n".join(render(CATALOGUE["accuracy"], Selection(datasets=("mnist",)), few).remarks)
    assert "0 of 1 cells" in said and "1 with too few runs" in said
    enough = stored(tmp_path / "enough", {"csl": 5, "fds": 5, "csf": FEWEST})
    said = "\n".join(render(CATALOGUE["accuracy"], Selection(datasets=("mnist",)), enough).remarks)
    assert "1 with too few runs" not in said and "of 1 cells" in said


def test_cells_rows_and_headings_of_one_seed_say_so(tmp_path):
    one = stored(tmp_path / "one", {"csl": 1, "fds": 1, "csf": 1})
    assert "MNIST (1 seed): ARI" in render(CATALOGUE["csl"], Selection(), one).markdown()
    assert "| MNIST csl (1 seed) | 1.00 · 97.0 |" in methods_block(one)
    mixed = stored(tmp_path / "mixed", {"csl": 5, "fds": 5, "csf": 1})
    assert "| MNIST csl | 1.00 · 97.0 |" in methods_block(mixed)
    assert "| MNIST csf (1 seed) | 1.00 · 97.0 |" in methods_block(mixed)
    for run in CATALOGUE["csl"].plan(Selection(datasets=("mnist",), methods=("fedavg",), seeds=(0,))):
        line = {"config_hash": run.hash, "seed": 0, "accuracy": 0.5, "ari": None, "setting": "csl"}
        ResultsFile(tmp_path / "mixed" / "a.jsonl").add(line)
    mixed = ResultsIndex([], [tmp_path / "mixed"])
    assert "| – · 50.0 (1 seed) |" in methods_block(mixed)
    page = render(CATALOGUE["csl"], Selection(), mixed).markdown()
    assert "50.00 (1 seed)" in page and "97.00 ± 0.00" in page and "MNIST (1 seed)" not in page


def test_tables_name_the_devices_that_made_them_and_what_is_not_recorded(tmp_path):
    lines = ResultsFile(tmp_path / "a.jsonl")
    planned = CATALOGUE["csl"].plan(Selection(datasets=("mnist",), methods=("fedavg",)))
    made = [{"device": "NVIDIA H200"}, {"device": "cpu, 1 thread"}, {"device": "cpu, 2 threads"}, {}]
    made.append({"device": "NVIDIA H200", "versions": {"python": "3"}, "commit": "abc"})
    for run, about in zip(planned, made, strict=True):
        lines.add({"config_hash": run.hash, "seed": run.seed, "accuracy": 0.5, "ari": None, **about})
    told = (
        "Devices of the 5 runs: NVIDIA H200 2, CPU 2, not recorded 1; "
        "versions and commit: of 1, of the others not recorded."
    )
    stored = ResultsIndex([], [tmp_path])
    assert told in render(CATALOGUE["csl"], Selection(), stored).lead and told in methods_block(stored)


def test_readme_and_documents_say_what_the_stored_runs_give():
    said = agreement_block(ResultsIndex([], [ROOT / "results"]))
    assert RULE in said
    for name in ("README.md", "docs/reproducing.md"):
        assert " ".join(said.split()) in " ".join((ROOT / name).read_text().split()), name
