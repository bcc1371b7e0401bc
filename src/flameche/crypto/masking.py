"""Secure aggregation as a choice of scheme: no lasting keys, so a codec is all there is to agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flameche.crypto.codec import FixedPoint


@dataclass(frozen=True)
class SecAgg:
    """Sums among the clients of one session; the server reads the sum and no term of it."""

    codec: FixedPoint
    name: ClassVar[str] = "secagg"
    opened_by: ClassVar[Literal["server", "clients"]] = "server"
