"""The benchmark of clustering, at sizes too small to tell anything but that it works."""

import json

import pytest
from typer.testing import CliRunner

from flameche_benchmarks import cluster, command
from flameche_benchmarks.cluster import STEPS, Grid, cluster_markdown, cluster_tables, measure

SMALL = Grid((10, 20), (8, 16), (2, 4), (10, 8, 2), repeats=1, budget=0.01, large=(1000,), rounds=3)


@pytest.fixture(scope="module")
def found():
    return measure(SMALL)


def test_every_size_is_measured_once_under_every_scheme(found):
    assert SMALL.points() == [(10, 8, 2), (20, 8, 2), (10, 16, 2), (10, 8, 4)]
    sizes = [(row["scheme"], row["N"], row["d"] // 10, row["K"]) for row in found["rows"]]
    assert sizes == [(kind, *point) for kind in ("plain", "bfv") for point in SMALL.points()]
    json.dumps(found)


def test_growth_is_told_where_a_step_depends_on_a_size(found):
    plain, sealed = found["growth"]["plain"], found["growth"]["bfv"]
    assert set(plain) == set(STEPS)
    assert plain["e_step"]["N"] is not None and sealed["m_step"]["K"] is not None
    assert plain["extraction"]["K"] is None and sealed["open"]["N"] is None and plain["seal"]["N"] is None


def test_large_federations_are_played_with_and_without_a_guard(found):
    assert [(case["clients"], case["least"]) for case in found["large"]] == [(1000, 1), (1000, 3)]
    for case in found["large"]:
        assert case["skipped"] is None and len(case["seconds"]) == len(case["memory_mb"]) == 3
        assert min(case["memory_mb"]) > 10


def test_where_nobody_has_a_cluster_yet_nothing_is_compared(found):
    assert all((case["ari"] is None) == (case["seen"] == 0) for case in found["large"])


def test_tables_hold_all_of_it(found):
    growth, times, large = cluster_tables(found)
    assert len(times.rows) == 8 and len(large.rows) == 2
    assert {row["scheme"] for row in growth.rows} == {"plain", "bfv"}
    assert "## large federations" in cluster_markdown(found)


def test_the_command_writes_what_it_prints(monkeypatch, tmp_path, found):
    monkeypatch.setattr(cluster, "measure", lambda grid, progress: found)
    printed = CliRunner().invoke(command.app, ["cluster", "--quick", "--json", "--out", str(tmp_path)])
    assert printed.exit_code == 0 and json.loads(printed.stdout)["growth"] == found["growth"]
    assert (tmp_path / "bench-cluster.md").exists()
    assert "large federations" in CliRunner().invoke(command.app, ["cluster"]).stdout
