"""What every table of an experiment file has in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # TOML promises 64 bits, signed


def _clusters_form(value: object) -> str | None:
    if value == "auto":
        return "chosen"
    return "count" if isinstance(value, int) and not isinstance(value, bool) else None


Clusters = Annotated[
    Annotated[Count, Tag("count")] | Annotated[Literal["auto"], Tag("chosen")],
    Discriminator(
        _clusters_form,
        custom_error_type="clusters",
        custom_error_message='must be a number of clusters or "auto"',
    ),
]
MostClusters = Annotated[int, Field(ge=2, le=64)]


class Table(BaseModel):
    """A table of the TOML file: frozen, and strict about keys and types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
