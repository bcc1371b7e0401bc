"""The paper's published costs: its tables of cryptographic overhead and of communication.

"Discussion of Cryptographic Implications": 100 clients, wall-clock time on an Intel Core i7 with 16 threads;
CKKS by TenSEAL, Paillier by the authors' C++ with 2048-bit keys, one ciphertext per element, sizes in hex.
Its MB are of 2**20 bytes. Paillier at 840 is scaled linearly from 5,120 there.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Published:
    """One cell group of the tables: milliseconds, and bytes up per client; None where the paper has none."""

    seal: float
    sum: float
    open: float | None
    bytes: int | None


def _mib(size: float) -> int:
    return round(size * MIB)


PUBLISHED = {
    ("secagg", 840): Published(0.35, 0.05, None, _mib(0.0064)),
    ("secagg", 5120): Published(2.54, 0.26, None, _mib(0.0391)),
    ("secagg", 61706): Published(27.72, 2.80, None, None),
    ("ckks", 840): Published(6.90, 12.40, 1.80, _mib(0.6996)),
    ("ckks", 5120): Published(9.00, 12.40, 1.80, _mib(0.6996)),
    ("ckks", 61706): Published(60.70, 99.20, 14.90, None),
    ("paillier", 840): Published(9570.0, 330.0, 6220.0, _mib(0.4095)),
    ("paillier", 5120): Published(58300.0, 2010.0, 37890.0, _mib(2.4963)),
}
