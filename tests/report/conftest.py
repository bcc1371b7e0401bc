"""One page about everything: run folders, a network's among them, and stored runs of the paper's tables."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import write_network_run, write_run

from flameche.report import write_report
from tests.reproduction.stored_lines import write_results


@pytest.fixture(scope="session")
def whole_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write it once for all tests that only read it."""
    place = tmp_path_factory.mktemp("whole")
    write_run(place / "runs", "flameche", 0)
    write_network_run(place / "runs")
    return write_report(place / "runs", place / "report", write_results(place / "results"))
