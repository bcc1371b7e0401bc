"""What the paper printed: the mean and, where given, the spread behind every cell of its tables."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Printed:
    """A cell of the paper: mean, and standard deviation over its seeds if it has one."""

    mean: float
    sd: float | None

    def text(self) -> str:
        """Write it as the paper does."""
        return f"{self.mean:.2f}" + ("" if self.sd is None else f" ± {self.sd:.2f}")


@cache
def _cells() -> dict[tuple[str, str, str, str, str], Printed]:
    text = files("flameche.experiments.paper").joinpath("published.csv").read_text()
    return {
        (r["table"], r["dataset"], r["setting"], r["row"], r["measure"]): Printed(
            float(r["mean"]), float(r["sd"]) if r["sd"] else None
        )
        for r in csv.DictReader(text.splitlines())
    }


def printed(table: str, dataset: str, setting: str, row: str, measure: str) -> Printed | None:
    """Find a cell of the paper; its one FLAMECHE stands beside each of our modes."""
    own = _cells().get((table, dataset, setting, row, measure))
    return own or _cells().get((table, dataset, setting, row.partition("-")[0], measure))
