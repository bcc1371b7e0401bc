"""Who masks with whom: everybody in a small cohort, a random k-regular graph in a large one.

The graph is Harary's on a random ring: clients take random seats and each is joined to the k/2 on either
side (Bell et al., CCS 2020, Section 3 and Algorithm 2). Its holders of shares are its neighbours and itself.

The threshold, more than two thirds of the holders, is a trade. Higher: more holders must collude with the
server to open a client's input, but fewer may drop out (here a third) before the sum is lost.
"""

from __future__ import annotations

import hashlib
from math import ceil, comb

FULL = 20  # clients; up to here a sparse graph saves next to nothing
DROPPED, CORRUPT = 0.1, 0.1  # fractions of the cohort that the default degree allows for
ABORT, EXPOSED = (
    2.0**-10,
    2.0**-40,
)  # how likely a lost sum (it is repeated) and an open input (it is not) may be


def quorum(holders: int) -> int:
    """Take more than two thirds of the holders as the threshold."""
    return 2 * holders // 3 + 1


def degree(clients: int) -> int:
    """Choose the number of neighbours: all, or the least even one that keeps both `risks` low."""
    if clients > FULL:
        gone = ceil(DROPPED * clients), ceil(CORRUPT * clients)
        for k in range(2, clients - 1, 2):
            abort, exposed = risks(clients, k, quorum(k + 1), *gone)
            if abort <= ABORT and exposed <= EXPOSED:
                return k
    return clients - 1


def risks(clients: int, k: int, threshold: int, dropped: int, corrupt: int) -> tuple[float, float]:
    """Bound the chance that some client is left with fewer holders than needed, and that some input opens.

    Exact hypergeometric tails and union bounds. An input opens if `threshold` of a client's neighbours are
    corrupt, or if the clients that remain fall apart, whose partial sums the server could tell: on the
    ring this takes two separate runs of k/2 seats that are empty.
    """
    abort = clients * _tail(clients, dropped, k + 1, k + 2 - threshold)
    opened = clients * _tail(clients - 1, corrupt, k, threshold)
    gone = dropped + corrupt
    apart = (
        comb(clients, 2) * comb(clients - k, gone - k) / comb(clients, gone) if k <= gone <= clients else 0.0
    )
    return abort, opened + apart


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Give the chance of at least so many marked ones among those drawn."""
    most = min(marked, drawn)
    ways = sum(comb(marked, x) * comb(population - marked, drawn - x) for x in range(max(least, 0), most + 1))
    return ways / comb(population, drawn)


def holders(clients: int, k: int, seed: bytes) -> list[list[int]]:
    """List for each client, in order, itself and its neighbours; the same on every machine."""
    if k == clients - 1:
        return [list(range(clients))] * clients
    seats = sorted(
        range(clients), key=lambda c: hashlib.sha256(b"secagg seat" + seed + c.to_bytes(4, "little")).digest()
    )
    around: list[list[int]] = [[] for _ in seats]
    for seat, client in enumerate(seats):
        around[client] = sorted(seats[(seat + step) % clients] for step in range(-(k // 2), k // 2 + 1))
    return around
