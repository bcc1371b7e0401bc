import json
import sys
from pathlib import Path

import numpy as np
import pytest

from flameche import cli
from flameche.errors import SealError
from flameche.experiments.build import build
from flameche.simulation.engine import simulate
from flameche_benchmarks import phe_reference, timing
from flameche_benchmarks.crypto import KINDS, measure, scheme_row
from flameche_benchmarks.crypto_plan import Plan, checked_error, random_vectors
from flameche_benchmarks.crypto_rounds import GROUPS, ROUNDS, _experiment, _metadata, round_row
from flameche_benchmarks.crypto_tables import crypto_markdown, crypto_overview, crypto_tables, markdown_table
from flameche_benchmarks.crypto_targets import PUBLISHED, ratios, targets
from flameche_benchmarks.secagg_sessions import session_row

ROOT = Path(__file__).parents[2]
TINY = Plan(dims=(8,), clients=3, repeats=2, budget=0.01, phe_sample=2, round_clients=8, round_runs=1)
TIMES = ("seal_ms", "load_ms", "add_ms", "write_ms", "sum_ms", "open_ms")


@pytest.fixture(scope="module")
def found():
    return measure(TINY)


def hide(monkeypatch, package, part):
    """Let a package be missing, for the part of flameche that stands on it."""
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"flameche.crypto.{part}")]:
        monkeypatch.delitem(sys.modules, name)


def test_every_scheme_is_measured_and_its_sum_is_right(found):
    assert [row["scheme"] for row in found["schemes"]] == list(KINDS)
    for row in found["schemes"]:
        assert row["skipped"] is None and row["bytes_up"] > 0 and row["sealed"] == 3
        assert row["error"] < 1e-4
        for key in TIMES:
            assert row[key]["cpu"] >= 0 and row[key]["wall"] > 0
        parts = sum(row[key]["cpu"] for key in ("load_ms", "add_ms", "write_ms"))
        assert row["sum_ms"]["cpu"] == pytest.approx(parts)


def test_the_document_is_json_with_all_its_parts(found):
    assert json.loads(json.dumps(found, allow_nan=False))["benchmark"] == "crypto"
    assert {"machine", "versions", "environment", "plan", "paper", "ratios", "targets"} < set(found)
    assert [row["scheme"] for row in found["secagg"]] == ["secagg-full", "secagg-sparse"]
    assert found["machine"]["cores"] >= 1 and found["machine"]["cpu"]
    assert {"first", "steady"} == set(found["rounds"][0]["added_s"])


def test_every_round_opens_the_sums_whose_opening_is_counted():
    metadata, opened = _metadata(20, 0), []
    setup = build(_experiment(20), 0, device="cpu", training=False, metadata=metadata)
    asked = setup.world.ledger.asked
    simulate(setup.method, setup.world, 20, on_round=lambda _: opened.append(asked["metadata"]))
    assert np.diff(opened).tolist() == [GROUPS] * (ROUNDS - 1)


def test_targets_that_were_not_measured_are_not_called_met(found):
    assert found["ratios"] == []  # they are taken at d = 840 and 5,120
    unknown = [row for row in found["targets"] if row["measured"] is None]
    assert len(unknown) == 4 and all(row["met"] is None for row in unknown)


def test_ratios_and_targets_follow_from_the_figures():
    def row(scheme, d, ms, size):
        return {
            "scheme": scheme,
            "d": d,
            "skipped": None,
            "bytes_up": size,
            **{key: {"cpu": ms} for key in TIMES},
        }

    figures = {
        "schemes": [
            row("paillier-3072", 5120, 100.0, 50_000),
            row("bfv", 840, 1.0, 60_000),
            row("ckks-paper", 840, 3.0, 720_000),
        ],
        "references": [row("phe-2048", 5120, 50_000.0, 2_600_000)],
        "secagg": [],
        "rounds": [],
    }
    figures["ratios"] = ratios(figures)
    assert [(r["seal"], r["bytes"]) for r in figures["ratios"]] == [(500.0, 52.0), (3.0, 12.0)]
    assert [r["met"] for r in targets(figures)] == [True, True, False, True]


def test_recovery_is_measured_with_a_tenth_of_the_clients_gone():
    row = session_row("full", 8, Plan(clients=10, repeats=1))
    assert row["dropped"] == 1 and row["recovery_ms"]["cpu"] > 0
    assert row["neighbours"] == 9 and row["bytes_up"] > 8 * 8 and row["bytes_down"] > 0


def test_three_clients_are_too_few_to_lose_one(found):
    assert all(row["dropped"] == 0 and row["recovery_ms"]["cpu"] is None for row in found["secagg"])


