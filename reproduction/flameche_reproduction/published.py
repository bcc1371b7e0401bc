"""The values that the paper printed: mean and, where given, standard deviation of each cell."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class PublishedValue:
    """A cell of the paper: mean, and standard deviation over its seeds if it has one."""

    mean: float
    sd: float | None

    def text(self) -> str:
        """Format the value as the paper does."""
        return f"{self.mean:.2f}" + ("" if self.sd is None else f" ± {self.sd:.2f}")


@cache
def _cells() -> dict[tuple[str, str, str, str, str], PublishedValue]:
    text = files("flameche_reproduction").joinpath("published.csv").read_text()
    return {
        (r["table"], r["dataset"], r["setting"], r["row"], r["measure"]): PublishedValue(
            float(r["mean"]), float(r["sd"]) if r["sd"] else None
        )
        for r in csv.DictReader(text.splitlines())
    }


def published_value(table: str, dataset: str, setting: str, row: str, measure: str) -> PublishedValue | None:
    """Return a cell of the paper, or None; its one row for FLAMECHE is compared with each of our modes."""
    own = _cells().get((table, dataset, setting, row, measure))
    return own or _cells().get((table, dataset, setting, row.partition("-")[0], measure))
