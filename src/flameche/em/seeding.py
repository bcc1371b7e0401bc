"""With how many small clusters to begin: random means of many clients are all alike, those of few are not."""

from __future__ import annotations

CROWD, EACH = 3, 2  # small clusters for each of the K; clients in each of them, at least


def crowd(clients: int, clusters: int, guard: int, most: int = CROWD) -> int:
    """Choose how many small clusters to begin with: `most` for each, fewer where clients or the guard ask."""
    each = 3 * guard if guard > 1 else EACH
    return clusters * max(1, min(most, clients // (clusters * each)))


def start(clients: int, clusters: int, guard: int) -> int:
    """Choose how many sums robust mode begins with: one a client where these cannot fill a crowd."""
    few = guard <= 1 and clients <= CROWD * EACH * clusters
    return clients if few else crowd(clients, clusters, guard)