def test_a_budget_seals_fewer_vectors_and_the_sum_still_has_all_terms():
    row = scheme_row("plain", 8, Plan(dims=(8,), clients=50, repeats=1, budget=0.0))
    assert row["sealed"] == 3 and row["error"] < 1e-5


def test_a_wrong_sum_ends_the_benchmark():
    with pytest.raises(SealError, match=r"off by 0\.5"):
        checked_error("bfv", np.full(4, 0.5), np.zeros(4), 0.25)
    with pytest.raises(SealError):
        checked_error("bfv", np.full(4, np.nan), np.zeros(4), 0.25)


@pytest.mark.parametrize(
    ("package", "part", "measured"),
    [
        ("gmpy2", "paillier", lambda: scheme_row("paillier-3072", 8, TINY)),
        ("tenseal", "", lambda: scheme_row("bfv", 8, TINY)),
        ("tenseal", "", lambda: round_row("bfv", TINY)),
        ("cryptography", "secagg", lambda: session_row("full", 8, TINY)),
        ("phe", "nothing", lambda: phe_reference.phe_row(8, TINY)),
    ],
)
def test_a_missing_package_is_said_in_its_row(monkeypatch, package, part, measured):
    if package == "cryptography":
        for name in [name for name in sys.modules if name.startswith("cryptography.")]:
            monkeypatch.setitem(sys.modules, name, None)
    for name in (part,) if part else ("bfv", "ckks", "lattice"):
        hide(monkeypatch, package, name)
    assert measured()["skipped"] == f"needs {package}"


def test_phe_is_scaled_from_a_sample_and_says_so(monkeypatch):
    class Number(float):
        def __add__(self, other):
            return Number(float(self) + float(other))

    class Phe:
        @staticmethod
        def generate_paillier_keypair(n_length):
            assert n_length == 2048
            return Phe(), Phe()

        def encrypt(self, value, precision):
            return Number(value)

        def decrypt(self, number):
            return float(number)

    monkeypatch.setitem(sys.modules, "phe", Phe)
    row = phe_reference.phe_row(1000, Plan(clients=5, phe_sample=4))
    assert row["scaled_from"] == 4 and row["bytes_up"] == 1000 * 512
    assert row["seal_ms"]["repeats"] == 4


def test_a_quick_run_says_why_it_leaves_large_paillier_out():
    row = scheme_row("paillier-2048", 61706, Plan.quick())
    assert "quick" in row["skipped"]


def test_medians_are_of_all_calls():
    results, times = timing.time_calls([lambda i=i: i for i in range(5)], least=5, budget=0)
    assert results == [0, 1, 2, 3, 4] and times["repeats"] == 5
    assert timing.time_call(lambda: 7, most=3, budget=9)[1]["repeats"] == 3
    assert timing.time_call(lambda: 7, most=3, budget=0)[1]["repeats"] == 1


def test_the_paper_sizes_are_those_of_its_own_description():
    # "64-bit masks (8 bytes per parameter)"; MB to four digits are good to 53 bytes
    assert abs(PUBLISHED["secagg", 840].bytes - 840 * 8) <= 53
    assert abs(PUBLISHED["secagg", 5120].bytes - 5120 * 8) <= 53


def test_vectors_are_the_same_in_every_run():
    np.testing.assert_array_equal(random_vectors(3, 8), random_vectors(3, 8))


def test_tables_fit_into_100_columns_and_have_one_shape(found):
    for table in crypto_tables(found):
        assert len({tuple(row) for row in table.rows}) == 1
        widths = [max(len(key), *(len(row[key]) for row in table.rows)) for key in table.rows[0]]
        assert sum(widths) + 2 * len(widths) <= 100, table.title


def test_the_command_prints_one_document_and_writes_both_files(monkeypatch, capsys, tmp_path, found):
    monkeypatch.setattr("flameche_benchmarks.crypto.measure", lambda plan, progress: found)
    for words in (["--json"], ["--quick", "--out", str(tmp_path / "new")]):
        monkeypatch.setattr(sys, "argv", ["flameche", "bench", "crypto", *words])
        cli.main()
        out, err = capsys.readouterr()
        assert err == ""
        if "--json" in words:
            assert json.loads(out) == json.loads(json.dumps(found))
        else:
            assert "paillier-3072" in out and max(map(len, out.splitlines())) <= 100
    assert json.loads((tmp_path / "new" / "bench-crypto.json").read_text())["benchmark"] == "crypto"
    assert (tmp_path / "new" / "bench-crypto.md").read_text() == crypto_markdown(found)


def test_the_stored_page_and_readme_are_what_the_stored_run_says():
    stored = json.loads((ROOT / "results" / "bench-crypto.json").read_text())
    assert (ROOT / "results" / "bench-crypto.md").read_text() == crypto_markdown(stored)
    assert "\n".join(markdown_table(crypto_overview(stored))) in (ROOT / "README.md").read_text()
